"""Audit tables with rows from a test, as a run would have left them; everything else is null."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from dovetail.audit.schemas import BY_NAME, RUNS

SCHEMAS = {name: table.arrow for name, table in BY_NAME.items() if table.layer != "log"}
NOW = dt.datetime(2026, 11, 15, 12, 0, tzinfo=dt.UTC)


def write_tables(
    root: Path, rows: Mapping[str, Sequence[Mapping[str, Any]]], *, lake: str = "the-lake", as_of: dt.datetime = NOW
) -> Path:
    """Write one more run: the named tables have these rows, the others stay unchanged."""
    for name, given in rows.items():
        names = SCHEMAS[name].names
        table = pa.Table.from_pylist([{**dict.fromkeys(names), **row} for row in given], schema=SCHEMAS[name])
        write_deltalake(root / name, table, mode="overwrite")
    versions = {name: DeltaTable(root / name).version() for name in SCHEMAS if (root / name / "_delta_log").is_dir()}
    runs = root / RUNS.name
    number = DeltaTable(runs).to_pyarrow_table().num_rows + 1 if runs.is_dir() else 1
    record = {"run": number, "lake": lake, "as_of": as_of, "began": as_of, "finished": as_of, "versions": versions}
    record |= {"fingerprint": "", "basis": "", "hops": 0, "is_whole": True, "versions": list(versions.items())}
    write_deltalake(runs, pa.Table.from_pylist([record], schema=RUNS.arrow), mode="append")
    return root
