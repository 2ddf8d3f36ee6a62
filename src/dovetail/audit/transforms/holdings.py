"""Who holds or refused each message, together with its decoded fields: computed once, and used by most tables.

Hops and messages are combined in one aggregation by address instead of one join per table. One row per message that a
server accepted, created or refused, or whose bytes are known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the conventional name
from pyspark.sql.types import StringType, StructField, StructType, TimestampType

from dovetail.audit.fabric_audit import FabricAudit, by_fabric, is_of, union
from dovetail.audit.table import BINARY, BOOLEAN, STRING, TIMESTAMP, Table
from dovetail.model.address import ADDRESS_BYTES
from dovetail.model.hop import Stage

HOLDER = StructType([StructField("since", TimestampType()), StructField("server", StringType())])
REFUSAL = StructType(
    [StructField("at", TimestampType()), StructField("reason", StringType()), StructField("server", StringType())]
)

HOLDINGS = Table(
    "holdings",
    "state",
    "Who holds or refused each message, and when.",
    ("fabric", "message"),
    pa.schema(
        [
            ("fabric", STRING),
            ("message", BINARY),
            ("key", BINARY),
            ("is_decoded", BOOLEAN),
            ("sender", STRING),
            ("signer", STRING),
            ("created", TIMESTAMP),
            ("expires", TIMESTAMP),
            ("work_valid", BOOLEAN),
            ("first_seen", TIMESTAMP),
            ("holders", pa.list_(pa.struct([("since", TIMESTAMP), ("server", STRING)]))),
            ("refusals", pa.list_(pa.struct([("at", TIMESTAMP), ("reason", STRING), ("server", STRING)]))),
        ]
    ),
    skipping=("first_seen", "expires"),
)
"""`holders` are ordered by time and name, each server once; `first_seen` is null if no server holds it.

`sender` is the server that created a message if its bytes name no sender.
"""

TAKEN = (Stage.ACCEPTED.value, Stage.CREATED.value)
_BODY = ("key", "sender", "signer", "created", "expires", "work_valid")

MAX_COLUMNS = 16
"""Up to this many servers, holdings are computed by `FabricAudit.few_holders`, if there is one."""


def holdings(
    hops: DataFrame,
    messages: DataFrame,
    *,
    audits: Sequence[FabricAudit],
    servers: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> DataFrame:
    """One row per message; `servers` are all known servers of each fabric."""
    parts = []
    others = list(audits)
    for audit in audits:
        few = servers.get(audit.name, ())
        if audit.few_holders is not None and 0 < len(few) <= MAX_COLUMNS:
            is_own = F.col("fabric") == audit.name
            parts.append(audit.few_holders(hops.where(is_own), messages.where(is_own), few))
            others.remove(audit)
    if others:
        chosen = (table.where(is_of(others)) if parts else table for table in (hops, messages))
        parts.append(collect_holdings(*chosen, audits=others))
    return union(parts)


def collect_holdings(hops: DataFrame, messages: DataFrame, *, audits: Sequence[FabricAudit]) -> DataFrame:
    """Messages of any fabric, with any number of servers."""
    is_taken = F.col("stage").isin(*TAKEN)
    is_refused = F.col("stage") == Stage.REJECTED.value
    events = hops.where(is_taken | is_refused).select(
        "fabric",
        "message",
        F.when(is_taken, F.struct(F.col("at").alias("since"), "server")).alias("holder"),
        F.when(is_refused, F.struct("at", "reason", "server")).alias("refusal"),
        F.when(F.col("stage") == Stage.CREATED.value, F.col("server")).alias("maker"),
        F.lit(None).cast(messages.select(F.struct(*_BODY)).schema[0].dataType).alias("body"),
    )
    bodies = messages.select(
        "fabric",
        "message",
        F.lit(None).cast(HOLDER).alias("holder"),
        F.lit(None).cast(REFUSAL).alias("refusal"),
        F.lit(None).cast("string").alias("maker"),
        F.struct(*_BODY).alias("body"),
    )
    gathered = (
        events.unionByName(bodies)
        .groupBy("fabric", "message")
        .agg(
            F.collect_list("holder").alias("holders"),
            F.collect_list("refusal").alias("refusals"),
            F.min("maker").alias("maker"),
            F.any_value("body", ignoreNulls=F.lit(True)).alias("body"),
        )
        .select("fabric", "message", "maker", "body", _each_server("holders"), _each_server("refusals"))
    )
    return gathered.select(
        "fabric",
        "message",
        F.coalesce("body.key", key_of_address(audits)).alias("key"),
        F.col("body").isNotNull().alias("is_decoded"),
        F.coalesce("body.sender", "maker").alias("sender"),
        *(F.col(f"body.{name}").alias(name) for name in ("signer", "created", "expires")),
        "body.work_valid",
        F.get("holders", F.lit(0))["since"].alias("first_seen"),
        "holders",
        "refusals",
    ).select(*HOLDINGS.names)


def key_of_address(audits: Sequence[FabricAudit]) -> Column:
    """How links name a message, if its address alone determines it."""

    def key(audit: FabricAudit) -> Column:
        size = audit.fabric.key_bytes
        return F.col("message") if size == ADDRESS_BYTES else F.substring("message", 1, size or 0)

    known = [audit for audit in audits if audit.fabric.key_bytes is not None]
    return by_fabric(known, key, F.lit(None).cast("binary"))


def _each_server(name: str) -> Column:
    """The earliest of each server, in order; there is hardly ever more than one."""
    ordered = F.sort_array(name)
    servers = F.transform(ordered, lambda one: one["server"])
    earliest = F.filter(ordered, lambda one, index: F.array_position(servers, one["server"]) == index + 1)
    return F.when(F.size(name) < 2, F.col(name)).otherwise(earliest).alias(name)
