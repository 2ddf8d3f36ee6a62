"""The outcome of each message for each of its recipients.

Each fabric determines it in its own way (`FabricAudit.deliveries`); this module has what they share, and combines them.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the conventional name

from dovetail.audit.fabric_audit import FabricAudit, Moment, Rows, union
from dovetail.audit.transforms.holdings import TAKEN
from dovetail.audit.transforms.skew import both_ways
from dovetail.model.hop import Reason, Stage
from dovetail.model.outcome import ARRIVED, Outcome
from dovetail.model.times import to_us

HANDED = (Stage.DELIVERED.value, Stage.REDELIVERED.value)

PART = (
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
    "expires",
    "attempts",
)
"""Columns of a fabric's part; `begun_at` and `finished_at` are the servers by whose clocks it began and ended.

Without attempts there was no leg between two servers or connections that a clock could have measured.
"""


def deliveries(
    hops: DataFrame,
    messages: DataFrame,
    holdings: DataFrame,
    answers: DataFrame,
    servers: DataFrame,
    skew: DataFrame,
    *,
    moment: Moment,
    audits: Sequence[FabricAudit],
) -> DataFrame:
    """One row per message and intended recipient; latencies are corrected if the clock offset is known."""
    each = []
    for audit in audits:
        is_own = F.col("fabric") == audit.name
        own = Rows(*(table.where(is_own) for table in (hops, messages, holdings, answers, servers)))
        each.append(audit.deliveries(own, moment))
    parts = union(each)
    same_clock = F.col("begun_at").eqNullSafe(F.col("finished_at"))
    offset = F.when(same_clock, F.lit(0).cast("bigint")).otherwise(F.col("clock_offset_us"))
    took_us = F.unix_micros("finished") - F.unix_micros("begun") + offset
    is_measured = F.col("outcome").isin(*ARRIVED) & (F.col("attempts") > 0)
    # nothing arrives before it was accepted: then a clock was set in between, and no single offset corrects it
    is_told = offset.isNotNull() & (~is_measured | F.coalesce(took_us >= 0, F.lit(True)))
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
        F.when(is_measured & is_told, took_us).alias("latency_us"),
        "attempts",
        offset.alias("clock_offset_us"),
        is_told.alias("skew_known"),
        "expires",
    )


def latency(deliveries_table: DataFrame) -> DataFrame:
    """How many deliveries took up to 1, 2, 4, 8 ... milliseconds."""
    done = deliveries_table.where(F.col("latency_us").isNotNull())
    milliseconds = F.greatest(F.col("latency_us") / 1000, F.lit(1.0))
    return (
        done.groupBy("fabric", "type", F.pow(F.lit(2.0), F.ceil(F.log2(milliseconds))).cast("bigint").alias("up_to_ms"))
        .agg(F.count("*").alias("deliveries"))
        .select("fabric", "type", "up_to_ms", "deliveries")
    )


def first_taken(hops: DataFrame) -> DataFrame:
    """When each server first accepted or created each message, and how often that was."""
    return (
        hops.where(F.col("stage").isin(*TAKEN))
        .groupBy("message", "server")
        .agg(F.min("at").alias("begun"), F.count("*").alias("times"))
        .select("message", "server", "begun", F.col("server").alias("begun_at"), "times")
    )


def refusal_outcome(reason: Column) -> Column:
    """The outcome of a refusal for this reason."""
    return (
        F.when(reason == Reason.UNAUTHORIZED.value, Outcome.UNAUTHORIZED)
        .when(reason == Reason.LIFETIME_OVER.value, Outcome.EXPIRED)
        .otherwise(Outcome.REJECTED)
    )


def reach_from(begun: Column, reaches: Column, moment: Moment) -> Column:
    """How far a journal goes on without a gap from `begun`; null if that is not known.

    Clocks differ: it must be known from the loss timeout before that on.
    """
    since_us = F.unix_micros(begun) - moment.loss_timeout_us
    known = F.filter(reaches, lambda one: one["since"].isNull() | (F.unix_micros(one["since"]) <= since_us))
    return F.try_element_at(known, F.lit(-1))["until"]


def owed_outcome(end: Column, reach: Column, moment: Moment, *, is_excused: Column | None = None) -> Column:
    """The outcome of a delivery without a recorded one, if its lifetime, which ends at `end`, is over; else null.

    `reach` is how far the journal of the server that owes the outcome is known: see `reach_from`. A server that could
    not have had the message in time is excused.
    """
    overdue_us = F.unix_micros(end) + moment.loss_timeout_us
    is_over = overdue_us < to_us(moment.as_of)
    return (
        F.when(is_over & (F.lit(False) if is_excused is None else is_excused), Outcome.EXPIRED)
        .when(is_over & (overdue_us < F.unix_micros(reach)), Outcome.NO_OUTCOME)
        .when(is_over, Outcome.UNREPORTED)
    )
