"""Swarm: who holds what, and how fast it spread."""

from __future__ import annotations

import datetime as dt

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows it by

from dovetail.hop import Stage

_HELD = (Stage.ACCEPTED.value, Stage.CREATED.value)


def coverage(hops: DataFrame, messages: DataFrame, *, as_of: dt.datetime) -> DataFrame:
    """One row per message and one per peer. Times are those of the peers' own clocks."""
    swarm = F.regexp_extract("server", r"^swarm://([^/]+)/", 1)
    own = hops.where("fabric = 'swarm'").withColumn("swarm", swarm)
    sizes = own.groupBy("swarm").agg(F.count_distinct("server").alias("peers"))
    held = own.where(F.col("stage").isin(*_HELD)).groupBy("swarm", "message", "server").agg(F.min("at").alias("held"))
    spread = (
        held.groupBy("swarm", "message")
        .agg(F.sort_array(F.collect_list("held")).alias("times"))
        .join(F.broadcast(sizes), on="swarm", how="inner")
        .join(messages.where("fabric = 'swarm'").select("message", "expires"), on="message", how="left")
    )
    per_message = spread.select(
        "swarm",
        F.lit("message").alias("scope"),
        "message",
        F.lit(None).cast("string").alias("peer"),
        "peers",
        F.size("times").cast("bigint").alias("holders"),
        (F.col("peers") - F.size("times")).alias("lacking"),
        (F.col("expires") <= F.lit(as_of)).alias("expired"),
        F.get("times", F.lit(0)).alias("first_seen"),
        *(_until(share).alias(name) for name, share in (("half_us", 50), ("most_us", 95), ("all_us", 100))),
    )
    totals = held.groupBy("swarm").agg(F.count_distinct("message").alias("total"))
    per_peer = (
        own.groupBy("swarm", "server")
        .agg(
            F.count_distinct(F.when(F.col("stage").isin(*_HELD), F.col("message"))).alias("holders"),
            F.min("at").alias("first_seen"),
        )
        .join(F.broadcast(totals), on="swarm", how="inner")
        .join(F.broadcast(sizes), on="swarm", how="inner")
        .select(
            "swarm",
            F.lit("peer").alias("scope"),
            F.lit(None).cast("binary").alias("message"),
            F.col("server").alias("peer"),
            "peers",
            "holders",
            (F.col("total") - F.col("holders")).alias("lacking"),
            F.lit(None).cast("boolean").alias("expired"),
            "first_seen",
            *(F.lit(None).cast("bigint").alias(name) for name in ("half_us", "most_us", "all_us")),
        )
    )
    return per_message.unionByName(per_peer).select(
        "swarm",
        "scope",
        "message",
        "peer",
        "peers",
        "holders",
        "lacking",
        "expired",
        "first_seen",
        "half_us",
        "most_us",
        "all_us",
    )


def _until(percent: int) -> Column:
    """Microseconds from the first peer until this share of the peers had it; null if that never was."""
    needed = F.ceil(F.col("peers") * percent / 100).cast("int")
    reached = F.get(F.col("times"), needed - 1)
    return F.unix_micros(reached) - F.unix_micros(F.get("times", F.lit(0)))
