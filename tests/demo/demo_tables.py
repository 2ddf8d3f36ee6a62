"""Small audit tables for the comparison: rows from the test, everything else null."""

from __future__ import annotations

from pathlib import Path

import tables_on_disk
from dovetail.demo.faults import Fault, Kind


def address(text: str) -> bytes:
    """A made-up address that begins with these letters."""
    return text.encode().ljust(32, b"\0")


def write_tables(out: Path, **rows: list[dict[str, object]]) -> Path:
    """All tables the comparison reads; those not given are empty."""
    return tables_on_disk.write_tables(out, {name: rows.get(name, []) for name in tables_on_disk.SCHEMAS})


def fault(kind: Kind, **more: object) -> Fault:
    return Fault(**{"kind": kind, "fabric": "pcp", "what": "something", "at_us": 0, **more})
