"""The entries that an owner's client gets, in order, as far as the keys of their signers are known.

A missing key holds up the log for a short while only. Then the entry is deferred, and with it all later ones of the
same partner, while those of other partners go on: a partner whose node is gone blocks nobody else. Its key is asked for
again after pauses that double; when it comes, the deferred entries are taken in order. Deferred entries are bounded in
number and bytes; beyond that they stay refused.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

from dovetail.model.errors import RemoteProtocolError
from dovetail.won.events import KeyWanted
from dovetail.won.keys import KeyRing, Verifier, read_key_document
from dovetail.won.message import Bundle, Message, decode_bundle
from dovetail.won.outbox import pause_us
from dovetail.won.output_buffer import OutputBuffer
from dovetail.won.settings import WonSettings
from dovetail.won.signing import expected_signer
from dovetail.won.timers import Timers
from dovetail.won.vocabulary import node_of_atom

_FRAME = ""
"""The name of the timer of the first frame; the others are those of signers."""


class Recipient(Protocol):
    """What becomes of the entries."""

    def take_entry(self, bundle: Bundle, now: int) -> None:
        """The next entry, verified."""

    def take_deferred(self, bundle: Bundle, now: int) -> None:
        """An entry that was deferred, verified now."""

    def reject_deferred(self, bundle: Bundle, error: RemoteProtocolError, now: int) -> None:
        """The signatures of an entry that was deferred are wrong."""

    def defer_entry(self, data: bytes, bundle: Bundle, signer: str, now: int) -> bool:
        """An entry is to wait for the key of a signer; True if it was the next one."""

    def reject_frame(self, data: bytes, bundle: Bundle | None, error: RemoteProtocolError, now: int) -> None:
        """The next frame cannot be read, or its signatures are wrong."""

    def give_up_link(self, now: int) -> None:
        """The key of the own node is not found, or too many frames wait for it."""


class _Frame(NamedTuple):
    data: bytes
    bundle: Bundle
    arrived: int


class OwnerInbox:
    """Frames of the link to the node, and deferred entries by partner."""

    def __init__(
        self,
        atom: str,
        keys: KeyRing,
        settings: WonSettings,
        output: OutputBuffer,
        recipient: Recipient,
        draw: Callable[[], float],
    ) -> None:
        self._atom = atom
        self._node = node_of_atom(atom)
        self._keys = keys
        self._settings = settings
        self._output = output
        self._recipient = recipient
        self._draw = draw
        self._verifier = Verifier(settings.max_verdicts)
        self._frames: deque[_Frame] = deque()
        self._deferred: dict[str, deque[Bundle]] = {}
        self._partner_of: dict[str, str] = {}
        self._deferred_bytes = 0
        self._requested: set[str] = set()
        self._failures: dict[str, int] = {}
        self._timers = Timers()

    @property
    def deferred(self) -> dict[str, int]:
        """How many entries are deferred, by partner."""
        return {partner: len(entries) for partner, entries in self._deferred.items()}

    def trust(self, message: Message) -> None:
        """Remember a message that this owner signed itself."""
        self._verifier.trust(message)

    def clear(self) -> None:
        """The link has ended: the node sends again what was not taken."""
        self._frames.clear()
        self._timers.set(_FRAME, None)

    def receive(self, data: bytes, known: Mapping[str, Message], now: int) -> None:
        """A frame came from the node; messages in `known` need not be decoded again."""
        if len(self._frames) >= self._settings.max_held_frames:
            self._recipient.give_up_link(now)
            return
        try:
            bundle = decode_bundle(data, self._settings.limits, known=known)
        except RemoteProtocolError as error:
            self._recipient.reject_frame(data, None, error, now)
            return
        self._frames.append(_Frame(data, bundle, now))
        self._drain(now)

    def restore(self, bundle: Bundle, now: int) -> None:
        """An entry was deferred before the client was stopped."""
        self._defer(bundle)
        self._request_missing(bundle, now)

    def receive_document(self, uri: str, data: bytes | None, now: int) -> None:
        """The document found at `uri`, None if there was none."""
        self._requested.discard(uri)
        key = read_key_document(uri, data) if data is not None else None
        if key is None:
            self._failures[uri] = self._failures.get(uri, 0) + 1
            self._timers.set(uri, now + pause_us(self._failures[uri], self._settings, self._draw()))
        else:
            self._keys.add(uri, key, now)
            self._failures.pop(uri, None)
            self._timers.set(uri, None)
            for partner in list(self._deferred):
                self._take_deferred(partner, now)
        self._drain(now)

    def handle_timer(self, now: int) -> None:
        """Stop waiting for a key, or ask for one again."""
        for name in self._timers.pop_due(now):
            if name != _FRAME:
                self._retry(name)
        self._drain(now)

    def next_timer(self) -> int | None:
        """When `handle_timer` wants to be called."""
        return self._timers.next()

    def _drain(self, now: int) -> None:
        while self._frames:
            data, bundle, arrived = self._frames[0]
            try:
                missing = self._request_missing(bundle, now)
            except RemoteProtocolError as error:
                self._frames.popleft()
                self._recipient.reject_frame(data, bundle, error, now)
                continue
            if missing and not self._is_hopeless(missing, arrived, now):
                self._timers.set(_FRAME, arrived + self._patience_us(missing))
                return
            if self._node in missing:
                self._recipient.give_up_link(now)
                return
            self._handle(self._frames.popleft(), missing, now)
        self._timers.set(_FRAME, None)

    def _handle(self, frame: _Frame, missing: list[str], now: int) -> None:
        partner = self._find_partner(frame.bundle)
        if missing or partner in self._deferred:
            if self._recipient.defer_entry(frame.data, frame.bundle, missing[0] if missing else partner or "", now):
                self._defer(frame.bundle)
            return
        try:
            self._verify(frame.bundle, now)
        except RemoteProtocolError as error:
            self._recipient.reject_frame(frame.data, frame.bundle, error, now)
            return
        self._recipient.take_entry(frame.bundle, now)

    def _is_hopeless(self, missing: list[str], arrived: int, now: int) -> bool:
        return any(uri in self._failures for uri in missing) or now >= arrived + self._patience_us(missing)

    def _patience_us(self, missing: list[str]) -> int:
        settings = self._settings
        return 1000 * (settings.key_timeout_ms if self._node in missing else settings.key_patience_ms)

    def _request_missing(self, bundle: Bundle, now: int) -> list[str]:
        """The signers whose keys are not known, in order; each is asked for, unless that was in vain lately."""
        signers = {expected_signer(message) for message in bundle.messages}
        missing = sorted(signer for signer in signers if self._keys.find(signer, now) is None)
        for uri in missing:
            if uri not in self._failures:
                self._request(uri)
        return missing

    def _request(self, uri: str) -> None:
        if uri not in self._requested:
            self._requested.add(uri)
            self._output.emit(KeyWanted(uri))

    def _retry(self, uri: str) -> None:
        """Ask for a key once more, if an entry still waits for it."""
        for entries in self._deferred.values():
            if any(uri == expected_signer(message) for message in entries[0].messages):
                self._request(uri)
                return
        self._failures.pop(uri, None)

    def _verify(self, bundle: Bundle, now: int) -> None:
        for message in bundle.messages:
            key = self._keys.find(expected_signer(message), now)
            assert key is not None
            self._verifier.verify(message, key)

    def _find_partner(self, bundle: Bundle) -> str | None:
        """The other atom; of a notice that names none, that of the message it is about."""
        atoms = [atom for m in bundle.messages for atom in (m.sender, m.recipient) if atom not in (None, self._atom)]
        return atoms[0] if atoms else self._partner_of.get(bundle.messages[0].responding_to or "")

    def _defer(self, bundle: Bundle) -> None:
        partner = self._find_partner(bundle)
        size = sum(len(message.raw) for message in bundle.messages)
        if (
            partner is None
            or sum(map(len, self._deferred.values())) >= self._settings.max_deferred
            or self._deferred_bytes + size > self._settings.max_deferred_bytes
        ):
            return
        self._deferred.setdefault(partner, deque()).append(bundle)
        self._deferred_bytes += size
        self._partner_of.update({message.uri: partner for message in bundle.messages})

    def _take_deferred(self, partner: str, now: int) -> None:
        entries = self._deferred[partner]
        while entries and not self._request_missing(entries[0], now):
            bundle = entries.popleft()
            self._deferred_bytes -= sum(len(message.raw) for message in bundle.messages)
            for message in bundle.messages:
                self._partner_of.pop(message.uri, None)
            try:
                self._verify(bundle, now)
            except RemoteProtocolError as error:
                self._recipient.reject_deferred(bundle, error, now)
                continue
            self._recipient.take_deferred(bundle, now)
        if not entries:
            del self._deferred[partner]
