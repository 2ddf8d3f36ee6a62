"""Silver from the rows of the lake: the hops without their bytes, and the rows that cannot be trusted."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the conventional name

from dovetail.model.hop import Reason, Stage

LEAF_MISMATCH = "leaf_mismatch"
ADDRESS_MISMATCH = "address_mismatch"


def hops(rows: DataFrame) -> DataFrame:
    """Rows as they were sealed; `proven` is true if their file leads to its announced root.

    A leaf is the same for an absent text and an empty one, so both are absent here.
    """
    return rows.select(
        "fabric",
        "server",
        "seq",
        "at",
        "stage",
        "message",
        *(F.nullif(name, F.lit("")).alias(name) for name in ("counterpart", "reason")),
        "size",
        F.col("raw").isNotNull().alias("has_bytes"),
        "proven",
    )


def servers(hops: DataFrame) -> DataFrame:
    """The servers that wrote hops, with their earliest and latest times, and when they were stopped in between."""
    since = F.try_to_timestamp("counterpart")
    is_absence = is_restart() & (since < F.col("at")) & F.col("proven")
    absences = F.collect_set(F.when(is_absence, F.struct(since.alias("since"), F.col("at").alias("until"))))
    return (
        hops.groupBy("fabric", "server")
        .agg(F.min("at").alias("first_at"), F.max("at").alias("last_at"), F.sort_array(absences).alias("absences"))
        .select("fabric", "server", "first_at", "last_at", "absences")
    )


def is_restart() -> Column:
    """True if a hop records that its server was started again; it names the time of the hop before."""
    return (F.col("stage") == Stage.NOTED.value) & (F.col("reason") == Reason.RESTARTED.value)


def altered_rows(rows: DataFrame) -> DataFrame:
    """Rows (with leaves) that are not as they were sealed, for the quarantine."""
    altered = rows.where(~F.coalesce(F.col("leaf_valid"), F.lit(False)))
    return quarantined(altered, F.lit(LEAF_MISMATCH), F.lit("the row is not the one that was sealed"))


def quarantined(rows: DataFrame, reason: Column, detail: Column) -> DataFrame:
    """The columns of the quarantine."""
    return rows.select(
        *("fabric", "server", "seq", "at", "stage", "message"),
        reason.alias("reason"),
        detail.alias("detail"),
        F.col("raw").alias("bytes"),
    )
