"""How far the clocks of servers are apart, from messages that travelled between them both ways.

A leg is a message that one server says it forwarded or served to another, and that the other says it took from the
first. A leg's time is its latency plus the difference of the clocks; there and back the difference has opposite signs,
so half the difference of the fastest legs estimates it, right to within half of their sum.
"""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows it by

from dovetail.audit.table import LONG, STRING, Table
from dovetail.model.hop import Stage

LEGS = Table(
    "one_way_delays",
    "state",
    "The fastest leg from each server to each other one.",
    ("source", "target"),
    pa.schema([("source", STRING), ("target", STRING), ("least_us", LONG), ("legs", LONG)]),
)

_SENT = (Stage.FORWARDED.value, Stage.SERVED.value)


def legs(hops: DataFrame) -> DataFrame:
    """One row per message and pair of servers it went between: when it left and arrived, by their own clocks."""
    sent = (
        hops.where(F.col("stage").isin(*_SENT) & F.col("counterpart").isNotNull())
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


def fastest_legs(hops: DataFrame) -> DataFrame:
    """For each pair of servers the time of the fastest leg from one to the other, and how many there were."""
    time_us = F.unix_micros("arrived") - F.unix_micros("left")
    return (
        legs(hops)
        .groupBy("source", "target")
        .agg(F.min(time_us).alias("least_us"), F.count("*").alias("legs"))
        .select(*LEGS.names)
    )


def skew(fastest: DataFrame) -> DataFrame:
    """The estimated difference of the clocks for each pair of servers; null where messages went one way only."""
    there = fastest.where(F.col("source") < F.col("target")).select(
        F.col("source").alias("server"),
        F.col("target").alias("other"),
        F.col("least_us").alias("there_us"),
        F.col("legs").alias("there"),
    )
    back = fastest.where(F.col("source") > F.col("target")).select(
        F.col("target").alias("server"),
        F.col("source").alias("other"),
        F.col("least_us").alias("back_us"),
        F.col("legs").alias("back"),
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
