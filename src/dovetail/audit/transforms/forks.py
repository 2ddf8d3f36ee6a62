"""Messages that contradict each other, or the rules of the graph, with the messages themselves as evidence."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows it by

from dovetail.fabrics import REGISTRY
from dovetail.model.hop import Relation
from dovetail.won.vocabulary import MessageType

FABRICS = tuple(REGISTRY)
CONFLICTING_RESPONSE = "conflicting_response"
FORKED_LOG = "forked_log"
TWO_CREATES = "two_creates"
SHARED_ID = "shared_id"
COLLISION = "collision"
SELF_REFERENCE = "self_reference"
AGAINST_TIME = "against_time"
CYCLE = "cycle"

GROUP_KINDS = (CONFLICTING_RESPONSE, FORKED_LOG, TWO_CREATES, SHARED_ID, COLLISION)
"""Any number of messages that contradict each other about one subject; the others are about two messages each."""


_COLUMNS = ("fabric", "kind", "author", "subject", "evidence", "first_seen")


def forks(
    edges: DataFrame,
    sightings: DataFrame,
    messages: DataFrame,
    links: DataFrame,
    *,
    fabrics: Sequence[str] = FABRICS,
) -> DataFrame:
    """All contradictions among messages that some server took in or made."""
    parts = [shared_keys(sightings)]
    if "pcp" in fabrics:
        parts.append(circular_replies(sightings, links))
    if "won" in fabrics:
        parts.append(signer_forks(sightings, messages, links))
    if set(fabrics) - {"pcp"}:
        parts.append(edge_forks(edges, sightings, links))
    return reduce(DataFrame.unionByName, parts).select(*_COLUMNS)


def signer_forks(sightings: DataFrame, messages: DataFrame, links: DataFrame) -> DataFrame:
    """won: signers that contradict themselves."""
    seen = sightings.where((F.col("fabric") == "won") & F.col("first_seen").isNotNull()).select(
        "message", F.col("first_seen").alias("seen")
    )
    taken = messages.where("fabric = 'won'").join(seen, on="message", how="inner")
    parts = [conflicting_responses(taken, links), forked_logs(taken, links), two_creates(taken)]
    return reduce(DataFrame.unionByName, parts).select(*_COLUMNS)


def edge_forks(edges: DataFrame, sightings: DataFrame, links: DataFrame) -> DataFrame:
    """swarm and won: edges that cannot be in a graph that grows."""
    ends = _ends(edges, sightings)
    return broken_edges(ends).unionByName(cycles(ends, links)).select(*_COLUMNS)


def conflicting_responses(taken: DataFrame, links: DataFrame) -> DataFrame:
    """won: one node with two different responses of the same role to one message."""
    is_first = F.col("sender_socket").eqNullSafe(F.col("recipient_socket"))
    answers = links.where((F.col("fabric") == "won") & (F.col("relation") == Relation.RESPONDING_TO.value))
    responses = answers.select(F.col("child").alias("message"), "parent").join(
        taken.where("fabric = 'won'").select("message", "signer", "seen", is_first.alias("is_first")),
        on="message",
        how="inner",
    )
    return _groups(responses, "won", CONFLICTING_RESPONSE, ["signer", "parent", "is_first"], "signer", "parent")


def forked_logs(taken: DataFrame, links: DataFrame) -> DataFrame:
    """won: one node with two responses in an atom's log that continue the same set of responses.

    In a connection that is no contradiction: a side's own responses never enter what its next one refers to.
    """
    sets = (
        links.where((F.col("fabric") == "won") & (F.col("relation") == Relation.PREVIOUS.value))
        .groupBy(F.col("child").alias("message"))
        .agg(F.sort_array(F.collect_set("parent")).alias("previous"))
    )
    is_atom = (
        (F.col("fabric") == "won") & F.col("sender_socket").isNull() & (F.col("type") == MessageType.SUCCESS.value)
    )
    logs = taken.where(is_atom).select("message", "signer", "sender", "seen").join(sets, on="message", how="inner")
    keyed = logs.withColumn("parent", F.get("previous", F.lit(0)))
    return _groups(keyed, "won", FORKED_LOG, ["signer", "sender", "previous", "parent"], "signer", "parent")


def two_creates(taken: DataFrame) -> DataFrame:
    """won: one atom created twice."""
    creates = taken.where((F.col("fabric") == "won") & (F.col("type") == MessageType.CREATE.value)).withColumn(
        "subject", F.encode("sender", "utf-8")
    )
    return _groups(creates, "won", TWO_CREATES, ["sender", "subject"], "sender", "subject")


def shared_keys(sightings: DataFrame) -> DataFrame:
    """pcp: one id with two contents; swarm: two messages with the same 8 bytes."""
    taken = sightings.where((F.col("fabric") != "won") & F.col("is_decoded") & F.col("first_seen").isNotNull())
    # counting first, by fixed columns alone: hardly any key is shared, and only those are gathered
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
        F.when(F.col("fabric") == "pcp", SHARED_ID).otherwise(COLLISION).alias("kind"),
        "author",
        F.col("key").alias("subject"),
        "evidence",
        "first_seen",
    )


def broken_edges(ends: DataFrame) -> DataFrame:
    """References to oneself, and to what is not older.

    UEP-12 wants a strictly greater time. In won two nodes' clocks may differ, so only one signer is held to its own.
    """
    is_self = F.col("child") == F.col("parent_message")
    is_against = F.when(F.col("fabric") == "swarm", F.col("parent_created") >= F.col("created")).otherwise(
        (F.col("parent_created") > F.col("created")) & (F.col("parent_signer") == F.col("signer"))
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
    """Two messages that refer to each other. A longer circle has an edge against time too, and is found by that.

    Of two such edges at least one leads to what is not older, so only those have to be looked for the other way round.
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
    return found.distinct()  # both edges may lead to what is not older: the pair stands once


def circular_replies(sightings: DataFrame, links: DataFrame) -> DataFrame:
    """pcp: a message that answers itself, and two that answer each other. Senders choose their ids, so both are easy.

    Nothing in a message says when it was made, so a longer circle has no edge against time and is not looked for.
    """
    answers = links.where((F.col("fabric") == "pcp") & (F.col("relation") == Relation.IN_REPLY_TO.value))
    taken = sightings.where((F.col("fabric") == "pcp") & F.col("is_decoded") & F.col("first_seen").isNotNull())
    replies = answers.select(F.col("child").alias("message"), "parent").join(
        taken.select("message", "key", "sender", F.col("first_seen").alias("seen")), on="message", how="inner"
    )
    back = replies.select(
        F.col("message").alias("other"),
        F.col("key").alias("parent"),
        F.col("parent").alias("key"),
        F.col("seen").alias("other_seen"),
    )
    both = replies.join(back, on=["key", "parent"], how="inner").where(F.col("message") <= F.col("other"))
    return both.select(
        F.lit("pcp").alias("fabric"),
        F.when(F.col("key") == F.col("parent"), SELF_REFERENCE).otherwise(CYCLE).alias("kind"),
        F.col("sender").alias("author"),
        F.col("message").alias("subject"),
        F.array_distinct(F.array("message", "other")).alias("evidence"),
        F.greatest("seen", "other_seen").alias("first_seen"),
    )


def _ends(edges: DataFrame, sightings: DataFrame) -> DataFrame:
    """Edges to what is not older, with both ends taken in by somebody."""
    taken = sightings.where(F.col("first_seen").isNotNull()).select(
        "fabric", F.col("message").alias("child"), "key", "signer", F.col("first_seen").alias("seen")
    )
    odd = edges.where(
        (F.col("fabric") != "pcp")
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


def _groups(rows: DataFrame, fabric: str, kind: str, by: list[str], author: str, subject: str) -> DataFrame:
    """Groups of more than one message, as forks."""
    grouped = (
        rows.groupBy(*by)
        .agg(F.sort_array(F.collect_set("message")).alias("evidence"), F.max("seen").alias("first_seen"))
        .where(F.size("evidence") > 1)
    )
    return grouped.select(
        F.lit(fabric).alias("fabric"),
        F.lit(kind).alias("kind"),
        F.col(author).alias("author"),
        F.col(subject).alias("subject"),
        "evidence",
        "first_seen",
    )
