"""Messages that contradict each other, or the rules of the graph, with the messages themselves as evidence."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the conventional name

from dovetail.audit.fabric_audit import FabricAudit, ForkRule, by_fabric, is_of, union

SELF_REFERENCE = "self_reference"
AGAINST_TIME = "against_time"
CYCLE = "cycle"

PAIR_KINDS = (SELF_REFERENCE, AGAINST_TIME, CYCLE)
"""These are about two messages each; all others are about any number of messages that contradict each other."""

COLUMNS = ("fabric", "kind", "author", "subject", "evidence", "first_seen")


def forks(
    suspect_links: DataFrame,
    holdings: DataFrame,
    messages: DataFrame,
    links: DataFrame,
    *,
    audits: Sequence[FabricAudit],
) -> DataFrame:
    """All contradictions among messages that some server accepted or created."""
    parts = [shared_keys(holdings, audits), *circular_links(holdings, links, audits)]
    parts += group_forks(holdings, messages, links, audits)
    if any(audit.against_time for audit in audits):
        parts.append(edge_forks(suspect_links, holdings, links, audits))
    return union(parts).select(*COLUMNS)


def group_forks(
    holdings: DataFrame, messages: DataFrame, links: DataFrame, audits: Iterable[FabricAudit]
) -> list[DataFrame]:
    """Messages of which there may be only one, by the rules of each fabric."""
    seen = holdings.where(F.col("first_seen").isNotNull()).select(
        "fabric", "message", F.col("first_seen").alias("seen")
    )
    parts = []
    for audit in audits:
        is_own = F.col("fabric") == audit.name
        taken = messages.where(is_own).join(seen.where(is_own).drop("fabric"), on="message", how="inner")
        own_links = links.where(is_own)
        parts += [_grouped(rule.rows(taken, own_links), audit.name, rule) for rule in audit.forks]
    return parts


def circular_links(holdings: DataFrame, links: DataFrame, audits: Iterable[FabricAudit]) -> list[DataFrame]:
    """Cycles that times cannot reveal."""
    return [
        audit.circles(*(table.where(F.col("fabric") == audit.name) for table in (holdings, links)))
        for audit in audits
        if audit.circles is not None
    ]


def edge_forks(
    suspect_links: DataFrame, holdings: DataFrame, links: DataFrame, audits: Sequence[FabricAudit]
) -> DataFrame:
    """Edges that are impossible in a growing graph."""
    graphs = [audit for audit in audits if audit.against_time is not None]
    ends = _ends(suspect_links, holdings, graphs)
    return broken_edges(ends, graphs).unionByName(cycles(ends, links)).select(*COLUMNS)


def shared_keys(holdings: DataFrame, audits: Sequence[FabricAudit]) -> DataFrame:
    """Two messages with the same key."""
    keyed = [audit for audit in audits if audit.shared_key is not None]
    taken = holdings.where(is_of(keyed) & F.col("is_decoded") & F.col("first_seen").isNotNull())
    # count first, over fixed-width columns: hardly any key is shared, and only those are collected
    shared = taken.groupBy("fabric", "key").agg(F.count("*").alias("many")).where("many > 1").select("fabric", "key")
    grouped = (
        taken.join(shared, on=["fabric", "key"], how="left_semi")
        .groupBy("fabric", "key")
        .agg(
            F.sort_array(F.collect_set("message")).alias("evidence"),
            F.max("first_seen").alias("first_seen"),
            F.min("sender").alias("author"),
        )
    )
    return grouped.select(
        "fabric",
        by_fabric(keyed, lambda audit: F.lit(audit.shared_key), F.lit(None).cast("string")).alias("kind"),
        "author",
        F.col("key").alias("subject"),
        "evidence",
        "first_seen",
    )


def broken_edges(ends: DataFrame, audits: Sequence[FabricAudit]) -> DataFrame:
    """References to oneself, and to messages that are not older."""
    is_self = F.col("child") == F.col("parent_message")
    is_against = by_fabric(
        audits, lambda audit: audit.against_time() if audit.against_time is not None else False, F.lit(False)
    )
    return ends.where(is_self | is_against).select(
        "fabric",
        F.when(is_self, SELF_REFERENCE).otherwise(AGAINST_TIME).alias("kind"),
        F.col("signer").alias("author"),
        F.col("child").alias("subject"),
        F.array_distinct(F.array("child", "parent_message")).alias("evidence"),
        F.greatest("seen", "parent_seen").alias("first_seen"),
    )


def cycles(ends: DataFrame, links: DataFrame) -> DataFrame:
    """Two messages that refer to each other. A longer cycle also has an edge against time, and is found by that.

    At least one of two such edges leads to a message that is not older, so only those need to be searched in reverse.
    """
    pairs = ends.where(F.col("child") != F.col("parent_message"))
    back = links.select("fabric", F.col("child").alias("parent_message"), F.col("parent").alias("key")).distinct()
    both = pairs.join(back, on=["fabric", "parent_message", "key"], how="inner")
    first, second = F.least("child", "parent_message"), F.greatest("child", "parent_message")
    is_first = F.col("child") == first
    found = both.select(
        "fabric",
        F.lit(CYCLE).alias("kind"),
        F.when(is_first, F.col("signer")).otherwise(F.col("parent_signer")).alias("author"),
        first.alias("subject"),
        F.array(first, second).alias("evidence"),
        F.greatest("seen", "parent_seen").alias("first_seen"),
    )
    return found.distinct()  # both edges may lead to a message that is not older: keep the pair once


def _ends(suspect_links: DataFrame, holdings: DataFrame, audits: Sequence[FabricAudit]) -> DataFrame:
    """Edges to messages that are not older, with both ends accepted by some server."""
    taken = holdings.where(F.col("first_seen").isNotNull()).select(
        "fabric", F.col("message").alias("child"), "key", "signer", F.col("first_seen").alias("seen")
    )
    odd = suspect_links.where(
        is_of(audits)
        & (F.col("parent_created") >= F.col("child_created"))
        & F.col("parent_decoded")
        & F.col("parent_seen").isNotNull()
    ).select(
        "fabric",
        "child",
        F.col("child_created").alias("created"),
        "parent_message",
        "parent_created",
        "parent_signer",
        "parent_seen",
    )
    return odd.join(taken, on=["fabric", "child"], how="inner")


def _grouped(rows: DataFrame, fabric: str, rule: ForkRule) -> DataFrame:
    """Groups of more than one message, as forks."""
    grouped = (
        rows.groupBy(*rule.by)
        .agg(F.sort_array(F.collect_set("message")).alias("evidence"), F.max("seen").alias("first_seen"))
        .where(F.size("evidence") > 1)
    )
    return grouped.select(
        F.lit(fabric).alias("fabric"),
        F.lit(rule.kind).alias("kind"),
        F.col(rule.author).alias("author"),
        F.col(rule.subject).alias("subject"),
        "evidence",
        "first_seen",
    )
