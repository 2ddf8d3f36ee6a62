"""Small audit tables as Parquet, for the comparison: rows typed by the test, everything else null."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from dovetail.demo.faults import Fault, Kind

BREAK = pa.struct([("check", pa.string()), ("file", pa.string()), ("seq", pa.int64()), ("detail", pa.string())])
SCHEMAS = {
    "messages": pa.schema(
        [("fabric", pa.string()), ("message", pa.binary()), ("id", pa.string()), ("signature", pa.string())]
    ),
    "deliveries": pa.schema(
        [
            ("fabric", pa.string()),
            ("message", pa.binary()),
            ("recipient", pa.string()),
            ("outcome", pa.string()),
            ("reason", pa.string()),
        ]
    ),
    "chains": pa.schema(
        [
            ("message", pa.binary()),
            ("kind", pa.string()),
            ("sender", pa.string()),
            ("recipient", pa.string()),
            ("state", pa.string()),
            ("only_at", pa.list_(pa.string())),
        ]
    ),
    "gaps": pa.schema([("child", pa.binary()), ("parent", pa.binary()), ("scope", pa.string())]),
    "forks": pa.schema([("kind", pa.string()), ("evidence", pa.list_(pa.binary()))]),
    "coverage": pa.schema(
        [("scope", pa.string()), ("peer", pa.string()), ("holders", pa.int64()), ("lacking", pa.int64())]
    ),
    "quarantine": pa.schema(
        [("server", pa.string()), ("seq", pa.int64()), ("message", pa.binary()), ("reason", pa.string())]
    ),
    "integrity": pa.schema([("server", pa.string()), ("verdict", pa.string()), ("breaks", pa.list_(BREAK))]),
    "findings": pa.schema(
        [
            ("check", pa.string()),
            ("severity", pa.string()),
            ("server", pa.string()),
            ("message", pa.binary()),
            ("detail", pa.string()),
        ]
    ),
}


def address(text: str) -> bytes:
    """A made-up address that begins with these letters."""
    return text.encode().ljust(32, b"\0")


def write_tables(out: Path, **rows: list[dict[str, object]]) -> Path:
    """All tables the comparison reads; those that are not given are empty."""
    (out / "_state").mkdir(parents=True)
    for name, schema in SCHEMAS.items():
        (out / name).mkdir()
        full = [dict.fromkeys(schema.names) | row for row in rows.get(name, [])]
        pq.write_table(pa.Table.from_pylist(full, schema), out / name / "part.parquet")
    return out


def fault(kind: Kind, **more: object) -> Fault:
    return Fault(**{"kind": kind, "fabric": "pcp", "what": "something", "at_us": 0, **more})
