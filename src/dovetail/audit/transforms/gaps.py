"""Links whose parent no server has, or that a server lacks though others have it; it holds what it accepted or created.

A server that refused a message does not lack it: it has seen it and decided, which `deliveries` shows.
"""

from __future__ import annotations

import datetime as dt

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the conventional name

NOBODY, SERVER = "nobody", "server"


def gaps(suspect_links: DataFrame, holdings: DataFrame, *, as_of: dt.datetime) -> DataFrame:
    """One row per link and, if others have the parent, per server that lacks it."""
    held = holdings.where(F.col("first_seen").isNotNull()).select(
        "fabric", F.col("message").alias("child"), "first_seen", "holders"
    )
    ends = suspect_links.where(F.col("parent_message").isNull() | F.col("holding").isNotNull()).join(
        held, on=["fabric", "child"], how="inner"
    )
    is_nobody = F.col("parent_message").isNull()
    nobody = F.array(F.struct(F.col("first_seen").alias("since"), F.lit(None).cast("string").alias("server")))
    knowing = F.concat("holding", "refusing")
    lacking = F.filter("holders", lambda one: ~F.array_contains(knowing, one["server"]))
    each = ends.select("*", F.explode(F.when(is_nobody, nobody).otherwise(lacking)).alias("one"))
    until = F.when(is_nobody, F.col("parent_expires")).otherwise(F.coalesce("expires", "parent_expires"))
    found = each.select(
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
    return dated(found, as_of=as_of)


def dated(found: DataFrame, *, as_of: dt.datetime) -> DataFrame:
    """Gaps with whether their parents may still be live: the only part that depends on the time of the audit."""
    return found.withColumn("unexpired", F.col("expires") > F.lit(as_of))
