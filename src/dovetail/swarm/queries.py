"""UEP-12 pulls (0x20, 0x21) and the time-ranged list (0x11) that answers them.

    0x20  header, count:1, msg_hash:8 * count
    0x21  header, ticket:4, start_time:6, end_time:6
    0x11  header, ticket:4, start_time:6, end_time:6, count:1, msg_hash:8 * count

Times are unix milliseconds, inclusive at both ends (reading 13); bytes after the end are malformed (reading 14).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

import msgspec

from dovetail.swarm.content import (
    HASH_BYTES,
    INDICATOR,
    OPCODE_CONTENT,
    OPCODE_LIST,
    OPCODE_PULL_HASHES,
    OPCODE_PULL_RANGE,
    Content,
    MsgHash,
    decode_content,
    decode_header,
)
from dovetail.swarm.refusals import BadTimeRange, TrailingBytes, Truncated

TICKET_BYTES: Final = 4
MAX_HASHES_SENT: Final = 170
"""As many as fit into one datagram; up to 255 are accepted (reading 14)."""
MAX_HASHES: Final = 255

_PULL_HEAD: Final = struct.Struct("<BBB")
_RANGE: Final = struct.Struct("<BB4sIHIH")
_LIST_HEAD: Final = struct.Struct("<BB4sIHIHB")
LIST_HEAD_BYTES: Final = _LIST_HEAD.size


class PullHashes(msgspec.Struct, frozen=True, gc=False):
    """Opcode 0x20: a request for these messages."""

    hashes: tuple[MsgHash, ...]


class PullRange(msgspec.Struct, frozen=True, gc=False):
    """Opcode 0x21: a request for the messages of this time range, both ends inclusive."""

    ticket: bytes
    start_ms: int
    end_ms: int


class RangeList(msgspec.Struct, frozen=True, gc=False):
    """Opcode 0x11: the messages held between the two times, in chronological order."""

    ticket: bytes
    start_ms: int
    end_ms: int
    hashes: tuple[MsgHash, ...]


Message = Content | PullHashes | PullRange | RangeList


def decode_message(data: bytes) -> Message:
    """Decode any UEP-12 message; raises a `Refusal`."""
    opcode = decode_header(data)
    if opcode == OPCODE_CONTENT:
        return decode_content(data)
    if opcode == OPCODE_LIST:
        return _decode_range_list(data)
    return _decode_pull_hashes(data) if opcode == OPCODE_PULL_HASHES else _decode_pull_range(data)


def _decode_pull_hashes(data: bytes) -> PullHashes:
    if len(data) < _PULL_HEAD.size:
        raise Truncated(f"{len(data)} bytes, expected at least {_PULL_HEAD.size}")
    return PullHashes(_decode_hashes(data, _PULL_HEAD.size, data[2]))


def encode_pull_hashes(hashes: Sequence[MsgHash]) -> bytes:
    """A pull of at most 255 hashes."""
    _check_count(hashes)
    return _PULL_HEAD.pack(INDICATOR, OPCODE_PULL_HASHES, len(hashes)) + b"".join(hashes)


def _decode_pull_range(data: bytes) -> PullRange:
    if len(data) < _RANGE.size:
        raise Truncated(f"{len(data)} bytes, expected {_RANGE.size}")
    if len(data) > _RANGE.size:
        raise TrailingBytes(f"{len(data)} bytes, expected {_RANGE.size}")
    _, _, ticket, start_low, start_high, end_low, end_high = _RANGE.unpack(data)
    start_ms, end_ms = start_low | start_high << 32, end_low | end_high << 32
    _check_order(start_ms, end_ms)
    return PullRange(ticket, start_ms, end_ms)


def encode_pull_range(ticket: bytes, start_ms: int, end_ms: int) -> bytes:
    """A pull of everything from `start_ms` to `end_ms`, inclusive."""
    low = 0xFFFFFFFF
    return _RANGE.pack(INDICATOR, OPCODE_PULL_RANGE, ticket, start_ms & low, start_ms >> 32, end_ms & low, end_ms >> 32)


def _decode_range_list(data: bytes) -> RangeList:
    if len(data) < _LIST_HEAD.size:
        raise Truncated(f"{len(data)} bytes, expected at least {_LIST_HEAD.size}")
    _, _, ticket, start_low, start_high, end_low, end_high, count = _LIST_HEAD.unpack_from(data)
    hashes = _decode_hashes(data, _LIST_HEAD.size, count)
    start_ms, end_ms = start_low | start_high << 32, end_low | end_high << 32
    _check_order(start_ms, end_ms)
    return RangeList(ticket, start_ms, end_ms, hashes)


def encode_range_list(ticket: bytes, start_ms: int, end_ms: int, hashes: Sequence[MsgHash]) -> bytes:
    """A list of at most 255 hashes."""
    _check_count(hashes)
    low = 0xFFFFFFFF
    head = _LIST_HEAD.pack(
        INDICATOR, OPCODE_LIST, ticket, start_ms & low, start_ms >> 32, end_ms & low, end_ms >> 32, len(hashes)
    )
    return head + b"".join(hashes)


def _decode_hashes(data: bytes, start: int, count: int) -> tuple[MsgHash, ...]:
    end = start + HASH_BYTES * count
    if len(data) < end:
        raise Truncated(f"{len(data)} bytes, expected {end} for {count} hashes")
    if len(data) > end:
        raise TrailingBytes(f"{len(data)} bytes, expected {end} for {count} hashes")
    return tuple([MsgHash(data[at : at + HASH_BYTES]) for at in range(start, end, HASH_BYTES)])


def _check_order(start_ms: int, end_ms: int) -> None:
    if start_ms > end_ms:
        raise BadTimeRange(f"range ends {start_ms - end_ms} ms before it starts")


def _check_count(hashes: Sequence[MsgHash]) -> None:
    if len(hashes) > MAX_HASHES:
        raise ValueError(f"{len(hashes)} hashes, expected at most {MAX_HASHES}")
