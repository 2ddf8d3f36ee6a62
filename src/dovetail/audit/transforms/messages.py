"""Silver from bytes: what is still to be decoded, and what decoding gave as messages, links, keys and quarantine."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows it by

from dovetail.audit.decode import DECODED_SCHEMA
from dovetail.audit.decode_swarm import DECODED_SWARM, HEAD_BYTES, MESSAGE_TYPE
from dovetail.audit.native import sha256
from dovetail.audit.transforms.hops import ADDRESS_MISMATCH
from dovetail.audit.transforms.swarm_messages import has_work
from dovetail.model.hop import Stage
from dovetail.swarm.content import HASH_BYTES, VERSION
from dovetail.swarm.uri import SWARM_NAME_PATTERN

_HASHED = ("pcp", "swarm")
"""Fabrics whose address is the SHA-256 of the wire bytes."""

_MISPLACED = "the bytes are not those of this address"


def undecoded(rows: DataFrame, decoded: DataFrame | None, *, targets: Mapping[str, int]) -> DataFrame:
    """Each sequence of bytes once that was not decoded before; the work of swarm messages is computed here.

    Bytes under a wrong address are left out, and so is evidence that was cut. `targets` are by swarm, "" for others.
    """
    # moved by the digest first, copies meet in one place: hardly any would have met before, where each row lay.
    # The other columns follow from the digest: grouping by all of them picks one copy of each
    each = decodable(rows, targets=targets).repartition("digest").distinct()
    if decoded is not None:
        each = each.join(decoded.select("fabric", "digest"), on=["fabric", "digest"], how="left_anti")
    swarm = F.col("swarm") if "swarm" in each.columns else F.lit("").alias("swarm")
    return each.select("fabric", "digest", "raw", "size", swarm, "work_valid")


def decodable(rows: DataFrame, *, targets: Mapping[str, int]) -> DataFrame:
    """What the decoders take of rows that have all of a message's bytes, under its own address.

    Only swarms with rules of their own are told apart (`swarm`), so that one message stays one row.
    """
    own: list[Column] = []
    swarm = F.lit("")
    if named := [name for name in targets if name]:
        said = F.when(F.col("fabric") == "swarm", F.regexp_extract("server", SWARM_NAME_PATTERN, 1))
        swarm = F.when(said.isin(*named), said).otherwise(F.lit(""))
        own = [swarm.alias("swarm")]
    is_swarm = F.col("fabric") == "swarm"
    return rows.where(
        F.col("raw").isNotNull() & ~is_cut() & ((F.col("fabric") == "won") | (F.col("digest") == F.col("message")))
    ).select(
        "fabric",
        "digest",
        F.when(is_swarm, F.substring("raw", 1, HEAD_BYTES)).otherwise(F.col("raw")).alias("raw"),
        F.octet_length("raw").cast("bigint").alias("size"),
        F.when(is_swarm, has_work(swarm, targets)).alias("work_valid"),
        *own,
    )


def widen_swarm(decoded: DataFrame) -> DataFrame:
    """All columns of `DECODED` from what the decoder of swarm messages gives."""
    key = F.substring("digest", 1, HASH_BYTES)
    own = {
        "fabric": F.lit("swarm"),
        "message": F.col("digest"),
        "key": key,
        "id": F.lower(F.hex(key)),
        "type": F.lit(MESSAGE_TYPE),
        "version": F.lit(str(VERSION)),
        "address_valid": F.lit(True),
        **{name: F.col(name) for name in DECODED_SWARM.names},
    }
    return decoded.select(
        *(own.get(field.name, F.lit(None).cast(field.dataType)).alias(field.name) for field in DECODED_SCHEMA)
    )


def unread(recorded: DataFrame, decoded: DataFrame, waiting: DataFrame) -> DataFrame:
    """What a compaction kept of messages whose bytes it removed, where the bytes were not and will not be decoded."""
    return (
        recorded.dropDuplicates(["fabric", "digest"])
        .join(decoded.select("fabric", "digest"), on=["fabric", "digest"], how="left_anti")
        .join(waiting.select("fabric", "digest"), on=["fabric", "digest"], how="left_anti")
        .select(*recorded.columns)
    )


def is_cut() -> Column:
    """Evidence of a refusal may be kept only in part."""
    return (F.col("stage") == Stage.REJECTED.value) & (F.octet_length("raw") < F.col("size"))


def messages(decoded: DataFrame, verdicts: DataFrame, keys: DataFrame) -> DataFrame:
    """One row per address whose bytes were found."""
    return plain_messages(decoded).unionByName(signed_messages(decoded, verdicts, keys))


def plain_messages(decoded: DataFrame) -> DataFrame:
    """Messages of fabrics without signatures."""
    return decoded.where(F.col("reject").isNull() & F.col("fabric").isin(*_HASHED)).select(
        *_message_columns(F.lit(None).cast("string"))
    )


def signed_messages(decoded: DataFrame, verdicts: DataFrame, keys: DataFrame) -> DataFrame:
    """Messages of won with what is known about their signatures by now.

    A message whose signer published a key, but not the one it names, is invalid; without any it is unknown.
    """
    owners = (
        keys.where(F.col("message").isNotNull())
        .select(F.col("owner").alias("signer"))
        .distinct()
        .withColumn("has_key", F.lit(True))
    )
    believed = decoded.where(F.col("reject").isNull() & (F.col("fabric") == "won") & F.col("address_valid"))
    judged = believed.join(verdicts.select("message", "valid"), on="message", how="left").join(
        owners, on="signer", how="left"
    )
    signature = (
        F.when(~F.col("claims_valid"), "invalid")
        .when(F.col("valid"), "valid")
        .when(F.col("valid").isNotNull() | F.col("has_key"), "invalid")
        .otherwise("unknown_key")
    )
    # two spellings of the same canonical content have one address: one of them stands for both
    return judged.dropDuplicates(["message"]).select(*_message_columns(signature))


def links(decoded: DataFrame) -> DataFrame:
    """References of all messages that decode."""
    each = decoded.where(F.col("reject").isNull() & F.col("address_valid")).select(
        "fabric", F.col("message").alias("child"), "created_us", F.explode("links").alias("link")
    )
    return each.select(
        "fabric",
        "child",
        "link.parent",
        "link.relation",
        F.timestamp_micros("link.parent_expires_us").alias("parent_expires"),
        F.timestamp_micros("created_us").alias("child_created"),
    )


def published_keys(decoded: DataFrame) -> DataFrame:
    """Keys that Create messages publish, if the message's address is true."""
    return decoded.where(F.col("public_key").isNotNull() & F.col("address_valid") & F.col("reject").isNull()).select(
        F.col("key_owner").alias("owner"), F.col("public_key").alias("key"), "message"
    )


def to_verify(decoded: DataFrame, verdicts: DataFrame, keys: DataFrame) -> DataFrame:
    """Messages without a verdict whose signer's key is known, with that key."""
    fingerprint = F.base64(sha256(F.col("key")))
    known = keys.select(
        F.col("owner").alias("signer"), fingerprint.alias("fingerprint"), F.col("key").alias("public_key")
    ).distinct()
    waiting = decoded.where(F.col("reject").isNull() & F.col("signature").isNotNull() & F.col("address_valid")).select(
        "message", "signer", "fingerprint", "signed_digest", "signature", "claims_valid"
    )
    return (
        waiting.join(verdicts.select("message"), on="message", how="left_anti")
        .join(known, on=["signer", "fingerprint"], how="inner")
        .select("message", "public_key", "signed_digest", "signature", "claims_valid")
        .dropDuplicates(["message"])
    )


def disbelieved(rows: DataFrame, decoded: DataFrame, *, few_rejects: bool = True) -> DataFrame:
    """Rows whose bytes do not decode, or are not those of the address they stand under, for the quarantine.

    `decoded` is what decoding gave for the bytes of these rows. Of hashed fabrics only what did not decode has to be
    looked up; if that is little it goes to the rows, instead of the rows with their bytes to it.
    """
    with_bytes = rows.where(F.col("raw").isNotNull() & ~is_cut())
    judged = decoded.select("fabric", "digest", F.col("message").alias("true_message"), "reject", "detail")
    is_hashed = F.col("fabric").isin(*_HASHED)
    misplaced = with_bytes.where(is_hashed & (F.col("digest") != F.col("message")))
    rejects = judged.where(is_hashed & F.col("reject").isNotNull())
    unread = with_bytes.where(is_hashed & (F.col("digest") == F.col("message"))).join(
        rejects.hint("broadcast") if few_rejects else rejects, on=["fabric", "digest"], how="inner"
    )
    signed = with_bytes.where("fabric = 'won'").join(
        judged.where("fabric = 'won'"), on=["fabric", "digest"], how="inner"
    )
    disproved = signed.where(F.col("reject").isNotNull() | (F.col("true_message") != F.col("message")))
    of_misplaced = misplaced.select("*", F.lit(ADDRESS_MISMATCH).alias("why"), F.lit(_MISPLACED).alias("words"))
    is_read = F.col("reject").isNull()
    of_unread = unread.unionByName(disproved).select(
        *rows.columns,
        F.when(is_read, ADDRESS_MISMATCH).otherwise(F.col("reject")).alias("why"),
        F.when(is_read, _MISPLACED).otherwise(F.col("detail")).alias("words"),
    )
    return of_misplaced.unionByName(of_unread).select(
        "fabric",
        "server",
        "seq",
        "at",
        "stage",
        "message",
        F.col("why").alias("reason"),
        F.col("words").alias("detail"),
        F.col("raw").alias("bytes"),
    )


def _message_columns(signature: Column) -> list[Column]:
    return [
        *(F.col(name) for name in ("fabric", "message", "key", "id", "type", "sender", "recipients")),
        F.timestamp_micros("created_us").alias("created"),
        F.timestamp_micros("expires_us").alias("expires"),
        *(F.col(name) for name in ("size", "version", "direction", "connection", "sender_socket")),
        *(F.col(name) for name in ("recipient_socket", "responding_to_type", "signer", "address_valid")),
        F.lit(True).alias("schema_valid"),
        signature.alias("signature"),
        F.col("work_valid"),
    ]
