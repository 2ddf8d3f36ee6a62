"""Silver from the rows of the lake: the hops without their bytes, and the rows that cannot be believed."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows it by

LEAF_MISMATCH = "leaf_mismatch"
ADDRESS_MISMATCH = "address_mismatch"


def hops(rows: DataFrame) -> DataFrame:
    """Rows as they were sealed; `proven` says whether their file leads to its announced root."""
    return rows.select(
        "fabric",
        "server",
        "seq",
        "at",
        "stage",
        "message",
        "counterpart",
        "reason",
        "size",
        F.col("raw").isNotNull().alias("has_bytes"),
        "proven",
    )


def servers(hops: DataFrame) -> DataFrame:
    """The servers that wrote hops, with their earliest and their latest time."""
    return (
        hops.groupBy("fabric", "server")
        .agg(F.min("at").alias("first_at"), F.max("at").alias("last_at"))
        .select("fabric", "server", "first_at", "last_at")
    )


def altered_rows(rows: DataFrame) -> DataFrame:
    """Rows (with leaves) that are not as they were sealed, for the quarantine."""
    return rows.where(~F.coalesce(F.col("leaf_valid"), F.lit(False))).select(
        "fabric",
        "server",
        "seq",
        "at",
        "stage",
        "message",
        F.lit(LEAF_MISMATCH).alias("reason"),
        F.lit("the row is not the one that was sealed").alias("detail"),
        F.col("raw").alias("bytes"),
    )
