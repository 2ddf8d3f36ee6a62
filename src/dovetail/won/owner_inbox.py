"""The log entries that an owner's client receives, in order, once the keys of their signers are known.

A missing key holds up the log only briefly. Then the entry is deferred, together with all later ones of the same
partner, while those of other partners go on: a partner whose node is gone blocks no one else. Its key is requested
again after pauses that double; when it arrives, the deferred entries are taken in order. Deferred entries are bounded
in number and bytes. Beyond that an entry stays in the node's log, and only its partner is remembered: once its key is
found, or there is room again, the log is read again from the first such entry.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
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
"""Timer name for the first frame; the other timers are named by signer."""
_NOTICES = ""
"""Used as the partner if it is unknown which partner a notice of the own node concerns."""


class Recipient(Protocol):
    """Callbacks for the entries."""

    def take_entry(self, bundle: Bundle, now: int) -> None:
        """Take the next entry, verified."""

    def take_deferred(self, bundle: Bundle, now: int) -> None:
        """Take a deferred entry, now verified."""

    def reject_deferred(self, bundle: Bundle, error: RemoteProtocolError, now: int) -> None:
        """Refuse a deferred entry whose signatures are wrong."""

    def defer_entry(self, data: bytes, bundle: Bundle, signer: str, now: int) -> bool:
        """Defer an entry until the key of a signer is found; True if it was the next one."""

    def reject_frame(self, data: bytes, bundle: Bundle | None, error: RemoteProtocolError, now: int) -> None:
        """Refuse the next frame, which is unreadable or has wrong signatures."""

    def give_up_link(self, now: int) -> None:
        """The own node's key was not found, or too many frames wait for it."""


class _Frame(NamedTuple):
    data: bytes
    bundle: Bundle
    arrived: int


class _Left(NamedTuple):
    """Entries of one partner left in the node's log: the first, how many, and the keys it waits for."""

    position: int
    number: int
    missing: frozenset[str]


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
        self._left: dict[str, _Left] = {}
        self._left_before: dict[str, _Left] = {}
        self._reread_from: int | None = None
        self._requested: set[str] = set()
        self._failures: dict[str, int] = {}
        self._timers = Timers()

    @property
    def deferred(self) -> dict[str, int]:
        """Number of deferred entries, by partner."""
        return {partner: len(entries) for partner, entries in self._deferred.items()}

    @property
    def left(self) -> dict[str, int]:
        """Number of entries left in the node's log, by partner; the old value until the log has been read again."""
        return {partner: left.number for partner, left in (self._left_before | self._left).items()}

    def begin_reading(self, position: int) -> int:
        """Where a new link starts reading the log: `position`, unless entries before it can be taken now."""
        if self._reread_from is None:
            return position
        self._left_before |= self._left
        self._left = {}  # rebuilt while reading
        return min(position, self._reread_from)

    def end_rereading(self) -> None:
        """All previously handled entries have been read again."""
        self._reread_from = None
        self._left_before = {}

    def trust(self, message: Message) -> None:
        """Remember a message signed by this owner."""
        self._verifier.trust(message)

    def clear(self) -> None:
        """The link has ended: the node resends what was not taken."""
        self._frames.clear()
        self._timers.set(_FRAME, None)

    def receive(self, data: bytes, known: dict[str, Message], now: int) -> None:
        """Handle a frame from the node; messages in `known` need not be decoded again."""
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
        """Restore an entry deferred before the client was stopped."""
        self._defer(bundle, self._request_missing(bundle, now))

    def receive_document(self, uri: str, data: bytes | None, now: int) -> None:
        """Handle the document found at `uri`, None if there was none."""
        self._requested.discard(uri)
        key = read_key_document(uri, data) if data is not None else None
        if key is None:
            self._failures[uri] = self._failures.get(uri, 0) + 1
            self._timers.set(uri, now + pause_us(self._failures[uri], self._settings, self._draw()))
        else:
            self._keys.add(uri, key, now)
            self._failures.pop(uri, None)
            self._timers.set(uri, None)
            deferred_bytes = self._deferred_bytes
            for partner in list(self._deferred):
                self._take_deferred(partner, now)
            self._reread(uri, now, has_room=self._deferred_bytes < deferred_bytes)
        self._drain(now)

    def handle_timer(self, now: int) -> None:
        """Stop waiting for a key, or request one again."""
        for name in self._timers.pop_due(now):
            if name != _FRAME:
                self._retry(name)
        self._drain(now)

    def next_timer(self) -> int | None:
        """When to call `handle_timer`."""
        return self._timers.next()

    def _reread(self, found: str, now: int, *, has_room: bool) -> None:
        """Read the entries left in the node's log again, if some can be taken or kept now."""
        can_take = False
        for partner, left in self._left.items():
            if found in left.missing:
                self._left[partner] = left._replace(missing=left.missing - {found})
                can_take = can_take or not self._left[partner].missing
        if self._left and (has_room or can_take):
            self._reread_from = min(left.position for left in self._left.values())
            self._recipient.give_up_link(now)

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
                self._timers.set(_FRAME, arrived + self._key_timeout_us(missing))
                return
            if self._node in missing:
                self._recipient.give_up_link(now)
                return
            self._handle(self._frames.popleft(), missing, now)
        self._timers.set(_FRAME, None)

    def _handle(self, frame: _Frame, missing: list[str], now: int) -> None:
        partner = self._find_partner(frame.bundle)
        if missing or partner in self._deferred or partner in self._left:
            if self._recipient.defer_entry(frame.data, frame.bundle, missing[0] if missing else partner or "", now):
                self._defer(frame.bundle, missing)
            return
        try:
            self._verify(frame.bundle, now)
        except RemoteProtocolError as error:
            self._recipient.reject_frame(frame.data, frame.bundle, error, now)
            return
        self._recipient.take_entry(frame.bundle, now)

    def _is_hopeless(self, missing: list[str], arrived: int, now: int) -> bool:
        return any(uri in self._failures for uri in missing) or now >= arrived + self._key_timeout_us(missing)

    def _key_timeout_us(self, missing: list[str]) -> int:
        settings = self._settings
        return 1000 * (settings.key_timeout_ms if self._node in missing else settings.partner_key_timeout_ms)

    def _request_missing(self, bundle: Bundle, now: int) -> list[str]:
        """The signers with unknown keys, in order; each is requested, unless a request failed recently."""
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
        """Request a key again if an entry still waits for it."""
        first = (message for entries in self._deferred.values() for message in entries[0].messages)
        if any(uri in left.missing for left in self._left.values()) or uri in map(expected_signer, first):
            self._request(uri)
        else:
            self._failures.pop(uri, None)

    def _verify(self, bundle: Bundle, now: int) -> None:
        for message in bundle.messages:
            key = self._keys.find(expected_signer(message), now)
            assert key is not None
            self._verifier.verify(message, key)

    def _find_partner(self, bundle: Bundle) -> str | None:
        """The other atom; for a notice that names none, that of the message it is about."""
        atoms = [atom for m in bundle.messages for atom in (m.sender, m.recipient) if atom not in (None, self._atom)]
        if atoms:
            return atoms[0]
        notice = bundle.messages[0]
        # a notice may be about a message left in the node's log; its partner is then unknown
        unknown = _NOTICES if notice.is_response and self._left else None
        return self._partner_of.get(notice.responding_to or "", unknown)

    def _defer(self, bundle: Bundle, missing: list[str]) -> None:
        if bundle.messages[-1].uri in self._partner_of:
            return  # already deferred, and now read again
        partner = self._find_partner(bundle) or _NOTICES
        size = sum(len(message.raw) for message in bundle.messages)
        if (
            partner == _NOTICES
            or partner in self._left
            or sum(map(len, self._deferred.values())) >= self._settings.max_deferred
            or self._deferred_bytes + size > self._settings.max_deferred_bytes
        ):
            left = self._left.get(partner, _Left(bundle.position or 0, 0, frozenset(missing)))
            self._left[partner] = left._replace(number=left.number + 1)
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
