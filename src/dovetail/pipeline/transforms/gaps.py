"""Links whose parent nobody has, or that a server lacks though others have it.

A server holds what it took in or made. Most messages are held by everybody who should hold them, so the second question
is asked only about parents that at least one server of their fabric lacks. One that refused a message does not lack it:
it has seen it and decided, which `deliveries` tells.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows it by

from dovetail.hop import Fabric, Stage

FABRICS = tuple(fabric.value for fabric in Fabric)
NOBODY, SERVER = "nobody", "server"
_HELD = (Stage.ACCEPTED.value, Stage.CREATED.value)


def gaps(
    hops: DataFrame,
    messages: DataFrame,
    links: DataFrame,
    *,
    as_of: dt.datetime,
    fabrics: Sequence[str] = FABRICS,
) -> DataFrame:
    """One row per link and, where others have the parent, per server that lacks it."""
    held = (
        hops.where(F.col("stage").isin(*_HELD)).groupBy("fabric", "message", "server").agg(F.min("at").alias("since"))
    )
    first = held.groupBy("fabric", "message").agg(F.min("since").alias("since"))
    known = messages.select("fabric", F.col("key").alias("parent")).unionByName(
        first.where("fabric != 'pcp'").select("fabric", key_of_address().alias("parent"))
    )
    nobody = (
        links.join(known.distinct(), on=["fabric", "parent"], how="left_anti")
        .join(first.withColumnRenamed("message", "child"), on=["fabric", "child"], how="inner")
        .select(
            "fabric",
            "child",
            "parent",
            "relation",
            F.lit(None).cast("string").alias("server"),
            F.lit(NOBODY).alias("scope"),
            F.lit(0).cast("bigint").alias("holders"),
            "since",
            (F.col("parent_expires") > F.lit(as_of)).alias("unexpired"),
        )
    )
    if set(fabrics) == {"pcp"}:
        return nobody.select(*nobody.columns)
    refused = hops.where((F.col("stage") == Stage.REJECTED.value) & (F.col("fabric") != "pcp"))
    return nobody.unionByName(_lacking(held.where("fabric != 'pcp'"), refused, messages, links, as_of)).select(
        "fabric", "child", "parent", "relation", "server", "scope", "holders", "since", "unexpired"
    )


def _lacking(
    held: DataFrame, refused: DataFrame, messages: DataFrame, links: DataFrame, as_of: dt.datetime
) -> DataFrame:
    """Servers that hold a child and lack its parent, which others hold, and which they did not refuse."""
    servers = held.groupBy("fabric").agg(F.count_distinct("server").alias("servers"))
    partial = (
        held.groupBy("fabric", "message")
        .agg(F.collect_set("server").alias("holding"))
        .join(F.broadcast(servers), on="fabric", how="inner")
        .where(F.size("holding") < F.col("servers"))
        .join(messages.select("fabric", "message", "expires"), on=["fabric", "message"], how="left")
        .select("fabric", key_of_address().alias("parent"), "holding", "expires")
    )
    asked = (
        links.join(partial, on=["fabric", "parent"], how="inner")
        .join(held.withColumnRenamed("message", "child"), on=["fabric", "child"], how="inner")
        .where(~F.array_contains(F.col("holding"), F.col("server")))
        .join(
            refused.select("fabric", key_of_address().alias("parent"), "server"),
            on=["fabric", "parent", "server"],
            how="left_anti",
        )
    )
    return asked.select(
        "fabric",
        "child",
        "parent",
        "relation",
        "server",
        F.lit(SERVER).alias("scope"),
        F.size("holding").cast("bigint").alias("holders"),
        "since",
        (F.coalesce("expires", "parent_expires") > F.lit(as_of)).alias("unexpired"),
    )


def key_of_address() -> Column:
    """How links name a message, from its address alone: swarm by 8 bytes, won by all of it; pcp names ids instead."""
    return F.when(F.col("fabric") == "swarm", F.substring("message", 1, 8)).otherwise(F.col("message"))
