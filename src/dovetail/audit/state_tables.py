"""Internal tables of the audit, in addition to those of `schemas`: stored with them and versioned by runs too."""

from __future__ import annotations

import pyarrow as pa

from dovetail.audit.schemas import TABLES
from dovetail.audit.table import BOOLEAN, LONG, STRING, TIMESTAMP, Table
from dovetail.audit.transforms.coverage import PEER_COUNTS
from dovetail.audit.transforms.holdings import HOLDINGS
from dovetail.audit.transforms.skew import ONE_WAY_DELAYS
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
    "Servers with hops, their earliest and latest time, when they were stopped, and what is known of their journals.",
    ("fabric", "server"),
    pa.schema(
        [
            pa.field("fabric", STRING),
            pa.field("server", STRING),
            pa.field("first_at", TIMESTAMP),
            pa.field("last_at", TIMESTAMP),
            pa.field("absences", pa.list_(pa.struct([("since", TIMESTAMP), ("until", TIMESTAMP)]))),
            pa.field("reaches", pa.list_(pa.struct([("since", TIMESTAMP), ("until", TIMESTAMP)]))),
        ]
    ),
)

STORED = {
    table.name: table
    for table in (*TABLES, DECODED_TABLE, VERDICTS_TABLE, SERVERS_TABLE, HOLDINGS, ONE_WAY_DELAYS, PEER_COUNTS)
}
"""Every table stored in the tables' directory, by name."""
