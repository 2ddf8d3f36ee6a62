"""UEP-7: packets over 1408 bytes are sent as up to eight fragments.

    offset  size  field
    0       1     0x66, the protocol indicator
    1       1     bits 0-2 index, bits 3-5 count - 1, bits 6-7 zero
    2       8     signature: the first 8 bytes of SHA-256 over the whole packet (not defined by the text)
    10      ...   1408 bytes; the last fragment the rest

`Assembler` keeps the fragments of each (source, signature) for 5 s after the last new one, at most
`MAX_PENDING_PER_SOURCE` packets per source and `MAX_PENDING` in total; the oldest is dropped. A packet is returned only
if its hash matches, so that a wrong one is never relayed.
"""

from __future__ import annotations

import hashlib
from typing import Final, Generic, TypeVar

from dovetail.swarm.refusals import BadFragment, BadIndicator, BadSignature, TooLarge, Truncated

INDICATOR: Final = 0x66
HEADER_BYTES: Final = 10
SIGNATURE_BYTES: Final = 8
FRAGMENT_BYTES: Final = 1408
MAX_FRAGMENTS: Final = 8
MAX_PACKET_BYTES: Final = MAX_FRAGMENTS * FRAGMENT_BYTES
WINDOW_US: Final = 5_000_000
MAX_PENDING_PER_SOURCE: Final = 8
MAX_PENDING: Final = 256

Source = TypeVar("Source")


def encode_fragments(packet: bytes) -> list[bytes]:
    """The datagrams of a packet: itself if it fits, else its fragments."""
    size = len(packet)
    if size <= FRAGMENT_BYTES:
        return [packet]
    if size > MAX_PACKET_BYTES:
        raise ValueError(f"packet of {size} bytes, expected at most {MAX_PACKET_BYTES}")
    signature = hashlib.sha256(packet).digest()[:SIGNATURE_BYTES]
    count = -(-size // FRAGMENT_BYTES)
    return [
        bytes((INDICATOR, index | count - 1 << 3))
        + signature
        + packet[index * FRAGMENT_BYTES : (index + 1) * FRAGMENT_BYTES]
        for index in range(count)
    ]


def decode_fragment(datagram: bytes) -> tuple[int, int, bytes, bytes]:
    """Index, count, signature and body of a fragment; raises Truncated, BadIndicator, TooLarge or BadFragment."""
    size = len(datagram)
    if size < HEADER_BYTES:
        raise Truncated(f"{size} bytes, expected at least {HEADER_BYTES}")
    if datagram[0] != INDICATOR:
        raise BadIndicator(f"first byte 0x{datagram[0]:02x}, expected 0x{INDICATOR:02x}")
    if size > HEADER_BYTES + FRAGMENT_BYTES:
        raise TooLarge(f"{size} bytes, expected at most {HEADER_BYTES + FRAGMENT_BYTES}")
    index, count = datagram[1] & 7, (datagram[1] >> 3 & 7) + 1
    body = datagram[HEADER_BYTES:]
    if index >= count:
        raise BadFragment(f"index {index} of {count} fragments")
    if index < count - 1 and len(body) != FRAGMENT_BYTES:
        raise BadFragment(f"fragment {index} of {count} has {len(body)} bytes, expected {FRAGMENT_BYTES}")
    if not body:
        raise BadFragment(f"fragment {index} of {count} is empty")
    return index, count, datagram[2:HEADER_BYTES], body


class _Pending:
    __slots__ = ("bodies", "count", "deadline_us")

    def __init__(self, count: int) -> None:
        self.count = count
        self.bodies: dict[int, bytes] = {}
        self.deadline_us = 0


class Assembler(Generic[Source]):
    """Reassembles packets in bounded memory."""

    def __init__(self, max_per_source: int = MAX_PENDING_PER_SOURCE, max_pending: int = MAX_PENDING) -> None:
        self._max_per_source = max_per_source
        self._max_pending = max_pending
        self._pending: dict[tuple[Source, bytes], _Pending] = {}
        self._per_source: dict[Source, int] = {}
        self.given_up = 0
        """Packets that were dropped incomplete."""

    def __len__(self) -> int:
        return len(self._pending)

    def add(self, datagram: bytes, source: Source, now: int) -> bytes | None:
        """Add one fragment; returns the whole packet if it was the last one missing."""
        index, count, signature, body = decode_fragment(datagram)
        self.forget_stale(now)
        key = source, signature
        pending = self._pending.get(key)
        if pending is None:
            self._make_room(source)
            pending = self._pending[key] = _Pending(count)
            self._per_source[source] = self._per_source.get(source, 0) + 1
        elif pending.count != count:
            raise BadFragment(f"{count} fragments claimed, {pending.count} before")
        if index in pending.bodies:
            return None
        pending.bodies[index] = body
        pending.deadline_us = now + WINDOW_US
        if len(pending.bodies) < count:
            self._pending[key] = self._pending.pop(key)
            return None
        self._forget(key)
        packet = b"".join([pending.bodies[at] for at in range(count)])
        if hashlib.sha256(packet).digest()[:SIGNATURE_BYTES] != signature:
            raise BadSignature(f"assembled {len(packet)} bytes do not hash to signature {signature.hex()}")
        return packet

    def forget_stale(self, now: int) -> None:
        """Drop packets without a new fragment for 5 s; the table is ordered by the last new fragment."""
        while self._pending:
            key, pending = next(iter(self._pending.items()))
            if pending.deadline_us > now:
                return
            self._forget(key)
            self.given_up += 1

    def _make_room(self, source: Source) -> None:
        if self._per_source.get(source, 0) >= self._max_per_source:
            self._forget(next(key for key in self._pending if key[0] == source))
            self.given_up += 1
        elif len(self._pending) >= self._max_pending:
            self._forget(next(iter(self._pending)))
            self.given_up += 1

    def _forget(self, key: tuple[Source, bytes]) -> None:
        del self._pending[key]
        left = self._per_source[key[0]] - 1
        if left:
            self._per_source[key[0]] = left
        else:
            del self._per_source[key[0]]
