"""Removes old runs: their rows in `runs`, and then the files that no run names any more.

Runs young enough that a reader may still use them stay, and so do the newest few. Files left by a killed run, in no
version of a table, are removed too. The lease is held meanwhile, so that no one writes.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import write_deltalake

from dovetail.audit.delta import claim, open_delta, table_uri
from dovetail.audit.runs import holding_lease
from dovetail.audit.schemas import RUNS
from dovetail.audit.tables import open_tables, read_runs, readable


@dataclass(frozen=True, slots=True)
class Vacuumed:
    """What was removed, or would be."""

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
    """Remove runs, except the newest `keep_runs` and those that ended less than `older_than_h` hours ago."""
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
            table = open_delta(root, RUNS.name)
            rows = table.to_pyarrow_table()
            left = rows.filter(pc.invert(pc.is_in(rows["run"], value_set=pa.array(forgotten, pa.int64()))))
            write_deltalake(table, left, mode="overwrite", commit_properties=claim(table))
        files = 0
        for name in runs[0].versions:
            versions = [run.versions[name] for run in kept if name in run.versions]
            files += _vacuum_one(root, name, versions, is_dry=is_dry)
        return Vacuumed([run.number for run in kept], forgotten, files, is_dry)


def _vacuum_one(root: str, name: str, versions: list[int], *, is_dry: bool) -> int:
    with readable(table_uri(root, name)):
        table = open_delta(root, name)
        # the newest version may be younger than any run: keep its files as well
        deleted = table.vacuum(
            0, dry_run=is_dry, enforce_retention_duration=False, full=True, keep_versions=sorted(set(versions))
        )
    return len(deleted)
