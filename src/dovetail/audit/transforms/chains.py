"""Chains: a message with the responses that acknowledge it, combined from the journals of all servers.

Each fabric defines how far a chain got (`FabricAudit.chains`); this module has what they share.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the conventional name

from dovetail.audit.fabric_audit import FabricAudit, union
from dovetail.audit.schemas import CHAINS
from dovetail.audit.transforms.holdings import TAKEN
from dovetail.model.hop import Relation, Stage

COMPLETE, FAILED, ORPHAN = "complete", "failed", "orphan_response"
AWAITING_SENDER, AWAITING_RECIPIENT = "awaiting_sender", "awaiting_recipient"

_NEEDED = ("message", "type", "sender", "recipients", "sender_socket", "recipient_socket")


def chains(hops: DataFrame, messages: DataFrame, links: DataFrame, *, audits: Sequence[FabricAudit]) -> DataFrame:
    """The chains of these fabrics, and their responses to unknown messages."""
    parts = []
    for audit in audits:
        if audit.chains is not None:
            is_own = F.col("fabric") == audit.name
            parts.append(audit.chains(hops.where(is_own), messages.where(is_own), links.where(is_own)))
    return union(parts)


def seen_hops(hops: DataFrame) -> DataFrame:
    """When each message was first accepted or created, when first accepted from outside, and by which servers."""
    return (
        hops.where(F.col("stage").isin(*TAKEN))
        .groupBy("message")
        .agg(
            F.min("at").alias("made"),
            F.min(F.when(F.col("stage") == Stage.ACCEPTED.value, F.col("at"))).alias("taken"),
            F.sort_array(F.collect_set("server")).alias("holders"),
        )
    )


def responses(links: DataFrame, messages: DataFrame, seen: DataFrame, relation: Relation) -> DataFrame:
    """Messages with the `parent` that they answer, and when they were seen."""
    return (
        links.where(F.col("relation") == relation.value)
        .select(F.col("child").alias("message"), "parent")
        .join(messages.select(*_NEEDED), on="message", how="inner")
        .join(seen, on="message", how="left")
    )


def orphans(unknown: DataFrame, fabric: str) -> DataFrame:
    """Responses to unknown messages, as separate chains."""
    return unknown.select(
        F.lit(fabric).alias("fabric"),
        "message",
        F.lit("orphan").alias("kind"),
        "type",
        "sender",
        F.get("recipients", F.lit(0)).alias("recipient"),
        F.lit(None).cast("string").alias("conversation"),
        F.lit(ORPHAN).alias("state"),
        *(F.lit(None).cast("binary").alias(name) for name in ("first_response", "second_response", "failure")),
        F.col("made").alias("begun"),
        F.lit(None).cast("timestamp").alias("answered"),
        F.lit(None).cast("timestamp").alias("completed"),
        F.array().cast("array<string>").alias("only_at"),
    )


def finish_chains(rows: DataFrame) -> DataFrame:
    """The columns of the table, with the duration of each leg."""
    second_us = F.unix_micros("completed") - F.unix_micros("answered")
    return rows.select(
        "*",
        (F.unix_micros("answered") - F.unix_micros("begun")).alias("first_leg_us"),
        F.when(F.col("second_response").isNotNull(), second_us).alias("second_leg_us"),
    ).select(*CHAINS.schema.names)
