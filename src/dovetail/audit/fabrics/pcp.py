"""pcp: a broker records an outcome for each resolved target; replies name the ids of requests."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the conventional name

from dovetail.audit.fabric_audit import FabricAudit, Moment, Rows
from dovetail.audit.transforms.chains import COMPLETE, FAILED, finish_chains, orphans, responses, seen_hops
from dovetail.audit.transforms.deliveries import HANDED, PART, first_taken, owed_outcome, reach_from, refusal_outcome
from dovetail.audit.transforms.forks import COLUMNS, CYCLE, SELF_REFERENCE
from dovetail.model.fabric import Role
from dovetail.model.hop import Relation, Stage
from dovetail.model.outcome import Outcome
from dovetail.pcp.fabric import ERROR_TYPES, FABRIC, SHARED_ID
from dovetail.pcp.settings import PcpSettings
from dovetail.pcp.uri import BROKER_URIS

_LIFETIME_US = PcpSettings().max_lifetime_ms * 1000
"""A broker gives up every message after this time: used as the lifetime of messages that state none."""
_FAILED = (Stage.EXPIRED.value, Stage.UNDELIVERABLE.value, Stage.REJECTED.value)
# which outcome applies if a broker records several for one recipient: the best one
_RANKS = {
    Outcome.HANDED_OVER: 5,
    Outcome.EXPIRED: 4,
    Outcome.UNDELIVERABLE: 3,
    Outcome.UNAUTHORIZED: 2,
    Outcome.REJECTED: 1,
}


def deliveries(rows: Rows, moment: Moment) -> DataFrame:
    """Outcomes recorded by brokers. A recipient without one is pending until the lifetime is over; then one is due.

    A frame handed to a connection is known to have arrived when its recipient answers its sender: senders choose their
    ids, and an answer to another message with the same id proves nothing of this one. A recipient has one outcome
    for each time that the message was accepted: a delivery beside another outcome has the stage of that one, and while
    a message that was accepted again has only failed before, it is pending again.

    Each broker speaks for itself alone: what another one states changes none of its rows, whoever runs that one.
    """
    hops = rows.hops
    begun = first_taken(hops)
    own = ["message", "server"]
    is_arrival = (F.col("stage") == Stage.REJECTED.value) & ~F.coalesce(
        F.col("counterpart").isin(*BROKER_URIS), F.lit(False)
    )
    stated = (
        hops.where(F.col("stage").isin(*HANDED, *_FAILED))
        .withColumn("stated", _outcome_of_stage())
        .join(begun.select(*own, F.lit(True).alias("is_taken")), on=own, how="left")
        # a refusal on arrival names the sender, and is no outcome if the same bytes were accepted at another time
        .withColumn("recipient", F.when(~is_arrival, F.col("counterpart")))
        .where(~is_arrival | F.col("is_taken").isNull())
    )
    is_handed = F.col("stage").isin(*HANDED)
    ranked = F.struct(_rank(F.col("stated")).alias("rank"), "stated", "stage", "server", "reason", "at")
    outcomes = stated.groupBy(*own, "recipient").agg(
        F.max(ranked).alias("best"),
        F.min(ranked).alias("worst"),
        F.count("*").alias("ends"),
        F.min(F.when(is_handed, F.col("at"))).alias("handed"),
        F.count(F.when(is_handed, F.lit(1))).alias("attempts"),
    )
    known = rows.messages.select("message", "key", "type", "sender", "recipients", "expires")
    answered = rows.answers.select(
        F.col("parent").alias("key"),
        "server",
        F.col("sender").alias("recipient"),
        F.col("recipient").alias("sender"),
        F.lit(True).alias("is_answered"),
    ).distinct()
    is_handed_over = F.col("best.stated") == Outcome.HANDED_OVER
    is_received = is_handed_over & (F.col("is_answered") | F.col("recipient").isin(*BROKER_URIS))
    is_failed = ~is_handed_over
    is_contradicted = is_handed_over & (F.col("ends") > F.col("times"))
    times_named = F.when(F.array_contains("recipients", F.col("recipient")), F.col("times"))
    is_pending = is_failed & F.coalesce(F.col("ends") < times_named, F.lit(False))
    is_owed = is_pending & F.col("owed").isNotNull()
    told = (
        _with_owed(outcomes.join(known, on="message", how="left").join(begun, on=own, how="left"), rows.servers, moment)
        .join(answered, on=["key", "server", "recipient", "sender"], how="left")
        .select(
            F.lit(FABRIC.name).alias("fabric"),
            "message",
            "type",
            "sender",
            "recipient",
            F.when(is_pending, F.coalesce("owed", F.lit(Outcome.IN_FLIGHT)))
            .when(is_received, Outcome.DELIVERED)
            .otherwise(F.col("best.stated"))
            .alias("outcome"),
            F.when(is_owed, Stage.ACCEPTED.value)
            .when(is_failed & ~is_pending, F.col("best.stage"))
            .when(is_contradicted, F.col("worst.stage"))
            .alias("failed_stage"),
            F.when(is_owed, F.col("begun_at"))
            .when(is_failed & ~is_pending, F.col("best.server"))
            .when(is_contradicted, F.col("worst.server"))
            .alias("failed_at"),
            F.when(is_failed & ~is_pending, F.col("best.reason")).alias("reason"),
            F.coalesce("begun", "best.at").alias("begun"),
            F.coalesce("begun_at", "best.server").alias("begun_at"),
            F.when(is_owed, F.col("end")).when(~is_pending, F.coalesce("handed", "best.at")).alias("finished"),
            F.when(is_owed | ~is_pending, F.col("best.server")).alias("finished_at"),
            "expires",
            "attempts",
        )
    )
    named = known.select("message", F.explode("recipients").alias("recipient")).where(~F.col("recipient").contains("*"))
    routed = hops.where(F.col("stage") == Stage.ROUTED.value).select(*own, F.col("counterpart").alias("recipient"))
    untold = (
        named.join(begun.select(*own), on="message", how="inner")
        .unionByName(routed)
        .dropDuplicates([*own, "recipient"])
        .join(begun, on=own, how="inner")
        .join(outcomes, on=[*own, "recipient"], how="left_anti")
        .join(known.drop("recipients"), on="message", how="left")
    )
    return told.unionByName(_pending(_with_owed(untold, rows.servers, moment))).select(*PART)


def _with_owed(taken: DataFrame, servers: DataFrame, moment: Moment) -> DataFrame:
    """Adds when the lifetime ends, and the outcome of what has none by then."""
    end = F.coalesce("expires", F.timestamp_micros(F.unix_micros("begun") + _LIFETIME_US))
    reaches = servers.select(F.col("server").alias("begun_at"), "reaches")
    owed = owed_outcome(F.col("end"), reach_from(F.col("begun"), F.col("reaches"), moment), moment)
    joined = taken.join(reaches.hint("broadcast"), on="begun_at", how="left")
    return joined.withColumn("end", end).withColumn("owed", owed)


def _pending(untold: DataFrame) -> DataFrame:
    """Recipients without any outcome: pending during the message's lifetime, then owed by the broker."""
    owed = F.col("owed")
    return untold.select(
        F.lit(FABRIC.name).alias("fabric"),
        "message",
        "type",
        "sender",
        "recipient",
        F.coalesce(owed, F.lit(Outcome.IN_FLIGHT)).alias("outcome"),
        F.when(owed.isNotNull(), Stage.ACCEPTED.value).alias("failed_stage"),
        F.when(owed.isNotNull(), F.col("begun_at")).alias("failed_at"),
        F.lit(None).cast("string").alias("reason"),
        "begun",
        "begun_at",
        F.when(owed.isNotNull(), F.col("end")).alias("finished"),
        F.when(owed.isNotNull(), F.col("begun_at")).alias("finished_at"),
        "expires",
        F.lit(0).cast("bigint").alias("attempts"),
    )


def _outcome_of_stage() -> Column:
    stage = F.col("stage")
    return (
        F.when(stage.isin(*HANDED), Outcome.HANDED_OVER)
        .when(stage == Stage.EXPIRED.value, Outcome.EXPIRED)
        .when(stage == Stage.UNDELIVERABLE.value, Outcome.UNDELIVERABLE)
        .otherwise(refusal_outcome(F.col("reason")))
    )


def _rank(outcome: Column) -> Column:
    rank = F.lit(0)
    for name, value in _RANKS.items():
        rank = F.when(outcome == name, value).otherwise(rank)
    return rank


def role() -> Column:
    """The role of a reply; same as in `Fabric.read`."""
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


def circular_replies(holdings: DataFrame, links: DataFrame) -> DataFrame:
    """A message that answers itself, and two that answer each other. Senders choose their ids, so both are easy.

    A message has no creation time, so a longer cycle has no edge against time and is not searched for.
    """
    answers = links.where(F.col("relation") == Relation.IN_REPLY_TO.value)
    taken = holdings.where(F.col("is_decoded") & F.col("first_seen").isNotNull())
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
    answers=Relation.IN_REPLY_TO,
    circles=circular_replies,
    shared_key=SHARED_ID,
    lifetime_us=_LIFETIME_US,
)
