"""Communities: which of the servers that should hold a message do, and how fast it spread."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the conventional name

from dovetail.audit.fabric_audit import FabricAudit, communal, is_of
from dovetail.audit.table import LONG, STRING, Table

PEER_COUNTS = Table(
    "peer_counts",
    "state",
    "How many messages each server of a community holds, and without a server how many somebody holds there.",
    ("swarm", "server"),
    pa.schema([("swarm", STRING), ("server", STRING), ("many", LONG)]),
    sums=("many",),
)


def coverage(holdings: DataFrame, counts: DataFrame, servers: DataFrame, *, audits: Sequence[FabricAudit]) -> DataFrame:
    """One row per message and one per peer. Times are by the peers' own clocks."""
    return message_coverage(holdings, servers, audits).unionByName(peer_coverage(counts, servers, audits))


def message_coverage(holdings: DataFrame, servers: DataFrame, audits: Sequence[FabricAudit]) -> DataFrame:
    """How many peers of its swarm hold each message, and when they got it."""
    sizes = _members(servers, audits).groupBy("swarm").agg(F.count_distinct("server").alias("peers"))
    spread = _held(holdings, audits).join(sizes.hint("broadcast"), on="swarm", how="inner")
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


def peer_counts(holdings: DataFrame, *, audits: Sequence[FabricAudit]) -> DataFrame:
    """How `many` messages each `server` holds in its `swarm`; without a server, how many any server holds there."""
    held = _held(holdings, audits)
    totals = held.groupBy("swarm").agg(F.count("*").alias("many"))
    holding = (
        held.select("swarm", F.explode("own").alias("one"))
        .groupBy("swarm", F.col("one.server").alias("server"))
        .agg(F.count("*").alias("many"))
    )
    return totals.select("swarm", F.lit(None).cast("string").alias("server"), "many").unionByName(holding)


def peer_coverage(counts: DataFrame, servers: DataFrame, audits: Sequence[FabricAudit]) -> DataFrame:
    """How many messages of its swarm each peer holds; a swarm in which no peer holds anything has no rows."""
    totals = counts.where("server IS NULL AND many > 0").select("swarm", F.col("many").alias("total"))
    holding = counts.where("server IS NOT NULL").select("swarm", "server", F.col("many").alias("holders"))
    peers = _members(servers, audits)
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


def _members(servers: DataFrame, audits: Sequence[FabricAudit]) -> DataFrame:
    """The servers that have a community, with its name as `swarm`."""
    return servers.where(is_of(communal(audits))).withColumn("swarm", _community(F.col("server"), audits))


def _held(holdings: DataFrame, audits: Sequence[FabricAudit]) -> DataFrame:
    """One row per community and message held there, with its holders and their times in order."""
    of_holder = F.transform("holders", lambda one: _community(one["server"], audits))
    spread = holdings.where(is_of(communal(audits)) & F.col("first_seen").isNotNull()).select(
        "fabric", "message", "expires", "holders", F.explode(F.array_distinct(of_holder)).alias("swarm")
    )
    own = F.filter("holders", lambda one: _community(one["server"], audits) == F.col("swarm"))
    return spread.select("swarm", "message", "expires", own.alias("own")).withColumn("times", F.col("own.since"))


def _community(server: Column, audits: Sequence[FabricAudit]) -> Column:
    """The community of a server, "" if it has none."""
    first, *others = [audit.community(server) for audit in audits if audit.community is not None]
    for named in others:
        first = F.when(first == "", named).otherwise(first)
    return first


def _until(percent: int) -> Column:
    """Microseconds from the first peer until this share of the peers had it; null if that never happened."""
    needed = F.ceil(F.col("peers") * percent / 100).cast("int")
    reached = F.get(F.col("times"), needed - 1)
    return F.unix_micros(reached) - F.unix_micros(F.get("times", F.lit(0)))
