"""Who answered which message: proof that a recipient, or the node that keeps its messages, has one."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the conventional name

from dovetail.audit.fabric_audit import FabricAudit, by_fabric, is_of
from dovetail.audit.table import BINARY, STRING, TIMESTAMP, Table
from dovetail.audit.transforms.holdings import TAKEN

ANSWERS = Table(
    "answers",
    "state",
    "Who answered a message, by types of answers.",
    ("fabric", "parent", "sender", "recipient", "type", "server"),
    pa.schema(
        [
            ("fabric", STRING),
            ("parent", BINARY),
            ("sender", STRING),
            ("recipient", STRING),
            ("type", STRING),
            ("server", STRING),
            ("at", TIMESTAMP),
        ]
    ),
)
"""`parent` is how links name the answered message; `at` is when this server first accepted the answer."""


def answers(hops: DataFrame, messages: DataFrame, links: DataFrame, *, audits: Sequence[FabricAudit]) -> DataFrame:
    """Answers that a server accepted or created; a refused one may come from anyone."""
    answering = [audit for audit in audits if audit.answers is not None]
    relation = by_fabric(answering, lambda audit: F.lit(str(audit.answers)), F.lit(None).cast("string"))
    named = links.where(is_of(answering) & (F.col("relation") == relation))
    taken = (
        hops.where(is_of(answering) & F.col("stage").isin(*TAKEN))
        .groupBy("fabric", "message", "server")
        .agg(F.min("at").alias("at"))
    )
    return (
        named.select("fabric", F.col("child").alias("message"), "parent")
        .join(
            messages.where(is_of(answering)).select(
                "fabric", "message", "sender", F.explode_outer("recipients").alias("recipient"), "type"
            ),
            on=["fabric", "message"],
            how="inner",
        )
        .join(taken, on=["fabric", "message"], how="inner")
        .groupBy("fabric", "parent", "sender", "recipient", "type", "server")
        .agg(F.min("at").alias("at"))
        .select(*ANSWERS.names)
    )
