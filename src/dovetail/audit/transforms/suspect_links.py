"""Links whose ends do not match: the one join of links with their targets, on which gaps and forks are based.

Nearly all links lead to an older message that all servers hold. Little is left after one join, and only that is joined
further.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the conventional name

from dovetail.audit.fabric_audit import FabricAudit, is_of
from dovetail.audit.schemas import LINKS
from dovetail.audit.table import BINARY, BOOLEAN, STRING, STRINGS, TIMESTAMP, Table

SUSPECT_LINKS = Table(
    "suspect_links",
    "state",
    "Links whose parent is missing, lacking somewhere, or not older.",
    ("fabric", "child", "parent", "relation"),
    pa.schema(
        [
            *(field for field in LINKS.arrow if field.name != "run"),
            ("parent_message", BINARY),
            ("parent_created", TIMESTAMP),
            ("parent_signer", STRING),
            ("parent_seen", TIMESTAMP),
            ("parent_decoded", BOOLEAN),
            ("expires", TIMESTAMP),
            ("holding", STRINGS),
            ("refusing", STRINGS),
        ]
    ),
)
"""`holding` and `refusing` are set only if some server of the fabric holds the parent and another does not."""


def suspect_links(
    links: DataFrame, holdings: DataFrame, servers: DataFrame, *, audits: Sequence[FabricAudit]
) -> DataFrame:
    """One row per link and message it may refer to, if there is anything to report about it."""
    counts = servers.groupBy("fabric").agg(F.count("*").alias("servers"))
    holders = F.size("holders")
    is_graph = is_of(audit for audit in audits if audit.against_time is not None)
    is_lacking = is_graph & (holders > 0) & (holders < F.coalesce("servers", F.lit(0)))
    # drop the holders of a parent that all hold, because these rows are shuffled
    known = (
        holdings.where(F.col("is_decoded") | F.col("first_seen").isNotNull())
        .join(counts.hint("broadcast"), on="fabric", how="left")
        .select(
            "fabric",
            F.col("key").alias("parent"),
            F.col("message").alias("parent_message"),
            F.col("created").alias("parent_created"),
            F.col("signer").alias("parent_signer"),
            F.col("first_seen").alias("parent_seen"),
            F.col("is_decoded").alias("parent_decoded"),
            "expires",
            F.when(is_lacking, F.col("holders.server")).alias("holding"),
            F.when(is_lacking, F.col("refusals.server")).alias("refusing"),
        )
    )
    joined = links.join(known, on=["fabric", "parent"], how="left")
    is_odd = is_graph & (F.col("parent_created") >= F.col("child_created"))
    suspects = joined.where(F.col("parent_message").isNull() | F.col("holding").isNotNull() | is_odd)
    return suspects.select(*SUSPECT_LINKS.names)
