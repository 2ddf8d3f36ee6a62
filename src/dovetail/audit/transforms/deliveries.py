"""What became of each message for each of its recipients.

Each fabric says it in its own way, so each has a part that gives the same columns, and one function joins them:

- pcp: the broker states an outcome for each target it resolved, as the counterpart of a hop. A target that is named in
  full and has no outcome is still under way, or expired.
- won: the recipient's node says `delivered` to the recipient's owner. Where a node says `forwarded` to a node whose
  journal is in the lake, and that journal does not know the message, it is lost once patience is over. A message about
  the sender's own atom is for its node, and arrives when the node takes it.
- swarm: every peer of the swarm is a recipient, and has it once it took it in or made it.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows it by

from dovetail.audit.decode_swarm import MESSAGE_TYPE
from dovetail.audit.transforms.holdings import swarm_of, swarm_peers
from dovetail.audit.transforms.skew import both_ways
from dovetail.fabrics import REGISTRY
from dovetail.model.hop import Reason, Stage
from dovetail.model.times import to_us
from dovetail.won.vocabulary import ATOM_TYPES, MessageType

FABRICS = tuple(REGISTRY)
DELIVERED, ECHOED, UNDELIVERABLE, EXPIRED = "delivered", "echoed", "undeliverable", "expired"
UNAUTHORIZED, REJECTED, LOST, IN_FLIGHT = "unauthorized", "rejected", "lost", "in_flight"

_HANDED = (Stage.DELIVERED.value, Stage.REDELIVERED.value)
_TAKEN = (Stage.ACCEPTED.value, Stage.CREATED.value)
# what decides when a server says several things about one recipient: the best outcome it reached
_RANKS = {DELIVERED: 6, EXPIRED: 5, UNDELIVERABLE: 4, UNAUTHORIZED: 3, REJECTED: 2}

_PART = (
    "fabric",
    "message",
    "type",
    "sender",
    "recipient",
    "outcome",
    "failed_stage",
    "failed_at",
    "reason",
    "begun",
    "begun_at",
    "finished",
    "finished_at",
    "attempts",
)


def deliveries(
    hops: DataFrame,
    messages: DataFrame,
    sightings: DataFrame,
    servers: DataFrame,
    skew: DataFrame,
    *,
    as_of: dt.datetime,
    patience_us: int = 30_000_000,
    fabrics: Sequence[str] = FABRICS,
) -> DataFrame:
    """One row per message and intended recipient; latencies are corrected where the clocks' difference is known."""

    def pcp() -> DataFrame:
        return pcp_deliveries(hops.where("fabric = 'pcp'"), messages.where("fabric = 'pcp'"), as_of=as_of)

    def won() -> DataFrame:
        journals = servers.where("fabric = 'won'")
        own_hops, own_messages = hops.where("fabric = 'won'"), messages.where("fabric = 'won'")
        return won_deliveries(own_hops, own_messages, journals, as_of=as_of, patience_us=patience_us)

    def swarm() -> DataFrame:
        return swarm_deliveries(sightings, servers, as_of=as_of)

    of = {"pcp": pcp, "won": won, "swarm": swarm}
    each = [of[fabric]() for fabric in fabrics]
    parts = reduce(DataFrame.unionByName, each)
    same_clock = F.col("begun_at").eqNullSafe(F.col("finished_at"))
    offset = F.when(same_clock, F.lit(0).cast("bigint")).otherwise(F.col("clock_offset_us"))
    took_us = F.unix_micros("finished") - F.unix_micros("begun") + F.coalesce(offset, F.lit(0))
    is_over = F.coalesce(F.col("outcome").isin(DELIVERED, ECHOED) & took_us.isNotNull(), F.lit(False))
    return parts.join(both_ways(skew).hint("broadcast"), on=["begun_at", "finished_at"], how="left").select(
        "fabric",
        "message",
        "type",
        "sender",
        "recipient",
        "outcome",
        "failed_stage",
        "failed_at",
        "reason",
        F.col("begun").alias("accepted"),
        "finished",
        F.when(F.col("outcome").isin(DELIVERED, ECHOED), took_us).alias("latency_us"),
        "attempts",
        F.coalesce(offset, F.lit(0)).cast("bigint").alias("clock_offset_us"),
        # nothing arrives before it was taken in: then a clock was set in between, and no one offset corrects it
        ((same_clock | F.col("clock_offset_us").isNotNull()) & (~is_over | (took_us >= 0))).alias("skew_known"),
    )


def pcp_deliveries(hops: DataFrame, messages: DataFrame, *, as_of: dt.datetime) -> DataFrame:
    """Outcomes that brokers state, and targets without one."""
    begun = _begun(hops)
    stated = (
        hops.where(
            F.col("stage").isin(*_HANDED, *(s.value for s in (Stage.EXPIRED, Stage.UNDELIVERABLE, Stage.REJECTED)))
        )
        .withColumn("stated", _outcome_of_stage())
        .join(begun.select("message", F.lit(True).alias("is_taken")), on="message", how="left")
        # a refusal on arrival names the sender, a later one the target
        .withColumn("recipient", F.when(F.col("is_taken") | (F.col("stage") != "rejected"), F.col("counterpart")))
    )
    outcomes = stated.groupBy("message", "recipient").agg(
        F.max(F.struct(_rank(F.col("stated")).alias("rank"), "stated", "stage", "server", "reason", "at")).alias(
            "best"
        ),
        F.min(F.when(F.col("stage").isin(*_HANDED), F.col("at"))).alias("handed"),
        F.count(F.when(F.col("stage").isin(*_HANDED), F.lit(1))).alias("attempts"),
    )
    known = messages.select("message", "type", "sender", "recipients", "expires")
    told = (
        outcomes.join(known, on="message", how="left")
        .join(begun, on="message", how="left")
        .select(
            F.lit("pcp").alias("fabric"),
            "message",
            "type",
            "sender",
            "recipient",
            F.col("best.stated").alias("outcome"),
            F.when(F.col("best.stated") != DELIVERED, F.col("best.stage")).alias("failed_stage"),
            F.when(F.col("best.stated") != DELIVERED, F.col("best.server")).alias("failed_at"),
            F.when(F.col("best.stated") != DELIVERED, F.col("best.reason")).alias("reason"),
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
    return told.unionByName(_pending("pcp", untold, as_of)).select(*_PART)


def won_deliveries(
    hops: DataFrame, messages: DataFrame, servers: DataFrame, *, as_of: dt.datetime, patience_us: int
) -> DataFrame:
    """Messages of won, each with its one recipient."""
    at = {stage: F.col("stage") == stage.value for stage in Stage}
    is_for_node = F.col("type").isin(*(kind.value for kind in ATOM_TYPES), MessageType.REGISTER.value)
    journals = servers.select(F.col("server").alias("next"))
    unseen = (
        hops.where(at[Stage.FORWARDED] & F.col("counterpart").isNotNull())
        .groupBy("message", F.col("counterpart").alias("next"))
        .agg(F.min(F.struct("at", "server")).alias("sent"))
        .join(
            hops.where(~at[Stage.FORWARDED]).select("message", F.col("server").alias("next")).distinct(),
            on=["message", "next"],
            how="left_anti",
        )
        .join(journals.hint("broadcast"), on="next", how="inner")
        .groupBy("message")
        .agg(F.min("sent").alias("unseen"))
    )
    known = messages.select("message", "type", "sender", F.get("recipients", F.lit(0)).alias("recipient"))
    facts = (
        hops.join(known, on="message", how="left")
        .groupBy("message")
        .agg(
            F.any_value("type").alias("type"),
            F.any_value("sender").alias("sender"),
            F.any_value("recipient").alias("recipient"),
            F.min(F.when(at[Stage.ACCEPTED] | at[Stage.CREATED], F.struct("at", "server"))).alias("taken"),
            F.min(
                F.when(at[Stage.DELIVERED] & (F.col("counterpart") == F.col("recipient")), F.struct("at", "server"))
            ).alias("handed"),
            F.min(F.when(at[Stage.ECHOED], F.struct("at", "server"))).alias("echoed"),
            F.min(F.when(at[Stage.REJECTED], F.struct("at", "server", "reason"))).alias("refused"),
            F.count(F.when(at[Stage.DELIVERED] & (F.col("counterpart") == F.col("recipient")), F.lit(1))).alias(
                "attempts"
            ),
        )
        .join(unseen, on="message", how="left")
    )
    waited_us = F.lit(to_us(as_of)) - F.unix_micros("unseen.at")
    outcome = (
        F.when(is_for_node & F.col("taken").isNotNull(), DELIVERED)
        .when(F.col("handed").isNotNull(), DELIVERED)
        .when(F.col("refused").isNotNull() & F.col("taken").isNull(), _refusal(F.col("refused.reason")))
        .when(F.col("unseen").isNotNull() & (waited_us > patience_us), LOST)
        .when(F.col("refused").isNotNull(), _refusal(F.col("refused.reason")))
        .when(F.col("echoed").isNotNull(), ECHOED)
        .otherwise(IN_FLIGHT)
    )
    is_refused = F.col("outcome").isin(REJECTED, UNAUTHORIZED)
    is_lost = F.col("outcome") == LOST
    end = (
        F.when(is_for_node & (F.col("outcome") == DELIVERED), F.col("taken"))
        .when(F.col("outcome") == DELIVERED, F.col("handed"))
        .when(F.col("outcome") == ECHOED, F.col("echoed"))
        .when(is_refused, F.struct("refused.at", "refused.server"))
    )
    return (
        facts.withColumn("outcome", outcome)
        .withColumn("end", end)
        .select(
            F.lit("won").alias("fabric"),
            "message",
            "type",
            "sender",
            F.when(is_for_node, F.coalesce("taken.server", "refused.server"))
            .otherwise(F.col("recipient"))
            .alias("recipient"),
            "outcome",
            F.when(is_refused, Stage.REJECTED.value).when(is_lost, Stage.FORWARDED.value).alias("failed_stage"),
            F.when(is_refused, F.col("refused.server")).when(is_lost, F.col("unseen.server")).alias("failed_at"),
            F.when(is_refused, F.col("refused.reason")).alias("reason"),
            F.col("taken.at").alias("begun"),
            F.col("taken.server").alias("begun_at"),
            F.col("end.at").alias("finished"),
            F.col("end.server").alias("finished_at"),
            "attempts",
        )
        .select(*_PART)
    )


def swarm_deliveries(sightings: DataFrame, servers: DataFrame, *, as_of: dt.datetime) -> DataFrame:
    """Messages of swarms, one row per peer in the lake that has it, refused it, or should have it."""
    own_holders = F.filter("holders", lambda one: swarm_of(one["server"]) == F.col("swarm"))
    own_refusals = F.filter("refusals", lambda one: swarm_of(one["server"]) == F.col("swarm"))
    swarms = F.array_union(
        F.transform("holders", lambda one: swarm_of(one["server"])),
        F.transform("refusals", lambda one: swarm_of(one["server"])),
    )
    spread = (
        sightings.where((F.col("fabric") == "swarm") & (F.size(swarms) > 0))
        .select("message", "expires", "holders", "refusals", F.explode(swarms).alias("swarm"))
        .select("swarm", "message", "expires", own_holders.alias("holders"), own_refusals.alias("refusals"))
        .join(swarm_peers(servers).hint("broadcast"), on="swarm", how="inner")
        .withColumn("first", F.get("holders", F.lit(0)))
    )
    rows = spread.select("message", "expires", "first", F.explode(_each_peer()).alias("one"))
    is_refused = F.col("one.held").isNull() & F.col("one.refused").isNotNull()
    outcome = (
        F.when(F.col("one.held").isNotNull(), DELIVERED)
        .when(is_refused & (F.col("one.reason") == Reason.LIFETIME_OVER.value), EXPIRED)
        .when(is_refused, REJECTED)
        .when(F.col("expires") <= F.lit(as_of), EXPIRED)
        .otherwise(IN_FLIGHT)
    )
    return rows.select(
        F.lit("swarm").alias("fabric"),
        "message",
        F.lit(MESSAGE_TYPE).alias("type"),
        F.lit(None).cast("string").alias("sender"),
        F.col("one.server").alias("recipient"),
        outcome.alias("outcome"),
        F.when(is_refused, Stage.REJECTED.value).alias("failed_stage"),
        F.when(is_refused, F.col("one.server")).alias("failed_at"),
        F.when(is_refused, F.col("one.reason")).alias("reason"),
        F.col("first.since").alias("begun"),
        F.col("first.server").alias("begun_at"),
        F.coalesce("one.held", "one.refused").alias("finished"),
        F.when(F.col("one.held").isNotNull() | is_refused, F.col("one.server")).alias("finished_at"),
        F.when(F.col("one.held").isNotNull(), 1).otherwise(0).cast("bigint").alias("attempts"),
    ).select(*_PART)


def _each_peer() -> Column:
    """Peers with when they held or refused it; where somebody holds it also those that do neither."""
    holding, refusing = F.col("holders.server"), F.col("refusals.server")
    time, text = F.lit(None).cast("timestamp"), F.lit(None).cast("string")
    held = F.transform(
        "holders",
        lambda one: F.struct(
            one["server"].alias("server"), one["since"].alias("held"), time.alias("refused"), text.alias("reason")
        ),
    )
    refused = F.transform(
        F.filter("refusals", lambda one: ~F.array_contains(holding, one["server"])),
        lambda one: F.struct(
            one["server"].alias("server"), time.alias("held"), one["at"].alias("refused"), one["reason"].alias("reason")
        ),
    )
    lacking = F.transform(
        F.array_except("peers", F.concat(holding, refusing)),
        lambda peer: F.struct(peer.alias("server"), time.alias("held"), time.alias("refused"), text.alias("reason")),
    )
    # a message that nobody holds was only ever refused: no peer should have it
    return (
        F.when(F.size("holders") == F.size("peers"), held)
        .when(F.size("holders") == 0, refused)
        .otherwise(F.concat(held, refused, lacking))
    )


def latency(deliveries_table: DataFrame) -> DataFrame:
    """How many deliveries took up to 1, 2, 4, 8 ... milliseconds."""
    done = deliveries_table.where(
        (F.col("outcome") == DELIVERED) & F.col("latency_us").isNotNull() & F.col("skew_known")
    )
    milliseconds = F.greatest(F.col("latency_us") / 1000, F.lit(1.0))
    return (
        done.groupBy("fabric", "type", F.pow(F.lit(2.0), F.ceil(F.log2(milliseconds))).cast("bigint").alias("up_to_ms"))
        .agg(F.count("*").alias("deliveries"))
        .select("fabric", "type", "up_to_ms", "deliveries")
    )


def _begun(hops: DataFrame) -> DataFrame:
    """When and where each message was first taken in or made."""
    return (
        hops.where(F.col("stage").isin(*_TAKEN))
        .groupBy("message")
        .agg(F.min(F.struct("at", "server")).alias("first"))
        .select("message", F.col("first.at").alias("begun"), F.col("first.server").alias("begun_at"))
    )


def _pending(fabric: str, untold: DataFrame, as_of: dt.datetime) -> DataFrame:
    """Rows without any outcome: expired if their lifetime is over as of the audit, else under way."""
    is_over = F.col("expires") <= F.lit(as_of)
    return untold.select(
        F.lit(fabric).alias("fabric"),
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
        F.when(stage.isin(*_HANDED), DELIVERED)
        .when(stage == Stage.EXPIRED.value, EXPIRED)
        .when(stage == Stage.UNDELIVERABLE.value, UNDELIVERABLE)
        .otherwise(_refusal(F.col("reason")))
    )


def _refusal(reason: Column) -> Column:
    return (
        F.when(reason == Reason.UNAUTHORIZED.value, UNAUTHORIZED)
        .when(reason == Reason.LIFETIME_OVER.value, EXPIRED)
        .otherwise(REJECTED)
    )


def _rank(outcome: Column) -> Column:
    rank = F.lit(0)
    for name, value in _RANKS.items():
        rank = F.when(outcome == name, value).otherwise(rank)
    return rank
