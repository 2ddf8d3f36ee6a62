"""How far servers' clocks differ, from messages that travelled between them in both directions.

A one-way delay is the time between the hop by which one server forwarded or served a message to another and the hop by
which the other accepted it: its latency plus the clock difference. There and back the difference has opposite signs, so
half the difference of the least delays estimates it, to within half of their sum.
"""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the conventional name

from dovetail.audit.table import LONG, STRING, Table
from dovetail.model.hop import Stage

ONE_WAY_DELAYS = Table(
    "one_way_delays",
    "state",
    "The least delay from each server to each other one.",
    ("source", "target"),
    pa.schema([("source", STRING), ("target", STRING), ("least_us", LONG), ("messages", LONG)]),
)

SENT = (Stage.FORWARDED.value, Stage.SERVED.value)


def one_way_delays(hops: DataFrame) -> DataFrame:
    """One row per message and pair of servers it travelled between: when it left and arrived, by their own clocks."""
    sent = (
        hops.where(F.col("stage").isin(*SENT) & F.col("counterpart").isNotNull())
        .groupBy("message", F.col("server").alias("source"), F.col("counterpart").alias("target"))
        .agg(F.min("at").alias("left"))
    )
    taken = (
        hops.where((F.col("stage") == Stage.ACCEPTED.value) & F.col("counterpart").isNotNull())
        .groupBy("message", F.col("counterpart").alias("source"), F.col("server").alias("target"))
        .agg(F.min("at").alias("arrived"))
    )
    return sent.join(taken, on=["message", "source", "target"], how="inner").select(
        "message", "source", "target", "left", "arrived"
    )


def least_delays(hops: DataFrame) -> DataFrame:
    """For each pair of servers the least delay from one to the other, and how many messages went that way."""
    time_us = F.unix_micros("arrived") - F.unix_micros("left")
    return (
        one_way_delays(hops)
        .groupBy("source", "target")
        .agg(F.min(time_us).alias("least_us"), F.count("*").alias("messages"))
        .select(*ONE_WAY_DELAYS.names)
    )


def skew(fastest: DataFrame) -> DataFrame:
    """The estimated clock difference for each pair of servers; null if messages went one way only."""
    there = fastest.where(F.col("source") < F.col("target")).select(
        F.col("source").alias("server"),
        F.col("target").alias("other"),
        F.col("least_us").alias("there_us"),
        F.col("messages").alias("there"),
    )
    back = fastest.where(F.col("source") > F.col("target")).select(
        F.col("target").alias("server"),
        F.col("source").alias("other"),
        F.col("least_us").alias("back_us"),
        F.col("messages").alias("back"),
    )
    return there.join(back, on=["server", "other"], how="full").select(
        "server",
        "other",
        F.floor((F.col("there_us") - F.col("back_us")) / 2).cast("bigint").alias("offset_us"),
        F.ceil((F.col("there_us") + F.col("back_us")) / 2).cast("bigint").alias("error_us"),
        F.coalesce("there", F.lit(0).cast("bigint")).alias("there"),
        F.coalesce("back", F.lit(0).cast("bigint")).alias("back"),
    )


def both_ways(skew_table: DataFrame) -> DataFrame:
    """Offsets by ordered pair: add `clock_offset_us` to a time from `begun_at` to `finished_at` to correct it."""
    forward = skew_table.select(
        F.col("server").alias("begun_at"),
        F.col("other").alias("finished_at"),
        (-F.col("offset_us")).alias("clock_offset_us"),
    )
    backward = skew_table.select(
        F.col("other").alias("begun_at"),
        F.col("server").alias("finished_at"),
        F.col("offset_us").alias("clock_offset_us"),
    )
    return forward.unionByName(backward).select("begun_at", "finished_at", "clock_offset_us")
