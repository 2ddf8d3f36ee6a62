"""Hops per minute."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the conventional name


def traffic(hops: DataFrame, messages: DataFrame) -> DataFrame:
    """Hops by minute, fabric, server, message type, stage and reason."""
    typed = hops.join(messages.select("fabric", "message", "type"), on=["fabric", "message"], how="left")
    return (
        typed.groupBy(F.date_trunc("minute", "at").alias("minute"), "fabric", "server", "type", "stage", "reason")
        .agg(
            F.count("*").alias("hops"),
            F.count_distinct("message").alias("messages"),
            F.sum(F.coalesce("size", F.lit(0))).alias("bytes"),
        )
        .select("minute", "fabric", "server", "type", "stage", "reason", "hops", "messages", "bytes")
    )
