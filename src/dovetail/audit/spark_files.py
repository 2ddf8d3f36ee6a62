"""Adds rows that Spark computes to a Delta table in a directory: Spark writes the files, `deltalake` commits them.

Delta's own writer for Spark runs five to seven jobs for each commit, whatever its size, because it reads the log before
and after it with jobs. Here it is one job. The files are written to a staging directory first, so that an interrupted
job leaves nothing in a table. Object stores cannot move files: Delta's writer is used there.
"""

from __future__ import annotations

import datetime as dt
import json
import shutil
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake.transaction import AddAction, RemoveAction
from pyspark.sql import DataFrame

from dovetail.audit.table import Table
from dovetail.model.times import to_datetime, to_us

STAGING = "_staging"
_FIRST = to_us(dt.datetime(1, 1, 1, tzinfo=dt.UTC))
_LAST = to_us(dt.datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=dt.UTC))
"""Times before and after have no text form."""


def clear_staging(root: str) -> None:
    """Delete what an interrupted run has left; only the holder of the lease may do so."""
    shutil.rmtree(Path(root, STAGING), ignore_errors=True)


def write_files(root: str, table: Table, rows: DataFrame) -> list[AddAction | RemoveAction]:
    """Write these rows as files in the table's directory, for one commit."""
    staging = Path(root, STAGING, uuid.uuid4().hex).absolute()
    rows.write.parquet(str(staging))
    actions: list[AddAction | RemoveAction] = []
    for file in sorted(staging.glob("*.parquet")):
        stats = _stats(pq.read_metadata(file), table)
        if stats["numRecords"]:
            place = file.rename(Path(root, table.name, file.name))
            status = place.stat()
            actions.append(
                AddAction(file.name, status.st_size, {}, int(status.st_mtime * 1000), True, json.dumps(stats))
            )
    shutil.rmtree(staging)
    return actions


def _stats(file: pq.FileMetaData, table: Table) -> dict[str, Any]:
    """The number of rows, and the bounds of the columns by which files are skipped, in the form of Delta's log.

    `deltalake` skips files without bounds, unless all values are null.
    """
    least: dict[str, int | str] = {}
    most: dict[str, int | str] = {}
    nulls: dict[str, int] = {}
    places = {file.schema.column(index).path: index for index in range(file.num_columns)}
    for name in table.skipping:
        parts = [file.row_group(number).column(places[name]).statistics for number in range(file.num_row_groups)]
        nulls[name] = sum(part.null_count for part in parts)
        filled = [part for part in parts if part.num_values]
        if filled:
            bounds = min(part.min_raw for part in filled), max(part.max_raw for part in filled)
            is_number = pa.types.is_integer(table.arrow.field(name).type)
            least[name], most[name] = bounds if is_number else map(_time_text, bounds)
    return {"numRecords": file.num_rows, "minValues": least, "maxValues": most, "nullCount": nulls}


def _time_text(us: int) -> str:
    """Milliseconds, rounded down; readers of a log know that its bounds are."""
    moment = to_datetime(min(max(us, _FIRST), _LAST)).replace(tzinfo=None)
    return f"{moment.isoformat(timespec='milliseconds')}Z"
