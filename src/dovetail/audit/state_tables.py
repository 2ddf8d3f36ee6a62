"""Tables that the audit keeps for its own use, beside those of `schemas`: they lie with them and belong to runs too."""

from __future__ import annotations

import pyarrow as pa

from dovetail.audit.schemas import TABLES
from dovetail.audit.table import BOOLEAN, LONG, STRING, TIMESTAMP, Table
from dovetail.audit.transforms.coverage import PEER_COUNTS
from dovetail.audit.transforms.holdings import SIGHTINGS
from dovetail.audit.transforms.skew import LEGS
from dovetail.lake.decoded import DECODED

_RUN = pa.field("run", LONG)

DECODED_TABLE = Table(
    "decoded",
    "state",
    "What decoding gave, once per sequence of bytes.",
    ("fabric", "digest"),
    DECODED.append(_RUN),
    skipping=("run",),
)
VERDICTS_TABLE = Table(
    "verdicts",
    "state",
    "Signatures that were verified, each once.",
    ("message",),
    pa.schema([pa.field("message", pa.binary()), pa.field("valid", BOOLEAN), _RUN]),
    skipping=("run",),
)
SERVERS_TABLE = Table(
    "servers",
    "state",
    "Servers with hops, their earliest and latest time.",
    ("fabric", "server"),
    pa.schema(
        [
            pa.field("fabric", STRING),
            pa.field("server", STRING),
            pa.field("first_at", TIMESTAMP),
            pa.field("last_at", TIMESTAMP),
        ]
    ),
)

STORED = {
    table.name: table for table in (*TABLES, DECODED_TABLE, VERDICTS_TABLE, SERVERS_TABLE, SIGHTINGS, LEGS, PEER_COUNTS)
}
"""Every table that lies in the tables' directory, by name."""
