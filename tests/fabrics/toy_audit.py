"""The audit of postcards: the recipient's box records that a card was put into it."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the conventional name

from dovetail.audit.fabric_audit import FabricAudit, Moment, Rows
from dovetail.audit.transforms.deliveries import PART, first_taken
from dovetail.model.hop import Stage
from dovetail.model.outcome import Outcome
from fabrics.toy_fabric import FABRIC


def deliveries(rows: Rows, moment: Moment) -> DataFrame:
    """One row per card: delivered if a box says so, else pending."""
    handed = (
        rows.hops.where(F.col("stage") == Stage.DELIVERED.value)
        .groupBy("message")
        .agg(F.min(F.struct("at", "server")).alias("handed"), F.count("*").alias("attempts"))
    )
    each = rows.messages.join(first_taken(rows.hops), on="message", how="inner")
    told = each.join(handed, on="message", how="left").select(
        F.lit(FABRIC.name).alias("fabric"),
        *("message", "type", "sender", "begun", "begun_at", "expires"),
        F.get("recipients", F.lit(0)).alias("recipient"),
        F.when(F.col("handed").isNotNull(), Outcome.DELIVERED).otherwise(Outcome.IN_FLIGHT).alias("outcome"),
        *(F.lit(None).cast("string").alias(name) for name in ("failed_stage", "failed_at", "reason")),
        F.col("handed.at").alias("finished"),
        F.col("handed.server").alias("finished_at"),
        F.coalesce("attempts", F.lit(0).cast("bigint")).alias("attempts"),
    )
    return told.select(*PART)


AUDIT = FabricAudit(fabric=FABRIC, deliveries=deliveries)
