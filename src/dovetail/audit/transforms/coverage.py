"""Swarm: who holds what, and how fast it spread."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows it by

from dovetail.audit.transforms.holdings import swarm_of, swarm_peers


def coverage(sightings: DataFrame, servers: DataFrame) -> DataFrame:
    """One row per message and one per peer. Times are those of the peers' own clocks."""
    return message_coverage(sightings, servers).unionByName(peer_coverage(peer_counts(sightings), servers))


def message_coverage(sightings: DataFrame, servers: DataFrame) -> DataFrame:
    """How many peers of its swarm hold each message, and when they had it."""
    spread = (
        _held(sightings)
        .join(swarm_peers(servers).hint("broadcast"), on="swarm", how="inner")
        .withColumn("peers", F.size("peers").cast("bigint"))
    )
    return spread.select(
        "swarm",
        F.lit("message").alias("scope"),
        "message",
        F.lit(None).cast("string").alias("peer"),
        "peers",
        F.size("times").cast("bigint").alias("holders"),
        (F.col("peers") - F.size("times")).alias("lacking"),
        "expires",
        F.get("times", F.lit(0)).alias("first_seen"),
        *(_until(share).alias(name) for name, share in (("half_us", 50), ("most_us", 95), ("all_us", 100))),
    )


def peer_counts(sightings: DataFrame) -> DataFrame:
    """How `many` messages each `server` holds in its `swarm`, and without a server how many somebody holds there."""
    held = _held(sightings)
    totals = held.groupBy("swarm").agg(F.count("*").alias("many"))
    holding = (
        held.select("swarm", F.explode("own").alias("one"))
        .groupBy("swarm", F.col("one.server").alias("server"))
        .agg(F.count("*").alias("many"))
    )
    return totals.select("swarm", F.lit(None).cast("string").alias("server"), "many").unionByName(holding)


def counts_of(peer_rows: DataFrame) -> DataFrame:
    """The counts that `peer_coverage` made its rows from."""
    each = peer_rows.select("swarm", F.col("peer").alias("server"), F.col("holders").alias("many"))
    totals = peer_rows.groupBy("swarm").agg(F.max(F.col("holders") + F.col("lacking")).alias("many"))
    return totals.select("swarm", F.lit(None).cast("string").alias("server"), "many").unionByName(each)


def peer_coverage(counts: DataFrame, servers: DataFrame) -> DataFrame:
    """How many messages of its swarm each peer holds; a swarm in which nobody holds anything has no rows."""
    totals = counts.where("server IS NULL AND many > 0").select("swarm", F.col("many").alias("total"))
    holding = counts.where("server IS NOT NULL").select("swarm", "server", F.col("many").alias("holders"))
    peers = servers.where("fabric = 'swarm'").withColumn("swarm", swarm_of(F.col("server")))
    sizes = peers.groupBy("swarm").agg(F.count("*").alias("peers"))
    each = (
        peers.join(totals.hint("broadcast"), on="swarm", how="inner")
        .join(sizes.hint("broadcast"), on="swarm", how="inner")
        .join(holding.hint("broadcast"), on=["swarm", "server"], how="left")
        .withColumn("holders", F.coalesce("holders", F.lit(0).cast("bigint")))
    )
    return each.select(
        "swarm",
        F.lit("peer").alias("scope"),
        F.lit(None).cast("binary").alias("message"),
        F.col("server").alias("peer"),
        "peers",
        "holders",
        (F.col("total") - F.col("holders")).alias("lacking"),
        F.lit(None).cast("timestamp").alias("expires"),
        F.col("first_at").alias("first_seen"),
        *(F.lit(None).cast("bigint").alias(name) for name in ("half_us", "most_us", "all_us")),
    )


def _held(sightings: DataFrame) -> DataFrame:
    """One row per swarm and message that is held there, with its holders and their times in order."""
    of_holder = F.transform("holders", lambda one: swarm_of(one["server"]))
    spread = sightings.where((F.col("fabric") == "swarm") & F.col("first_seen").isNotNull()).select(
        "message", "expires", "holders", F.explode(F.array_distinct(of_holder)).alias("swarm")
    )
    own = F.filter("holders", lambda one: swarm_of(one["server"]) == F.col("swarm"))
    return spread.select("swarm", "message", "expires", own.alias("own")).withColumn("times", F.col("own.since"))


def _until(percent: int) -> Column:
    """Microseconds from the first peer until this share of the peers had it; null if that never was."""
    needed = F.ceil(F.col("peers") * percent / 100).cast("int")
    reached = F.get(F.col("times"), needed - 1)
    return F.unix_micros(reached) - F.unix_micros(F.get("times", F.lit(0)))
