"""Telling owners: each atom has a log of datasets, and every registered client gets all entries in order.

A client registers with the number of entries it has; it gets the next page of what it missed, and once it has all,
every new entry at once. The last entry of a page tells the log's size; a client that is behind gets nothing out of
order, it registers again for the next page. What was sent on a link is not sent on it again: a registration that tells
of fewer entries was under way at the same time.
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

    def register(self, atom: Atom, link: str, after: int, now: int) -> None:
        """A client that has the first `after` entries wants the rest, and all that comes."""
        start = min(max(after, atom.links.get(link, 0)), len(atom.log))
        end = min(start + self._settings.catch_up_page, len(atom.log))
        atom.links[link] = end
        for position in range(start, end):
            self._send_entry(atom, link, position, is_last=position == end - 1)
            if position >= atom.delivered:
                for address in atom.log[position]:
                    if address not in self._ledger.refused:
                        self._output.observe_again(Stage.DELIVERED, address, atom.uri, now)
        atom.delivered = max(atom.delivered, end)
        if start == end:
            # Nothing was missed: the atom's first entry, its Create, says that the registration holds.
            self._send_entry(atom, link, 0, is_last=True)

    def send_newest(self, atom: Atom, messages: tuple[Message, ...], now: int, bundle: bytes | None = None) -> None:
        """Send the newest log entry to every registered client that has all entries before it."""
        position = len(atom.log) - 1
        links = [name for name, cursor in atom.links.items() if cursor == position]
        if not links:
            return
        data = bundle or encode_bundle(messages)
        data += encode_position(f"{atom.uri}/msg", position, position + 1, trig=True)
        for name in links:
            atom.links[name] = position + 1
            self._output.send_frame(name, data)
        atom.delivered = position + 1
        for message in messages:
            if message.address in self._ledger.refused:
                continue
            is_echo = not message.is_response and message.sender == atom.uri
            self._output.observe_again(Stage.ECHOED if is_echo else Stage.DELIVERED, message.address, atom.uri, now)

    def _send_entry(self, atom: Atom, link: str, position: int, *, is_last: bool) -> None:
        raws = [self._ledger.archive.raw(address) for address in atom.log[position]]
        size = len(atom.log) if is_last else None
        place = encode_position(f"{atom.uri}/msg", position, size, trig=False)
        self._output.send_frame(link, b"".join([raw for raw in raws if raw is not None] + [place]))
