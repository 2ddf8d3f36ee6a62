"""Forgetting old runs: their rows in `runs` go, and then the files that no run names any more.

A run that is younger than any reader could still be looking at stays, and so do the newest few. Files that a killed
run left, and that no version of a table has, go with them. The lease is held meanwhile, so that nobody writes.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, write_deltalake

from dovetail.audit.runs import holding_lease
from dovetail.audit.schemas import RUNS
from dovetail.audit.tables import open_tables, read_runs, readable, table_uri


@dataclass(frozen=True, slots=True)
class Vacuumed:
    """What was done, or would be."""

    kept: list[int]
    forgotten: list[int]
    files: int
    is_dry: bool

    def text(self) -> str:
        """For a terminal."""
        would = "would be " if self.is_dry else ""
        return (
            f"{len(self.forgotten)} runs {would}forgotten, {len(self.kept)} kept (run {min(self.kept)} is the oldest); "
            f"{self.files} files {would}deleted\n"
        )


def vacuum_tables(root: str, *, keep_runs: int = 10, older_than_h: float = 24, is_dry: bool = False) -> Vacuumed:
    """Forget runs, except the newest `keep_runs` and those that ended less than `older_than_h` hours ago."""
    open_tables(root)
    with holding_lease(root):
        youngest = dt.datetime.now(dt.UTC) - dt.timedelta(hours=older_than_h)
        runs = read_runs(root)
        kept = [
            run
            for place, run in enumerate(runs)
            if place < keep_runs or (run.finished is not None and run.finished > youngest)
        ]
        forgotten = sorted({run.number for run in runs} - {run.number for run in kept})
        if forgotten and not is_dry:
            table = DeltaTable(table_uri(root, RUNS.name))
            rows = table.to_pyarrow_table()
            left = rows.filter(pc.invert(pc.is_in(rows["run"], value_set=pa.array(forgotten, pa.int64()))))
            write_deltalake(table, left, mode="overwrite")
        files = 0
        for name in runs[0].versions:
            versions = [run.versions[name] for run in kept if name in run.versions]
            files += _vacuum_one(root, name, versions, is_dry=is_dry)
        return Vacuumed([run.number for run in kept], forgotten, files, is_dry)


def _vacuum_one(root: str, name: str, versions: list[int], *, is_dry: bool) -> int:
    uri = table_uri(root, name)
    with readable(uri):
        table = DeltaTable(uri)
        # the newest version may be younger than any run: what it has is kept as well
        deleted = table.vacuum(
            0, dry_run=is_dry, enforce_retention_duration=False, full=True, keep_versions=sorted(set(versions))
        )
    return len(deleted)
