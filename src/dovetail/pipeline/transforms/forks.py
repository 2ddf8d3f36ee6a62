"""Messages that contradict each other, or the rules of the graph, with the messages themselves as evidence."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows it by

from dovetail.hop import Fabric, Relation, Stage
from dovetail.won.vocabulary import MessageType

FABRICS = tuple(fabric.value for fabric in Fabric)
CONFLICTING_RESPONSE = "conflicting_response"
FORKED_LOG = "forked_log"
TWO_CREATES = "two_creates"
SHARED_ID = "shared_id"
COLLISION = "collision"
SELF_REFERENCE = "self_reference"
AGAINST_TIME = "against_time"
CYCLE = "cycle"

_TAKEN = (Stage.ACCEPTED.value, Stage.CREATED.value)


def forks(hops: DataFrame, messages: DataFrame, links: DataFrame, *, fabrics: Sequence[str] = FABRICS) -> DataFrame:
    """All contradictions among messages that some server took in or made."""
    seen = hops.where(F.col("stage").isin(*_TAKEN)).groupBy("fabric", "message").agg(F.min("at").alias("seen"))
    taken = messages.join(seen, on=["fabric", "message"], how="inner")
    parts = [shared_keys(taken)]
    if "pcp" in fabrics:
        parts += [circular_replies(taken, links)]
    if "won" in fabrics:
        parts += [conflicting_responses(taken, links), forked_logs(taken, links), two_creates(taken)]
    if set(fabrics) - {"pcp"}:
        edges = _edges(taken, links)
        parts += [broken_edges(edges), cycles(edges)]
    return reduce(DataFrame.unionByName, parts).select("fabric", "kind", "author", "subject", "evidence", "first_seen")


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


def shared_keys(taken: DataFrame) -> DataFrame:
    """pcp: one id with two contents; swarm: two messages with the same 8 bytes."""
    grouped = (
        taken.where("fabric != 'won'")
        .groupBy("fabric", "key")
        .agg(
            F.count("*").alias("many"),
            F.sort_array(F.collect_set("message")).alias("evidence"),
            F.max("seen").alias("first_seen"),
            F.min("sender").alias("author"),
        )
        .where("many > 1")
    )
    return grouped.select(
        "fabric",
        F.when(F.col("fabric") == "pcp", SHARED_ID).otherwise(COLLISION).alias("kind"),
        "author",
        F.col("key").alias("subject"),
        "evidence",
        "first_seen",
    )


def broken_edges(edges: DataFrame) -> DataFrame:
    """References to oneself, and to what is not older.

    UEP-12 wants a strictly greater time. In won two nodes' clocks may differ, so only one signer is held to its own.
    """
    is_self = F.col("child") == F.col("parent_message")
    is_against = F.when(F.col("fabric") == "swarm", F.col("parent_created") >= F.col("created")).otherwise(
        (F.col("parent_created") > F.col("created")) & (F.col("parent_signer") == F.col("signer"))
    )
    return edges.where(is_self | is_against).select(
        "fabric",
        F.when(is_self, SELF_REFERENCE).otherwise(AGAINST_TIME).alias("kind"),
        F.col("signer").alias("author"),
        F.col("child").alias("subject"),
        F.array_distinct(F.array("child", "parent_message")).alias("evidence"),
        F.greatest("seen", "parent_seen").alias("first_seen"),
    )


def cycles(edges: DataFrame) -> DataFrame:
    """Two messages that refer to each other. A longer circle has an edge against time too, and is found by that."""
    pairs = edges.select("fabric", "child", "parent_message", "signer", "seen")
    back = pairs.select(
        "fabric",
        F.col("child").alias("parent_message"),
        F.col("parent_message").alias("child"),
        F.col("seen").alias("back_seen"),
    )
    both = pairs.where(F.col("child") < F.col("parent_message")).join(
        back, on=["fabric", "child", "parent_message"], how="inner"
    )
    return both.select(
        "fabric",
        F.lit(CYCLE).alias("kind"),
        F.col("signer").alias("author"),
        F.col("child").alias("subject"),
        F.array("child", "parent_message").alias("evidence"),
        F.greatest("seen", "back_seen").alias("first_seen"),
    )


def circular_replies(taken: DataFrame, links: DataFrame) -> DataFrame:
    """pcp: a message that answers itself, and two that answer each other. Senders choose their ids, so both are easy.

    Nothing in a message says when it was made, so a longer circle has no edge against time and is not looked for.
    """
    answers = links.where((F.col("fabric") == "pcp") & (F.col("relation") == Relation.IN_REPLY_TO.value))
    replies = answers.select(F.col("child").alias("message"), "parent").join(
        taken.where("fabric = 'pcp'").select("message", "key", "sender", "seen"), on="message", how="inner"
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


def _edges(taken: DataFrame, links: DataFrame) -> DataFrame:
    """Links of swarm and won with what is known about both ends."""
    timed = taken.where("fabric != 'pcp'").select("fabric", "message", "key", "created", "signer", "seen")
    children = timed.select("fabric", F.col("message").alias("child"), "created", "signer", "seen")
    parents = timed.select(
        "fabric",
        F.col("key").alias("parent"),
        F.col("message").alias("parent_message"),
        F.col("created").alias("parent_created"),
        F.col("signer").alias("parent_signer"),
        F.col("seen").alias("parent_seen"),
    )
    graph = links.where("fabric != 'pcp'").select("fabric", "child", "parent")
    return graph.join(children, on=["fabric", "child"], how="inner").join(parents, on=["fabric", "parent"], how="inner")


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
