"""Sends the log of an atom to its clients: each entry is one dataset, and every client gets all entries in order.

A client registers with the number of entries it has; it gets the next page of what it missed, and once it has all,
every new entry at once. The last entry of a page tells the log's size; a client that is behind gets nothing out of
order, it registers again for the next page. What was sent on a link is not sent on it again: a registration that tells
of fewer entries was under way at the same time.

A client that has sent a message without registering follows the log from then on: it gets every new entry, without
positions. One that sent a message again, which proves nothing, gets the answers to this message alone.
"""

from __future__ import annotations

from dovetail.model.hop import Stage
from dovetail.won.atom import Atom
from dovetail.won.ledger import Ledger
from dovetail.won.message import Message
from dovetail.won.output_buffer import OutputBuffer
from dovetail.won.settings import WonSettings
from dovetail.won.trig import encode_bundle, encode_position


class OwnerLogFanout:
    """Hands log entries to the clients of atoms."""

    def __init__(self, ledger: Ledger, settings: WonSettings, output: OutputBuffer) -> None:
        self._ledger = ledger
        self._settings = settings
        self._output = output
        self._awaiting: dict[str, list[str]] = {}

    def register(self, atom: Atom, link: str, after: int, now: int) -> None:
        """A client that has the first `after` entries wants the rest, and all that comes."""
        atom.followers.discard(link)
        start = min(max(after, atom.links.get(link, 0)), len(atom.log))
        end = min(start + self._settings.catch_up_page, len(atom.log))
        atom.links[link] = end
        for position in range(start, end):
            self._send_entry(atom, link, position, is_last=position == end - 1)
            if atom.delivered.add(position):
                for address in atom.log[position]:
                    if address not in self._ledger.refused:
                        self._output.observe_again(Stage.DELIVERED, address, atom.uri, now)
        if start == end:
            # Nothing was missed: the atom's first entry, its Create, says that the registration holds.
            self._send_entry(atom, link, 0, is_last=True)

    def follow(self, atom: Atom, link: str) -> None:
        """A client that has not registered gets all entries from now on."""
        if link not in atom.links:
            atom.followers.add(link)

    def await_answer(self, message: str, link: str) -> None:
        """A client that sent a message again gets the response of the other node too, when it comes."""
        self._awaiting.setdefault(message, []).append(link)

    def remove(self, atom: Atom, link: str) -> None:
        """A client has left."""
        atom.links.pop(link, None)
        atom.followers.discard(link)

    def send_newest(self, atom: Atom, messages: tuple[Message, ...], now: int, bundle: bytes | None = None) -> None:
        """Send the newest log entry to every client that has all entries before it, or follows the log."""
        position = len(atom.log) - 1
        registered = [name for name, cursor in atom.links.items() if cursor == position]
        others = sorted(atom.followers)
        if messages[0].is_response and self._awaiting:
            waiting = self._awaiting.pop(messages[0].responding_to or "", ())
            others += [link for link in waiting if not atom.has_client(link)]
        if not registered and not others:
            return
        data = bundle or encode_bundle(messages)
        for name in others:
            self._output.send_frame(name, data)
        data += encode_position(f"{atom.uri}/msg", position, position + 1, trig=True)
        for name in registered:
            atom.links[name] = position + 1
            self._output.send_frame(name, data)
        if not atom.delivered.add(position):
            return
        for message in messages:
            if message.address not in self._ledger.refused:
                is_echo = not message.is_response and message.sender == atom.uri
                stage = Stage.ECHOED if is_echo else Stage.DELIVERED
                self._output.observe_again(stage, message.address, atom.uri, now)

    def _send_entry(self, atom: Atom, link: str, position: int, *, is_last: bool) -> None:
        raws = [self._ledger.archive.raw(address) for address in atom.log[position]]
        size = len(atom.log) if is_last else None
        place = encode_position(f"{atom.uri}/msg", position, size, trig=False)
        self._output.send_frame(link, b"".join([raw for raw in raws if raw is not None] + [place]))
