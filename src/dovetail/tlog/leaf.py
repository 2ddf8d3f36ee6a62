"""The leaf entry of one hop, as hashed into the Merkle tree.

Leaf entry, version 1 (all integers big-endian):

    offset  bytes  field
    0       1      version, 0x01
    1       8      seq, unsigned
    9       8      at, signed microseconds since 1970-01-01 UTC
    17      32     message: the address
    49      32     digest: SHA-256 of the bytes stored with this hop; zeros if it stores none
    81      8      size: bytes on the wire; 0 if this hop is not the first of the message
    89      1 + n  stage: length, ASCII
            1 + n  reason: length (0 is none), ASCII
            2 + n  counterpart: length (0 is none), UTF-8
"""

from __future__ import annotations

import functools
import hashlib
import struct
from collections.abc import Callable, Sequence

from dovetail.model.address import ADDRESS_BYTES
from dovetail.model.hop import Hop, Reason, Stage

ENTRY_VERSION = 1
NO_DIGEST = bytes(32)
MAX_COUNTERPART_BYTES = 8192

_HEAD = struct.Struct(">BQq32s32sQ")
_LEAF_HEAD = struct.Struct(">xBQq32s32sQ")
_LENGTH16 = struct.Struct(">H")
_SEQ = struct.Struct(">Q")


def encode_entry(hop: Hop, digest: bytes = NO_DIGEST) -> bytes:
    """Encode the leaf entry of one hop; `digest` is that of the bytes stored with it."""
    head = _HEAD.pack(ENTRY_VERSION, hop.seq, hop.at_us, hop.message, digest, hop.size or 0)
    return head + encode_tail(hop.stage, hop.reason, hop.counterpart)


encode_head: Callable[[int, int, bytes, bytes, int], bytes] = functools.partial(_LEAF_HEAD.pack, ENTRY_VERSION)
"""The input of a leaf hash up to the tail: the leaf prefix and the fixed part of the entry, from the hop's position and
time, its message, and the digest and size of the bytes that it carries."""


def hash_run(
    first_seq: int,
    at_us: int,
    message: bytes,
    tails: Sequence[bytes],
    digest: bytes,
    size: int,
) -> list[bytes]:
    """Leaf hashes of a run, given the tail of each hop; only the first hop can have `digest` and `size`."""
    sha256 = hashlib.sha256
    leaves = [sha256(encode_head(first_seq, at_us, message, digest, size) + tails[0]).digest()]
    if len(tails) > 1:
        pack_seq, middle = _SEQ.pack, encode_head(0, at_us, message, NO_DIGEST, 0)[10:]
        for seq, tail in enumerate(tails[1:], first_seq + 1):
            leaves.append(sha256(b"\x00\x01" + pack_seq(seq) + middle + tail).digest())
    return leaves


def encode_tail(stage: Stage, reason: Reason | None, counterpart: str | None) -> bytes:
    """Encode the end of an entry: stage, reason and counterpart."""
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


assert _HEAD.size == 17 + 2 * ADDRESS_BYTES + 8
