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
    MAX_CONTENT_BYTES,
    OPCODE_CONTENT,
    Content,
    MsgHash,
    decode_content,
)
from dovetail.swarm.refusals import BadIndicator, BadTimeRange, TooLarge, TrailingBytes, Truncated, UnknownOpcode

OPCODE_LIST: Final = 0x11
OPCODE_PULL_HASHES: Final = 0x20
OPCODE_PULL_RANGE: Final = 0x21

TICKET_BYTES: Final = 4
MAX_HASHES_SENT: Final = 170
"""What fits one datagram; up to 255 are accepted (reading 14)."""
MAX_HASHES: Final = 255

_PULL_HEAD: Final = struct.Struct("<BBB")
_RANGE: Final = struct.Struct("<BB4sIHIH")
_LIST_HEAD: Final = struct.Struct("<BB4sIHIHB")


class PullHashes(msgspec.Struct, frozen=True, gc=False):
    """Opcode 0x20: please send these messages."""

    hashes: tuple[MsgHash, ...]


class PullRange(msgspec.Struct, frozen=True, gc=False):
    """Opcode 0x21: please list what you have from this time."""

    ticket: bytes
    start_ms: int
    end_ms: int


class RangeList(msgspec.Struct, frozen=True, gc=False):
    """Opcode 0x11: these messages I have between the two times, in chronological order."""

    ticket: bytes
    start_ms: int
    end_ms: int
    hashes: tuple[MsgHash, ...]


Message = Content | PullHashes | PullRange | RangeList


def decode_message(data: bytes) -> Message:
    """Any UEP-12 message; raises a `Refusal`."""
    if len(data) < 2:
        raise Truncated(f"{len(data)} bytes, expected at least 2")
    if len(data) > MAX_CONTENT_BYTES:
        raise TooLarge(f"{len(data)} bytes, expected at most {MAX_CONTENT_BYTES}")
    if data[0] != INDICATOR:
        raise BadIndicator(f"first byte 0x{data[0]:02x}, expected 0x{INDICATOR:02x}")
    match data[1]:
        case 0x10:
            return decode_content(data)
        case 0x11:
            return decode_range_list(data)
        case 0x20:
            return decode_pull_hashes(data)
        case 0x21:
            return decode_pull_range(data)
        case opcode:
            raise UnknownOpcode(f"opcode 0x{opcode:02x}, expected one of 0x10, 0x11, 0x20, 0x21")


def opcode_of(message: Message) -> int:
    """The opcode that a decoded message had."""
    match message:
        case Content():
            return OPCODE_CONTENT
        case RangeList():
            return OPCODE_LIST
        case PullHashes():
            return OPCODE_PULL_HASHES
        case PullRange():
            return OPCODE_PULL_RANGE


def decode_pull_hashes(data: bytes) -> PullHashes:
    """A pull by hashes; the caller has checked indicator and opcode."""
    if len(data) < _PULL_HEAD.size:
        raise Truncated(f"{len(data)} bytes, expected at least {_PULL_HEAD.size}")
    return PullHashes(_decode_hashes(data, _PULL_HEAD.size, data[2]))


def encode_pull_hashes(hashes: Sequence[MsgHash]) -> bytes:
    """A pull of at most 255 hashes."""
    _check_count(hashes)
    return _PULL_HEAD.pack(INDICATOR, OPCODE_PULL_HASHES, len(hashes)) + b"".join(hashes)


def decode_pull_range(data: bytes) -> PullRange:
    """A pull by time; the caller has checked indicator and opcode."""
    if len(data) < _RANGE.size:
        raise Truncated(f"{len(data)} bytes, expected {_RANGE.size}")
    if len(data) > _RANGE.size:
        raise TrailingBytes(f"{len(data)} bytes, expected {_RANGE.size}")
    _, _, ticket, start_low, start_high, end_low, end_high = _RANGE.unpack(data)
    start_ms, end_ms = start_low | start_high << 32, end_low | end_high << 32
    _check_order(start_ms, end_ms)
    return PullRange(ticket, start_ms, end_ms)


def encode_pull_range(ticket: bytes, start_ms: int, end_ms: int) -> bytes:
    """A pull of everything from `start_ms` to `end_ms`, both included."""
    low = 0xFFFFFFFF
    return _RANGE.pack(INDICATOR, OPCODE_PULL_RANGE, ticket, start_ms & low, start_ms >> 32, end_ms & low, end_ms >> 32)


def decode_range_list(data: bytes) -> RangeList:
    """An answer to a pull by time; the caller has checked indicator and opcode."""
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
