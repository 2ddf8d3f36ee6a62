"""How the hops of one commit are encoded.

Runs of one commit: a MessagePack array; a run is one observation, that is one hop for each counterpart:

        [message id, stage code, reason code (0 is none), microseconds after the previous run, counterparts]

    `counterparts` is nil (one hop without counterpart), an integer (one name id) or a binary of little-endian unsigned
    32-bit name ids. The time of the first run is relative to the commit's `first_at_us`.
"""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Mapping
from sys import byteorder

import msgspec

from dovetail.fast import twin
from dovetail.model.errors import JournalDamaged
from dovetail.model.hop import Reason, Stage

MAX_COUNTERPARTS = 1 << 20

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
        """The number of hops it represents."""
        return len(self.counterparts) // 4 if self.counterparts.__class__ is bytes and self.counterparts else 1


@twin
def crc32(data: bytes) -> int:
    """The checksum of a row."""
    return zlib.crc32(data)


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[Run])
encode_runs = _encoder.encode


def decode_runs(blob: bytes, first_seq: int, count: int) -> list[Run]:
    """Decode the runs of a commit; JournalDamaged names the range if the bytes are not what was written."""
    try:
        return _decoder.decode(blob)
    except msgspec.DecodeError as error:
        raise JournalDamaged(f"hops {first_seq} to {first_seq + count - 1}: {error}") from None


def pack_names(name_ids: list[int]) -> Counterparts:
    """Encode the counterparts of a run in the smallest form."""
    if len(name_ids) == 1:
        return name_ids[0]
    packed = array("I", name_ids)
    if byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def unpack_names(counterparts: Counterparts) -> list[int]:
    """Name ids of a run; empty if it has no counterpart."""
    if counterparts is None:
        return []
    if isinstance(counterparts, int):
        return [counterparts]
    packed = array("I")
    packed.frombytes(counterparts)
    if byteorder == "big":
        packed.byteswap()
    return packed.tolist()


assert array("I").itemsize == 4
