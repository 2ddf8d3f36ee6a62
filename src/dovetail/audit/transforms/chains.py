"""Chains: a message with the responses that acknowledge it, put together from the journals of all servers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows it by

from dovetail.model.hop import Relation, Stage
from dovetail.won.vocabulary import ATOM_TYPES, CONNECTION_TYPES, MessageType

FABRICS = ("won", "pcp")
COMPLETE, FAILED, ORPHAN = "complete", "failed", "orphan_response"
AWAITING_SENDER, AWAITING_RECIPIENT = "awaiting_sender", "awaiting_recipient"

_TAKEN = (Stage.ACCEPTED.value, Stage.CREATED.value)
_PCP_ERRORS = tuple(
    f"http://puppetlabs.com/{name}" for name in ("error_message", "unauthorized", "ttl_expired", "version_error")
)


def chains(hops: DataFrame, messages: DataFrame, links: DataFrame, *, fabrics: Sequence[str] = FABRICS) -> DataFrame:
    """Chains of won, requests of pcp with their responses, and responses to what nobody knows."""
    of = {"won": won_chains, "pcp": pcp_chains}
    return reduce(DataFrame.unionByName, [of[fabric](hops, messages, links) for fabric in fabrics])


def won_chains(hops: DataFrame, messages: DataFrame, links: DataFrame) -> DataFrame:
    """Atom-specific (m, s) and connection-specific (m, s1, s2) chains."""
    messages = messages.where("fabric = 'won'")
    seen = _seen(hops.where("fabric = 'won'"))
    answers = links.where((F.col("fabric") == "won") & (F.col("relation") == Relation.RESPONDING_TO.value))
    responses = (
        answers.select(F.col("child").alias("message"), F.col("parent"))
        .join(
            messages.select("message", "type", "sender_socket", "recipient_socket", "sender", "recipients"),
            on="message",
            how="inner",
        )
        .join(seen, on="message", how="left")
        .withColumn("role", _role())
    )
    by_parent = responses.groupBy("parent").agg(
        F.min(F.when(F.col("role") == "first", F.struct("made", "message", "holders", "taken"))).alias("first"),
        F.min(F.when(F.col("role") == "second", F.struct("made", "message", "holders", "taken"))).alias("second"),
        F.min(F.when(F.col("role") == "failure", F.struct("made", "message", "holders", "taken"))).alias("failed"),
    )
    kinds = [kind.value for kind in ATOM_TYPES | CONNECTION_TYPES]
    asked = messages.where(F.col("type").isin(*kinds)).join(seen, on="message", how="left")
    joined = asked.join(by_parent.withColumnRenamed("parent", "message"), on="message", how="left")
    is_atom = F.col("type").isin(*(kind.value for kind in ATOM_TYPES))
    state = (
        F.when(F.col("failed").isNotNull(), FAILED)
        .when(F.col("first").isNull(), AWAITING_SENDER)
        .when(is_atom | F.col("second").isNotNull(), COMPLETE)
        .otherwise(AWAITING_RECIPIENT)
    )
    last = F.when(is_atom, F.col("first.made")).otherwise(F.coalesce("second.taken", "second.made"))
    sockets = F.sort_array(F.array("sender_socket", "recipient_socket"))
    known = joined.withColumn("state", state).select(
        F.lit("won").alias("fabric"),
        "message",
        F.when(is_atom, "atom").otherwise("connection").alias("kind"),
        "type",
        "sender",
        F.get("recipients", F.lit(0)).alias("recipient"),
        F.when(~is_atom, F.concat_ws(" ", sockets)).alias("conversation"),
        "state",
        F.col("first.message").alias("first_response"),
        F.col("second.message").alias("second_response"),
        F.col("failed.message").alias("failure"),
        F.col("made").alias("begun"),
        F.col("first.made").alias("answered"),
        F.when(F.col("state") == COMPLETE, last).alias("completed"),
        F.when(is_atom, F.array().cast("array<string>")).otherwise(_only_at()).alias("only_at"),
    )
    orphans = _orphans(
        responses.join(messages.select(F.col("message").alias("parent")), on="parent", how="left_anti"), "won"
    )
    return _with_legs(known.unionByName(orphans))


def pcp_chains(hops: DataFrame, messages: DataFrame, links: DataFrame) -> DataFrame:
    """Messages that were answered, by `in_reply_to`."""
    messages = messages.where("fabric = 'pcp'")
    seen = _seen(hops.where("fabric = 'pcp'"))
    answers = links.where((F.col("fabric") == "pcp") & (F.col("relation") == Relation.IN_REPLY_TO.value))
    responses = (
        answers.select(F.col("child").alias("message"), "parent")
        .join(messages.select("message", "type", "sender", "recipients"), on="message", how="inner")
        .join(seen, on="message", how="left")
    )
    is_error = F.col("type").isin(*_PCP_ERRORS)
    by_parent = responses.groupBy(F.col("parent").alias("key")).agg(
        F.min(F.when(~is_error, F.struct("made", "message"))).alias("first"),
        F.min(F.when(is_error, F.struct("made", "message"))).alias("failed"),
    )
    asked = messages.join(seen, on="message", how="left").join(by_parent, on="key", how="inner")
    known = asked.select(
        F.lit("pcp").alias("fabric"),
        "message",
        F.lit("request").alias("kind"),
        "type",
        "sender",
        F.get("recipients", F.lit(0)).alias("recipient"),
        F.lit(None).cast("string").alias("conversation"),
        F.when(F.col("first").isNotNull(), COMPLETE).otherwise(FAILED).alias("state"),
        F.col("first.message").alias("first_response"),
        F.lit(None).cast("binary").alias("second_response"),
        F.col("failed.message").alias("failure"),
        F.col("made").alias("begun"),
        F.coalesce("first.made", "failed.made").alias("answered"),
        F.col("first.made").alias("completed"),
        F.array().cast("array<string>").alias("only_at"),
    )
    orphans = responses.join(messages.select(F.col("key").alias("parent")), on="parent", how="left_anti")
    return _with_legs(known.unionByName(_orphans(orphans, "pcp")))


def _seen(hops: DataFrame) -> DataFrame:
    """When each message was first taken in or made, when it was first taken in from outside, and by which servers."""
    return (
        hops.where(F.col("stage").isin(*_TAKEN))
        .groupBy("message")
        .agg(
            F.min("at").alias("made"),
            F.min(F.when(F.col("stage") == Stage.ACCEPTED.value, F.col("at"))).alias("taken"),
            F.sort_array(F.collect_set("server")).alias("holders"),
        )
    )


def _role() -> Column:
    """s1 speaks to m's own sender, s2 comes from the other socket; a response without sockets is an atom's s."""
    return (
        F.when(F.col("type") == MessageType.FAILURE.value, "failure")
        .when(F.col("sender_socket").eqNullSafe(F.col("recipient_socket")), "first")
        .otherwise("second")
    )


def _only_at() -> Column:
    """Servers that hold a part of the chain which another server of the same chain lacks."""
    parts = F.filter(F.array("holders", "first.holders", "second.holders"), lambda held: held.isNotNull())
    everyone = F.array_distinct(F.flatten(parts))
    partial = F.filter(parts, lambda held: F.size(held) < F.size(everyone))
    return F.sort_array(F.array_distinct(F.flatten(partial)))


def _orphans(responses: DataFrame, fabric: str) -> DataFrame:
    return responses.select(
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


def _with_legs(rows: DataFrame) -> DataFrame:
    return rows.select(
        "fabric",
        "message",
        "kind",
        "type",
        "sender",
        "recipient",
        "conversation",
        "state",
        "first_response",
        "second_response",
        "failure",
        "begun",
        "answered",
        "completed",
        (F.unix_micros("answered") - F.unix_micros("begun")).alias("first_leg_us"),
        F.when(F.col("second_response").isNotNull(), F.unix_micros("completed") - F.unix_micros("answered")).alias(
            "second_leg_us"
        ),
        "only_at",
    )
