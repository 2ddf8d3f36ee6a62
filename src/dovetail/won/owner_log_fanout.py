"""Sends the log of an atom to its clients: each entry is one dataset, and every client gets all entries in order.

A client registers with the number of entries it has; it gets the next page of missing entries, and once it is up to
date, every new entry immediately. The last entry of a page carries the log's size; a client that is behind gets nothing
out of order, it registers again for the next page. Nothing is sent twice on one link: a registration with fewer entries
crossed what was already sent.

A client that sends a message without registering follows the log from then on: it gets every new entry, without
positions. One that resends a message, which proves nothing, gets only the answers to that message.
"""

from __future__ import annotations

from collections.abc import Iterable

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
        self._awaiting: dict[str, set[str]] = {}
        self._asked: dict[str, set[str]] = {}

    def register(self, atom: Atom, link: str, after: int, now: int) -> None:
        """Register a client that has the first `after` entries and wants the rest, and all new ones."""
        atom.followers.discard(link)
        start = min(max(after, atom.links.get(link, 0)), len(atom.log))
        end = min(start + self._settings.catch_up_page, len(atom.log))
        left_bytes = self._settings.burst_bytes
        for position in range(start, end):
            entry = self._read_entry(atom, position)
            left_bytes -= len(entry)
            is_last = left_bytes <= 0 or position == end - 1
            self._send_entry(atom, link, position, entry, is_last=is_last)
            atom.links[link] = position + 1
            if atom.delivered.add(position):
                for address in atom.log[position]:
                    if address not in self._ledger.refused:
                        self._output.observe_again(Stage.DELIVERED, address, atom.uri, now)
            if is_last:
                return
        # Nothing was missed: the atom's first entry, its Create, confirms the registration.
        atom.links[link] = end
        self._send_entry(atom, link, 0, self._read_entry(atom, 0), is_last=True)

    def follow(self, atom: Atom, link: str) -> None:
        """Send an unregistered client all entries from now on."""
        if link not in atom.links:
            atom.followers.add(link)

    def await_answer(self, message: str, link: str) -> None:
        """Send a client that resent a message the other node's response too, when it arrives."""
        self._awaiting.setdefault(message, set()).add(link)
        self._asked.setdefault(link, set()).add(message)

    def remove(self, atoms: Iterable[str], link: str) -> None:
        """Remove a client of these atoms."""
        for uri in atoms:
            self._ledger.atoms[uri].links.pop(link, None)
            self._ledger.atoms[uri].followers.discard(link)
        for message in self._asked.pop(link, ()):
            waiting = self._awaiting.get(message, set())
            waiting.discard(link)
            if not waiting:
                self._awaiting.pop(message, None)

    def send_newest(self, atom: Atom, messages: tuple[Message, ...], now: int, bundle: bytes | None = None) -> None:
        """Send the newest log entry to every client that is up to date or follows the log."""
        position = len(atom.log) - 1
        registered = [name for name, cursor in atom.links.items() if cursor == position]
        others = sorted(atom.followers)
        if messages[0].is_response and self._awaiting:
            waiting = self._awaiting.pop(messages[0].responding_to or "", ())
            others += [link for link in sorted(waiting) if not atom.has_client(link)]
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

    def _read_entry(self, atom: Atom, position: int) -> bytes:
        raws = [self._ledger.archive.raw(address) for address in atom.log[position]]
        return b"".join([raw for raw in raws if raw is not None])

    def _send_entry(self, atom: Atom, link: str, position: int, entry: bytes, *, is_last: bool) -> None:
        size = len(atom.log) if is_last else None
        self._output.send_frame(link, entry + encode_position(f"{atom.uri}/msg", position, size, trig=False))
