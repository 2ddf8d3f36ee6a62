"""swarm: what the bytes of content messages say, read by native expressions with the offsets of `swarm.content`.

Swarms have most of the messages of a lake, and their messages are a few integers and hashes at fixed places. Shipping
the bytes to Python and the fields back took longer than all else that is done with them. `decode_swarm` reads the same
by columns with numpy, for whoever has no Spark at hand; a test holds the two against each other and the codec.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows it by

from dovetail.audit.decode_swarm import HEAD_BYTES
from dovetail.audit.native import SHA256_BYTES, big_endian, little_endian, sha256
from dovetail.model.hop import Reason, Relation
from dovetail.swarm import content as c

_TIME_BITS = 48
_HEAD_BITS = 64 - 8 * (c.VERSION_OFFSET + 1)
_SATURATED = -0x8000
_END = 1 << 30


def swarm_fields(waiting: DataFrame, *, epochs: Mapping[str, int]) -> DataFrame:
    """The columns of `DECODED_SWARM` from rows with `DECODER_INPUT`; `epochs` are by swarm, "" for all others."""
    raw = F.col("raw")
    parsed = waiting.select(
        "digest",
        "size",
        "work_valid",
        "raw",
        F.octet_length(raw).alias("length"),
        F.shiftrightunsigned(big_endian(_slice(0, c.VERSION_OFFSET + 1)), _HEAD_BITS).alias("head"),
        little_endian(_slice(c.TIME_OFFSET, c.FLAGS_OFFSET - c.TIME_OFFSET)).alias("times"),
        little_endian(_slice(c.FLAGS_OFFSET, 1)).bitwiseAND(c.COUNT_MASK).cast("int").alias("count"),
        _by_swarm(epochs).cast("bigint").alias("epoch"),
    )
    created = F.col("times").bitwiseAND((1 << _TIME_BITS) - 1)
    lifetime = F.greatest(F.shiftrightunsigned("times", _TIME_BITS), F.lit(1).cast("bigint")) * F.col("epoch")
    judged = parsed.select(
        "*", created.alias("created"), (created + lifetime).alias("expires"), _refusal().alias("reject")
    )
    is_good = F.col("reject").isNull()
    return judged.select(
        "digest",
        "size",
        "work_valid",
        F.when(is_good, F.col("created") * 1000).alias("created_us"),
        F.when(is_good, F.col("expires") * 1000).alias("expires_us"),
        F.slice(
            F.array(*(_reference(i) for i in range(c.MAX_REFERENCES))),
            F.lit(1),
            F.when(is_good, F.col("count")).otherwise(0),
        ).alias("links"),
        "reject",
    )


def has_work(swarm: Column, targets: Mapping[str, int]) -> Column:
    """Whether the work of `raw` lies below its swarm's target; binary compares like big-endian numbers."""
    high = _slice(c.TIME_HIGH_OFFSET, c.TTL_OFFSET - c.TIME_HIGH_OFFSET)
    work = sha256(F.concat(high, _slice(0, c.TIME_HIGH_OFFSET), _slice(c.TTL_OFFSET, _END)))
    limit = F.lit(targets[""].to_bytes(SHA256_BYTES))
    for name, target in targets.items():
        if name:
            limit = F.when(swarm == name, F.lit(target.to_bytes(SHA256_BYTES))).otherwise(limit)
    return work < limit


def _slice(start: int, length: int) -> Column:
    return F.substring("raw", start + 1, length)


def _by_swarm(epochs: Mapping[str, int]) -> Column:
    epoch = F.lit(epochs[""])
    for name, own in epochs.items():
        if name:
            epoch = F.when(F.col("swarm") == name, F.lit(own)).otherwise(epoch)
    return epoch


def _refusal() -> Column:
    """What is wrong with a message, in the order of refusals of reading 16."""
    length, head, count = F.col("length"), F.col("head"), F.col("count")
    needed = F.least(c.FIXED_BYTES + c.REFERENCE_BYTES * count, F.lit(HEAD_BYTES))
    byte = [F.shiftright(head, 8 * (c.VERSION_OFFSET - i)).bitwiseAND(0xFF) for i in range(c.VERSION_OFFSET + 1)]
    refusals = (
        (length < 2, Reason.TRUNCATED),
        (F.col("size") > c.MAX_CONTENT_BYTES, Reason.TOO_LARGE),
        (byte[0] != c.INDICATOR, Reason.BAD_INDICATOR),
        (byte[1] != c.OPCODE_CONTENT, Reason.UNKNOWN_OPCODE),
        ((length > c.VERSION_OFFSET) & (byte[c.VERSION_OFFSET] != c.VERSION), Reason.UNSUPPORTED_VERSION),
        ((length >= c.FIXED_BYTES) & (count > c.MAX_REFERENCES), Reason.BAD_REFERENCE_COUNT),
        (length < needed, Reason.TRUNCATED),
    )
    refusal = F.lit(None).cast("string")
    for is_refused, reason in reversed(refusals):
        refusal = F.when(is_refused, reason.value).otherwise(refusal)
    return refusal


def _reference(index: int) -> Column:
    """One reference: whom it names, and when that is certainly expired, unless the difference is saturated."""
    at = c.FIXED_BYTES + c.REFERENCE_BYTES * index
    # the low sixteen bits as they stand are the signed number
    epochs = little_endian(_slice(at + c.HASH_BYTES, c.REFERENCE_BYTES - c.HASH_BYTES)).cast("smallint")
    expires = F.col("expires") - epochs.cast("bigint") * F.col("epoch")
    reference = F.struct(
        _slice(at, c.HASH_BYTES).alias("parent"),
        F.lit(Relation.REFERS.value).alias("relation"),
        F.when(epochs > _SATURATED, expires * 1000).alias("parent_expires_us"),
    )
    # what is cut off in the end is not read at all: messages refer to two others on the average, not to four
    return F.when(F.col("count") > index, reference)
