"""How hops lie in bytes: the leaf entry that the tree commits to, and the runs of one commit.

Leaf entry, version 1 (all integers big-endian):

    offset  bytes  field
    0       1      version, 0x01
    1       8      seq, unsigned
    9       8      at, signed microseconds since 1970-01-01 UTC
    17      32     message: the address
    49      32     digest: SHA-256 of the bytes kept on this hop; zeros where this hop keeps none
    81      8      size: bytes on the wire; 0 where this hop did not see the message first
    89      1 + n  stage: length, ASCII
            1 + n  reason: length (0 is none), ASCII
            2 + n  counterpart: length (0 is none), UTF-8

Runs of one commit: a MessagePack array; a run is one observation, that is one hop for each counterpart:

    [message id, stage code, reason code (0 is none), microseconds after the run before it, counterparts]

`counterparts` is nil (one hop without counterpart), an integer (one name id) or a binary of little-endian unsigned
32-bit name ids. The time of the first run counts from the commit's `first_at_us`.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from array import array
from collections.abc import Mapping, Sequence
from sys import byteorder

import msgspec

from dovetail.errors import JournalDamaged
from dovetail.hop import ADDRESS_BYTES, Hop, Reason, Stage

ENTRY_VERSION = 1
NO_DIGEST = bytes(32)
MAX_COUNTERPART_BYTES = 8192
MAX_COUNTERPARTS = 1 << 20

_HEAD = struct.Struct(">BQq32s32sQ")
_LEAF_HEAD = struct.Struct(">xBQq32s32sQ")
_LENGTH16 = struct.Struct(">H")
_SEQ = struct.Struct(">Q")

STAGE_OF_CODE: Mapping[int, Stage] = {stage.code: stage for stage in Stage}
REASON_OF_CODE: Mapping[int, Reason] = {reason.code: reason for reason in Reason}

Counterparts = int | bytes | None


class Run(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One observation inside a commit."""

    message_id: int
    stage: int
    reason: int
    after_us: int
    counterparts: Counterparts

    @property
    def count(self) -> int:
        """How many hops it stands for."""
        return len(self.counterparts) // 4 if self.counterparts.__class__ is bytes and self.counterparts else 1


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[Run])
encode_runs = _encoder.encode


def decode_runs(blob: bytes, crc: int, first_seq: int, count: int) -> list[Run]:
    """The runs of a commit; JournalDamaged names the range where the bytes are not what was written."""
    if zlib.crc32(blob) != crc:
        raise JournalDamaged(f"hops {first_seq} to {first_seq + count - 1}: checksum of the commit does not match")
    try:
        runs = _decoder.decode(blob)
    except msgspec.DecodeError as error:
        raise JournalDamaged(f"hops {first_seq} to {first_seq + count - 1}: {error}") from None
    return runs


def pack_names(name_ids: list[int]) -> Counterparts:
    """The counterparts of a run in the smallest form."""
    if len(name_ids) == 1:
        return name_ids[0]
    packed = array("I", name_ids)
    if byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def unpack_names(counterparts: Counterparts) -> list[int]:
    """Name ids of a run; empty where it has no counterpart."""
    if counterparts is None:
        return []
    if isinstance(counterparts, int):
        return [counterparts]
    packed = array("I")
    packed.frombytes(counterparts)
    if byteorder == "big":
        packed.byteswap()
    return packed.tolist()


def encode_entry(hop: Hop, digest: bytes = NO_DIGEST) -> bytes:
    """The leaf entry of one hop; `digest` is that of the bytes kept on this hop."""
    head = _HEAD.pack(ENTRY_VERSION, hop.seq, hop.at_us, hop.message, digest, hop.size or 0)
    return head + encode_tail(hop.stage, hop.reason, hop.counterpart)


def hash_run(
    first_seq: int,
    at_us: int,
    message: bytes,
    tails: Sequence[bytes],
    digest: bytes,
    size: int,
) -> list[bytes]:
    """Leaf hashes of a run, given the tail of each hop; only its first hop can carry `digest` and `size`."""
    sha256, pack = hashlib.sha256, _LEAF_HEAD.pack
    leaves = [sha256(pack(ENTRY_VERSION, first_seq, at_us, message, digest, size) + tails[0]).digest()]
    if len(tails) > 1:
        pack_seq, middle = _SEQ.pack, pack(ENTRY_VERSION, 0, at_us, message, NO_DIGEST, 0)[10:]
        for seq, tail in enumerate(tails[1:], first_seq + 1):
            leaves.append(sha256(b"\x00\x01" + pack_seq(seq) + middle + tail).digest())
    return leaves


def encode_tail(stage: Stage, reason: Reason | None, counterpart: str | None) -> bytes:
    """The end of an entry: stage, reason and counterpart."""
    stage_text, reason_text = stage.encode(), (reason or "").encode()
    encoded = (counterpart or "").encode()
    return b"".join(
        (
            bytes([len(stage_text)]),
            stage_text,
            bytes([len(reason_text)]),
            reason_text,
            _LENGTH16.pack(len(encoded)),
            encoded,
        )
    )


assert array("I").itemsize == 4
assert _HEAD.size == 17 + 2 * ADDRESS_BYTES + 8
