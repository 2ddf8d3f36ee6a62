"""pcp: a broker states an outcome for each target that it resolved; replies name the ids of requests."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows it by

from dovetail.audit.fabric_audit import FabricAudit, Moment, Rows
from dovetail.audit.transforms.chains import COMPLETE, FAILED, finish_chains, orphans, responses, seen_hops
from dovetail.audit.transforms.deliveries import (
    DELIVERED,
    EXPIRED,
    HANDED,
    IN_FLIGHT,
    PART,
    REJECTED,
    UNAUTHORIZED,
    UNDELIVERABLE,
    first_taken,
    refusal_outcome,
)
from dovetail.audit.transforms.forks import COLUMNS, CYCLE, SELF_REFERENCE
from dovetail.model.fabric import Role
from dovetail.model.hop import Reason, Relation, Stage
from dovetail.pcp.fabric import ERROR_TYPES, FABRIC, SHARED_ID

_FAILED = (Stage.EXPIRED.value, Stage.UNDELIVERABLE.value, Stage.REJECTED.value)
# what decides when a broker says several things about one recipient: the best outcome it reached
_RANKS = {DELIVERED: 6, EXPIRED: 5, UNDELIVERABLE: 4, UNAUTHORIZED: 3, REJECTED: 2}


def deliveries(rows: Rows, moment: Moment) -> DataFrame:
    """Outcomes that brokers state. A target that is named in full and has none is under way, or expired."""
    hops = rows.hops
    begun = first_taken(hops)
    stated = (
        hops.where(F.col("stage").isin(*HANDED, *_FAILED))
        .withColumn("stated", _outcome_of_stage())
        .join(begun.select("message", F.lit(True).alias("is_taken")), on="message", how="left")
        # a refusal on arrival names the sender, a later one the target
        .withColumn("recipient", F.when(F.col("is_taken") | (F.col("stage") != "rejected"), F.col("counterpart")))
    )
    is_handed = F.col("stage").isin(*HANDED)
    outcomes = stated.groupBy("message", "recipient").agg(
        F.max(F.struct(_rank(F.col("stated")).alias("rank"), "stated", "stage", "server", "reason", "at")).alias(
            "best"
        ),
        F.min(F.when(is_handed, F.col("at"))).alias("handed"),
        F.count(F.when(is_handed, F.lit(1))).alias("attempts"),
    )
    known = rows.messages.select("message", "type", "sender", "recipients", "expires")
    is_failed = F.col("best.stated") != DELIVERED
    told = (
        outcomes.join(known, on="message", how="left")
        .join(begun, on="message", how="left")
        .select(
            F.lit(FABRIC.name).alias("fabric"),
            "message",
            "type",
            "sender",
            "recipient",
            F.col("best.stated").alias("outcome"),
            F.when(is_failed, F.col("best.stage")).alias("failed_stage"),
            F.when(is_failed, F.col("best.server")).alias("failed_at"),
            F.when(is_failed, F.col("best.reason")).alias("reason"),
            "begun",
            "begun_at",
            F.coalesce("handed", "best.at").alias("finished"),
            F.col("best.server").alias("finished_at"),
            "attempts",
        )
    )
    named = (
        known.join(begun, on="message", how="inner")
        .select("*", F.explode("recipients").alias("recipient"))
        .where(~F.col("recipient").contains("*"))
        .drop("recipients")
        .dropDuplicates(["message", "recipient"])
    )
    untold = named.join(outcomes, on=["message", "recipient"], how="left_anti")
    return told.unionByName(_pending(untold, moment)).select(*PART)


def _pending(untold: DataFrame, moment: Moment) -> DataFrame:
    """Targets without any outcome: expired if the message's lifetime is over as of the audit, else under way."""
    is_over = F.col("expires") <= F.lit(moment.as_of)
    return untold.select(
        F.lit(FABRIC.name).alias("fabric"),
        "message",
        "type",
        "sender",
        "recipient",
        F.when(is_over, EXPIRED).otherwise(IN_FLIGHT).alias("outcome"),
        F.when(is_over, Stage.ACCEPTED.value).alias("failed_stage"),
        F.when(is_over, F.col("begun_at")).alias("failed_at"),
        F.when(is_over, Reason.LIFETIME_OVER.value).alias("reason"),
        "begun",
        "begun_at",
        F.when(is_over, F.col("expires")).alias("finished"),
        F.when(is_over, F.col("begun_at")).alias("finished_at"),
        F.lit(0).cast("bigint").alias("attempts"),
    )


def _outcome_of_stage() -> Column:
    stage = F.col("stage")
    return (
        F.when(stage.isin(*HANDED), DELIVERED)
        .when(stage == Stage.EXPIRED.value, EXPIRED)
        .when(stage == Stage.UNDELIVERABLE.value, UNDELIVERABLE)
        .otherwise(refusal_outcome(F.col("reason")))
    )


def _rank(outcome: Column) -> Column:
    rank = F.lit(0)
    for name, value in _RANKS.items():
        rank = F.when(outcome == name, value).otherwise(rank)
    return rank


def role() -> Column:
    """What a reply is to its request; as `Fabric.read` says it."""
    return F.when(F.col("type").isin(*ERROR_TYPES), Role.FAILURE.value).otherwise(Role.FIRST.value)


def chains(hops: DataFrame, messages: DataFrame, links: DataFrame) -> DataFrame:
    """Messages that were answered, by `in_reply_to`."""
    seen = seen_hops(hops)
    replies = responses(links, messages, seen, Relation.IN_REPLY_TO).withColumn("role", role())
    by_parent = replies.groupBy(F.col("parent").alias("key")).agg(
        F.min(F.when(F.col("role") == Role.FIRST.value, F.struct("made", "message"))).alias("first"),
        F.min(F.when(F.col("role") == Role.FAILURE.value, F.struct("made", "message"))).alias("failed"),
    )
    asked = messages.join(seen, on="message", how="left").join(by_parent, on="key", how="inner")
    known = asked.select(
        F.lit(FABRIC.name).alias("fabric"),
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
    unknown = replies.join(messages.select(F.col("key").alias("parent")), on="parent", how="left_anti")
    return finish_chains(known.unionByName(orphans(unknown, FABRIC.name)))


def circular_replies(sightings: DataFrame, links: DataFrame) -> DataFrame:
    """A message that answers itself, and two that answer each other. Senders choose their ids, so both are easy.

    Nothing in a message says when it was made, so a longer circle has no edge against time and is not looked for.
    """
    answers = links.where(F.col("relation") == Relation.IN_REPLY_TO.value)
    taken = sightings.where(F.col("is_decoded") & F.col("first_seen").isNotNull())
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
        F.lit(FABRIC.name).alias("fabric"),
        F.when(F.col("key") == F.col("parent"), SELF_REFERENCE).otherwise(CYCLE).alias("kind"),
        F.col("sender").alias("author"),
        F.col("message").alias("subject"),
        F.array_distinct(F.array("message", "other")).alias("evidence"),
        F.greatest("seen", "other_seen").alias("first_seen"),
    ).select(*COLUMNS)


AUDIT = FabricAudit(
    fabric=FABRIC,
    deliveries=deliveries,
    chains=chains,
    circles=circular_replies,
    shared_key=SHARED_ID,
)
