"""UEP-12 content messages (opcode 0x10): the bytes that the swarm stores, relays and refers to.

    offset  size  field
    0       1     0x79, the protocol indicator
    1       1     0x10, the opcode
    2       1     version, 5
    3       8     pow_nonce
    11      6     timestamp, unix milliseconds; bytes 11-12 are its low 16 bits, 13-16 the high 32
    17      2     ttl_epoch
    19      1     low 3 bits msg_refer_count, high 5 bits reserved
    20      10*n  references: msg_hash (8 raw bytes), epoch_diff (int16)
    ...           payload, to the end

Every integer is little-endian (reading 1). The layout is defined here once; columnar readers use the same constants.
Decoding refuses in the order of reading 16: length, indicator, opcode, version, fixed part, reference count,
references. `acceptance` then checks work and lifetime.
"""

from __future__ import annotations

import hashlib
import struct
from typing import Final, NewType, NoReturn

import msgspec

from dovetail.fast import twin
from dovetail.model.address import address_of
from dovetail.swarm.refusals import (
    BadIndicator,
    BadProofOfWork,
    BadReferenceCount,
    TooLarge,
    Truncated,
    UnknownOpcode,
    UnsupportedVersion,
)

MsgHash = NewType("MsgHash", bytes)
"""The first 8 bytes of a message's address: sent on the wire as a hint."""

INDICATOR: Final = 0x79
OPCODE_CONTENT: Final = 0x10
OPCODE_LIST: Final = 0x11
OPCODE_PULL_HASHES: Final = 0x20
OPCODE_PULL_RANGE: Final = 0x21
OPCODES: Final = (OPCODE_CONTENT, OPCODE_LIST, OPCODE_PULL_HASHES, OPCODE_PULL_RANGE)
HEADER_BYTES: Final = 2
VERSION: Final = 5

FIXED: Final = struct.Struct("<BBBQHIHB")
"""indicator, opcode, version, pow_nonce, time_low16, time_high32, ttl_epoch, flags"""
FIXED_BYTES: Final = 20
VERSION_OFFSET: Final = 2
NONCE_OFFSET: Final = 3
TIME_OFFSET: Final = 11
TIME_HIGH_OFFSET: Final = 13
TTL_OFFSET: Final = 17
FLAGS_OFFSET: Final = 19
COUNT_MASK: Final = 0x07
RESERVED_SHIFT: Final = 3

REFERENCE: Final = struct.Struct("<8sh")
REFERENCE_BYTES: Final = 10
MAX_REFERENCES: Final = 4
HASH_BYTES: Final = 8

_CONTENT_HEAD: Final = bytes((INDICATOR, OPCODE_CONTENT, VERSION))
_LIFETIME: Final = struct.Struct("<HIHB")
"""time_low16, time_high32, ttl_epoch, flags"""
_HASHES: Final = tuple([struct.Struct("<" + count * "8s2x") for count in range(MAX_REFERENCES + 1)])
"""The hashes alone, by the number of references."""

NONCES: Final = 1 << 64
"""How many values the nonce can have."""
WORK_NONCE_OFFSET: Final = 7
"""The offset of the nonce in the work preimage: after the four high bytes of the time, indicator, opcode, version."""

MAX_CONTENT_BYTES: Final = 8 * 1408 - 8
"""Eight fragments less the swarm header (reading 15)."""
MAX_TTL_EPOCHS: Final = 0xFFFF
MAX_TIMESTAMP_MS: Final = (1 << 48) - 1

POW_TARGET: Final = (1 << 256) // 100_000
MAX_FUTURE_MS: Final = 60_000


class Reference(msgspec.Struct, frozen=True, gc=False):
    """One edge of the DAG in its wire form."""

    msg_hash: MsgHash
    epoch_diff: int


class Content(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A decoded content message."""

    timestamp_ms: int
    ttl_epochs: int
    references: tuple[Reference, ...] = ()
    payload: bytes = b""
    pow_nonce: int = 0
    reserved: int = 0


class ContentRules(msgspec.Struct, frozen=True, kw_only=True):
    """The limits on content messages that all peers of a swarm agree on."""

    epoch_ms: int = 60_000
    max_ttl_epochs: int = MAX_TTL_EPOCHS
    pow_target: int = POW_TARGET
    max_future_ms: int = MAX_FUTURE_MS


Fields = tuple[int, int, tuple[MsgHash, ...]]
"""Timestamp, ttl and the hashes of the references: what a peer needs to accept and store a message."""


def decode_header(data: bytes) -> int:
    """The opcode of any UEP-12 message; refuses a wrong length, indicator or opcode, in this order."""
    size = len(data)
    if size < HEADER_BYTES:
        raise Truncated(f"{size} bytes, expected at least {HEADER_BYTES}")
    if size > MAX_CONTENT_BYTES:
        raise TooLarge(f"{size} bytes, expected at most {MAX_CONTENT_BYTES}")
    if data[0] != INDICATOR:
        raise BadIndicator(f"first byte 0x{data[0]:02x}, expected 0x{INDICATOR:02x}")
    if data[1] not in OPCODES:
        raise UnknownOpcode(f"opcode 0x{data[1]:02x}, expected one of 0x10, 0x11, 0x20, 0x21")
    return data[1]


@twin
def read_fields(data: bytes) -> Fields | None:
    """The fields of a content message, None if it is malformed: the only reader of its fixed part."""
    size = len(data)
    if size < FIXED_BYTES or size > MAX_CONTENT_BYTES or not data.startswith(_CONTENT_HEAD):
        return None
    time_low, time_high, ttl_epochs, flags = _LIFETIME.unpack_from(data, TIME_OFFSET)
    count = flags & COUNT_MASK
    if count > MAX_REFERENCES or size < FIXED_BYTES + REFERENCE_BYTES * count:
        return None
    return time_low | time_high << 16, ttl_epochs, _HASHES[count].unpack_from(data, FIXED_BYTES)


def decode_fields(data: bytes) -> Fields:
    """Timestamp, ttl and referenced hashes of a content message; raises a `Refusal` if it is malformed."""
    fields = read_fields(data)
    if fields is None:
        _refuse(data)
    return fields


def decode_content(data: bytes) -> Content:
    """All fields of a content message; `acceptance` checks work and lifetime."""
    timestamp_ms, ttl_epochs, refers = decode_fields(data)
    end = FIXED_BYTES + REFERENCE_BYTES * len(refers)
    return Content(
        timestamp_ms=timestamp_ms,
        ttl_epochs=ttl_epochs,
        references=tuple([Reference(*edge) for edge in REFERENCE.iter_unpack(data[FIXED_BYTES:end])]),
        payload=data[end:],
        pow_nonce=int.from_bytes(data[NONCE_OFFSET:TIME_OFFSET], "little"),
        reserved=data[FLAGS_OFFSET] >> RESERVED_SHIFT,
    )


def _refuse(data: bytes) -> NoReturn:
    """Raise the refusal for a malformed message."""
    opcode = decode_header(data)
    if opcode != OPCODE_CONTENT:
        raise UnknownOpcode(f"opcode 0x{opcode:02x}, expected 0x{OPCODE_CONTENT:02x}")
    if len(data) > VERSION_OFFSET and data[VERSION_OFFSET] != VERSION:
        raise UnsupportedVersion(f"version {data[VERSION_OFFSET]}, expected {VERSION}")
    if len(data) < FIXED_BYTES:
        raise Truncated(f"{len(data)} bytes, expected at least {FIXED_BYTES}")
    count = data[FLAGS_OFFSET] & COUNT_MASK
    if count > MAX_REFERENCES:
        raise BadReferenceCount(f"{count} references, expected at most {MAX_REFERENCES}")
    end = FIXED_BYTES + REFERENCE_BYTES * count
    raise Truncated(f"{len(data)} bytes, expected at least {end} for {count} references")


def encode_content(content: Content) -> bytes:
    """The wire bytes; ValueError says which field does not fit."""
    if len(content.references) > MAX_REFERENCES:
        raise ValueError(f"{len(content.references)} references, expected at most {MAX_REFERENCES}")
    if not 0 <= content.timestamp_ms <= MAX_TIMESTAMP_MS:
        raise ValueError(f"timestamp {content.timestamp_ms} ms, expected 0 to {MAX_TIMESTAMP_MS}")
    if not 0 <= content.ttl_epochs <= MAX_TTL_EPOCHS:
        raise ValueError(f"ttl of {content.ttl_epochs} epochs, expected 0 to {MAX_TTL_EPOCHS}")
    size = FIXED_BYTES + REFERENCE_BYTES * len(content.references) + len(content.payload)
    if size > MAX_CONTENT_BYTES:
        raise ValueError(f"message of {size} bytes, expected at most {MAX_CONTENT_BYTES}")
    fixed = FIXED.pack(
        INDICATOR,
        OPCODE_CONTENT,
        VERSION,
        content.pow_nonce,
        content.timestamp_ms & 0xFFFF,
        content.timestamp_ms >> 16,
        content.ttl_epochs,
        len(content.references) | content.reserved << RESERVED_SHIFT,
    )
    edges = b"".join([REFERENCE.pack(edge.msg_hash, edge.epoch_diff) for edge in content.references])
    return fixed + edges + content.payload


message_address = address_of
"""SHA-256 over everything from 0x79 to the end of the payload, nonce included (reading 6)."""


def work_preimage(data: bytes) -> bytes:
    """High 32 bits of the time, then the message without them (reading 4)."""
    return data[TIME_HIGH_OFFSET:TTL_OFFSET] + data[:TIME_HIGH_OFFSET] + data[TTL_OFFSET:]


@twin
def work_of(data: bytes) -> bytes:
    """The 32 bytes that must be below the target as a big-endian number (reading 5)."""
    return hashlib.sha256(work_preimage(data)).digest()


def with_nonce(data: bytes, nonce: int) -> bytes:
    """The same message with another nonce."""
    return data[:NONCE_OFFSET] + nonce.to_bytes(8, "little") + data[NONCE_OFFSET + 8 :]


def has_work(data: bytes, target: int) -> bool:
    """True if the work is strictly below the target (UEP-12, Anti-Spamming)."""
    return int.from_bytes(work_of(data)) < target


def check_work(data: bytes, target: int = POW_TARGET) -> None:
    """Raise `BadProofOfWork` unless the message has enough work."""
    if not has_work(data, target):
        raise BadProofOfWork(f"work {work_of(data).hex()[:16]}..., expected below {target:064x}"[:96])


def expiration_ms(timestamp_ms: int, ttl_epochs: int, epoch_ms: int) -> int:
    """The first millisecond at which the message is expired; ttl 0 counts as 1 (UEP-12, Message Life-Cycle)."""
    return timestamp_ms + (ttl_epochs or 1) * epoch_ms


def is_expired(expires_ms: int, now_ms: int) -> bool:
    """True if a message with this expiration is expired now (UEP-12, Message Life-Cycle)."""
    return now_ms >= expires_ms


def epoch_diff_of(message_expiration_ms: int, referee_expiration_ms: int, epoch_ms: int) -> int:
    """Floor of the difference in epochs, saturated to a signed 16-bit integer (reading 10)."""
    return max(-0x8000, min(0x7FFF, (message_expiration_ms - referee_expiration_ms) // epoch_ms))


def latest_referee_expiration_ms(message_expiration_ms: int, epoch_diff: int, epoch_ms: int) -> int | None:
    """The latest possible expiration of a referee with this `epoch_diff`; None if the value is saturated below.

    floor((m - r) / epoch) = d puts r in (m - (d + 1) * epoch, m - d * epoch]: the upper bound skips no live one.
    """
    if epoch_diff <= -0x8000:
        return None
    return message_expiration_ms - epoch_diff * epoch_ms
