"""Silver from bytes: what is still to be decoded, and decoded messages, links, keys and quarantine."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the conventional name

from dovetail.audit.decode import VERIFY_COLUMNS, Agreements
from dovetail.audit.fabric_audit import FabricAudit, by_fabric, communal, is_of, union
from dovetail.audit.transforms.hops import ADDRESS_MISMATCH, quarantined
from dovetail.model.hop import Stage

_MISPLACED = "the bytes are not those of this address"


def undecoded(
    rows: DataFrame, decoded: DataFrame | None, *, audits: Sequence[FabricAudit], agreements: Agreements
) -> DataFrame:
    """Each distinct byte sequence that was not decoded before.

    Bytes under a wrong address and truncated evidence are left out.
    """
    # repartition by digest first, so that copies meet in one place: hardly any would be in the same partition before.
    # The other columns follow from the digest: grouping by all of them picks one copy of each
    each = decodable(rows, audits=audits, agreements=agreements).repartition("digest").distinct()
    if decoded is not None:
        each = each.join(decoded.select("fabric", "digest"), on=["fabric", "digest"], how="left_anti")
    community = F.col("community") if "community" in each.columns else F.lit("").alias("community")
    return each.select("fabric", "digest", "raw", "size", community, "work_valid")


def decodable(rows: DataFrame, *, audits: Sequence[FabricAudit], agreements: Agreements) -> DataFrame:
    """The decoder input of rows that have all of a message's bytes, under its own address.

    `community` is set only for communities with their own agreements, so that one message stays one row.
    """
    own: list[Column] = []
    community = F.lit("")
    named = [name for name in agreements if name]
    if named and communal(audits):
        said = by_fabric(communal(audits), lambda audit: audit.community(F.col("server")), F.lit(""))  # type: ignore[misc]
        community = F.when(said.isin(*named), said).otherwise(F.lit(""))
        own = [community.alias("community")]
    raw, work_valid = F.col("raw"), F.lit(None).cast("boolean")
    for audit in audits:
        if audit.native is not None:
            is_own = F.col("fabric") == audit.name
            judged = audit.native.has_work(community, audit.agreed(agreements))
            raw = F.when(is_own, F.substring("raw", 1, audit.native.head_bytes)).otherwise(raw)
            work_valid = F.when(is_own, judged).otherwise(work_valid)
    is_named = ~is_of(hashed(audits)) | (F.col("digest") == F.col("message"))
    return rows.where(F.col("raw").isNotNull() & ~is_cut() & is_named).select(
        "fabric",
        "digest",
        raw.alias("raw"),
        F.octet_length("raw").cast("bigint").alias("size"),
        work_valid.alias("work_valid"),
        *own,
    )


def hashed(audits: Iterable[FabricAudit]) -> list[FabricAudit]:
    """Those whose addresses are hashes of the bytes."""
    return [audit for audit in audits if audit.fabric.hashes_bytes]


def unread(
    recorded: DataFrame, rows: DataFrame, decoded: DataFrame, waiting: DataFrame, *, audits: Sequence[FabricAudit]
) -> DataFrame:
    """What compactions kept of messages whose bytes they removed, if the bytes were not and will not be decoded.

    Only those of messages that `rows` have without bytes. If two contradict each other, nobody can tell which is true.
    """
    own = ["fabric", "digest", "message", "size"]
    lacking = rows.where(is_of(hashed(audits)) & F.col("raw").isNull() & (F.col("digest") == F.col("message")))
    return (
        recorded.where("address_valid")
        .join(lacking.select(*own), on=own, how="left_semi")
        .groupBy("fabric", "digest")
        .agg(F.collect_set(F.struct(*recorded.columns)).alias("said"))
        .where(F.size("said") == 1)
        .select(F.inline("said"))
        .join(decoded.select("fabric", "digest"), on=["fabric", "digest"], how="left_anti")
        .join(waiting.select("fabric", "digest"), on=["fabric", "digest"], how="left_anti")
        .select(*recorded.columns)
    )


def is_cut() -> Column:
    """True if evidence of a refusal was kept only in part."""
    return (F.col("stage") == Stage.REJECTED.value) & (F.octet_length("raw") < F.col("size"))


def messages(decoded: DataFrame, verdicts: DataFrame, keys: DataFrame, *, audits: Sequence[FabricAudit]) -> DataFrame:
    """One row per address whose bytes were found."""
    parts = []
    for is_signed, is_hashed in itertools.product((False, True), repeat=2):
        own = [a for a in audits if (a.fabric.is_signed, a.fabric.hashes_bytes) == (is_signed, is_hashed)]
        if own:
            read = decoded.where(is_of(own) & F.col("reject").isNull() & F.col("address_valid"))
            part = signed_messages(read, verdicts, keys) if is_signed else unsigned_messages(read)
            # two spellings of the same canonical content have one address: keep one of them
            parts.append(part if is_hashed else part.dropDuplicates(["fabric", "message"]))
    return union(parts)


def unsigned_messages(decoded: DataFrame) -> DataFrame:
    """Messages that decode."""
    return decoded.select(*_message_columns(F.lit(None).cast("string")))


def signed_messages(decoded: DataFrame, verdicts: DataFrame, keys: DataFrame) -> DataFrame:
    """Messages that decode, with what is known about their signatures.

    A message is invalid if its signer published a key, but not the one it names; if it published none, unknown.
    """
    owners = (
        keys.where(F.col("message").isNotNull())
        .select(F.col("owner").alias("signer"))
        .distinct()
        .withColumn("has_key", F.lit(True))
    )
    judged = decoded.join(verdicts.select("message", "valid"), on="message", how="left").join(
        owners, on="signer", how="left"
    )
    signature = (
        F.when(~F.col("claims_valid"), "invalid")
        .when(F.col("valid"), "valid")
        .when(F.col("valid").isNotNull() | F.col("has_key"), "invalid")
        .otherwise("unknown_key")
    )
    return judged.select(*_message_columns(signature))


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
    """Keys that Create messages publish, if the message's address is correct."""
    return decoded.where(F.col("public_key").isNotNull() & F.col("address_valid") & F.col("reject").isNull()).select(
        F.col("key_owner").alias("owner"), F.col("public_key").alias("key"), "message"
    )


def to_verify(decoded: DataFrame, verdicts: DataFrame, keys: DataFrame, audit: FabricAudit) -> DataFrame:
    """Messages of a fabric that have no verdict yet and whose signer's key is known, with that key."""
    if audit.fingerprint is None:
        raise ValueError(f"messages of {audit.name} are signed, but its audit does not say how they name keys")
    known = keys.select(
        F.col("owner").alias("signer"),
        audit.fingerprint(F.col("key")).alias("fingerprint"),
        F.col("key").alias("public_key"),
    ).distinct()
    waiting = decoded.where(
        (F.col("fabric") == audit.name)
        & F.col("reject").isNull()
        & F.col("signature").isNotNull()
        & F.col("address_valid")
    ).drop("public_key")
    return (
        waiting.join(verdicts.select("message"), on="message", how="left_anti")
        .join(known, on=["signer", "fingerprint"], how="inner")
        .select(*VERIFY_COLUMNS)
        .dropDuplicates(["message"])
    )


def disbelieved(
    rows: DataFrame, decoded: DataFrame, *, audits: Sequence[FabricAudit], few_rejects: bool = True
) -> DataFrame:
    """Rows whose bytes do not decode, or do not belong to their address, for the quarantine.

    `decoded` is the result of decoding the bytes of these rows. In hashed fabrics only rejects have to be looked up;
    small reject sets are broadcast instead of shuffling the rows.
    """
    with_bytes = rows.where(F.col("raw").isNotNull() & ~is_cut())
    judged = decoded.select("fabric", "digest", F.col("message").alias("true_message"), "reject", "detail")
    is_hashed = is_of(hashed(audits))
    misplaced = with_bytes.where(is_hashed & (F.col("digest") != F.col("message")))
    rejects = judged.where(is_hashed & F.col("reject").isNotNull())
    unread = with_bytes.where(is_hashed & (F.col("digest") == F.col("message"))).join(
        rejects.hint("broadcast") if few_rejects else rejects, on=["fabric", "digest"], how="inner"
    )
    read = unread
    if len(hashed(audits)) < len(audits):
        named = with_bytes.where(~is_hashed).join(judged.where(~is_hashed), on=["fabric", "digest"], how="inner")
        disproved = named.where(F.col("reject").isNotNull() | (F.col("true_message") != F.col("message")))
        read = unread.unionByName(disproved)
    of_misplaced = misplaced.select("*", F.lit(ADDRESS_MISMATCH).alias("why"), F.lit(_MISPLACED).alias("words"))
    is_read = F.col("reject").isNull()
    of_unread = read.select(
        *rows.columns,
        F.when(is_read, ADDRESS_MISMATCH).otherwise(F.col("reject")).alias("why"),
        F.when(is_read, _MISPLACED).otherwise(F.col("detail")).alias("words"),
    )
    return quarantined(of_misplaced.unionByName(of_unread), F.col("why"), F.col("words"))


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
