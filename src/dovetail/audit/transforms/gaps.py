"""Links whose parent nobody has, or that a server lacks though others have it; what it took in or made it holds.

A server that refused a message does not lack it: it has seen it and decided, which `deliveries` tells.
"""

from __future__ import annotations

import datetime as dt

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows it by

NOBODY, SERVER = "nobody", "server"


def gaps(edges: DataFrame, sightings: DataFrame, *, as_of: dt.datetime) -> DataFrame:
    """One row per link and, where others have the parent, per server that lacks it."""
    held = sightings.where(F.col("first_seen").isNotNull()).select(
        "fabric", F.col("message").alias("child"), "first_seen", "holders"
    )
    ends = edges.where(F.col("parent_message").isNull() | F.col("holding").isNotNull()).join(
        held, on=["fabric", "child"], how="inner"
    )
    is_nobody = F.col("parent_message").isNull()
    nobody = F.array(F.struct(F.col("first_seen").alias("since"), F.lit(None).cast("string").alias("server")))
    knowing = F.concat("holding", "refusing")
    lacking = F.filter("holders", lambda one: ~F.array_contains(knowing, one["server"]))
    each = ends.select("*", F.explode(F.when(is_nobody, nobody).otherwise(lacking)).alias("one"))
    until = F.when(is_nobody, F.col("parent_expires")).otherwise(F.coalesce("expires", "parent_expires"))
    told = each.select(
        "fabric",
        "child",
        "parent",
        "relation",
        F.col("one.server").alias("server"),
        F.when(is_nobody, NOBODY).otherwise(SERVER).alias("scope"),
        F.when(is_nobody, 0).otherwise(F.size("holding")).cast("bigint").alias("holders"),
        F.col("one.since").alias("since"),
        until.alias("expires"),
    )
    return dated(told, as_of=as_of)


def dated(told: DataFrame, *, as_of: dt.datetime) -> DataFrame:
    """Gaps with whether their parents may still be live: all that the moment of the audit changes about them."""
    return told.withColumn("unexpired", F.col("expires") > F.lit(as_of))
