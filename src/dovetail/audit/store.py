"""Where the audit keeps its tables and what it remembers.

    OUT/<table>/                 gold: one version, of which a run replaces the files that have changed
    OUT/<table>/batch=<n>/       silver: one directory per batch of manifests, written once
    OUT/messages/current/        the won part of `messages`, which runs change since a signer's key may come late
    OUT/_state/batches/<n>.json  facts about the manifests and files of a batch; the batch counts once this is there
    OUT/_state/stream/           Spark's own checkpoint of which manifests it has seen
    OUT/_state/run.json          what the gold tables were made from
    OUT/_state/next/             what is being written

Everything is written under another name and renamed. A run that is killed leaves the tables of the run before it; if it
was just putting its own in place, there is no `run.json`, and the next run makes all gold tables anew.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from dovetail.audit.ingest_log import BatchFacts, FileFact, ManifestFact, decode_facts, encode_facts
from dovetail.audit.reading import BATCH, STATE
from dovetail.audit.schemas import BY_NAME, Table
from dovetail.audit.tablefiles import count_rows, read_here, read_table, write_here, write_table
from dovetail.journal.durable_file import replace_file
from dovetail.model.errors import PipelineError

CURRENT = "current"


class RunRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What the gold tables were made from."""

    lake: str
    batches: list[int]
    as_of_us: int
    fingerprint: str
    """Of everything else the tables depend on: settings, keys, and what has changed in the lake since."""
    basis: str = ""
    """Of what all rows depend on: the form of the tables, settings and the names of the servers."""


@dataclass(frozen=True, slots=True)
class Change:
    """A table as it will be: `replaced` are the files that give way to what was written, None for all of them."""

    table: Table
    replaced: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class Store:
    """The output directory of an audit."""

    root: Path

    @classmethod
    def open(cls, root: Path) -> Store:
        """Make the directory ready."""
        root = root.resolve()
        (root / STATE / "batches").mkdir(parents=True, exist_ok=True)
        (root / STATE / "next").mkdir(parents=True, exist_ok=True)
        return cls(root)

    @property
    def stream(self) -> Path:
        """Spark's checkpoint of the stream of manifests."""
        return self.root / STATE / "stream"

    # silver

    def batch_ids(self) -> list[int]:
        """Batches that are complete."""
        return sorted(int(path.stem) for path in (self.root / STATE / "batches").glob("[0-9]*.json"))

    def write_batch_table(self, table: Table, rows: DataFrame, batch: int) -> None:
        """Write one batch of a silver table; writing it again gives the same."""
        target = self.batch_path(table, batch)
        written = self._write(table, rows, f"{target.parent.name}-{batch:09d}")
        target.parent.mkdir(parents=True, exist_ok=True)
        _replace(written, target)

    def batch_path(self, table: Table, batch: int) -> Path:
        """Where one batch of a silver table lies."""
        return self.root / table.name / f"{BATCH}{batch:09d}"

    def finish_batch(self, batch: int, facts: BatchFacts) -> None:
        """The batch counts from here on."""
        replace_file(self.root / STATE / "batches" / f"{batch:09d}.json", encode_facts(facts))

    def facts(self, *, below: int | None = None) -> BatchFacts:
        """Everything known about manifests and files, or what was known before batch `below`."""
        manifests: list[ManifestFact] = []
        files: list[FileFact] = []
        for batch in self.batch_ids():
            if below is not None and batch >= below:
                continue
            facts = decode_facts((self.root / STATE / "batches" / f"{batch:09d}.json").read_bytes())
            manifests += facts.manifests
            files += facts.files
        return BatchFacts(manifests=manifests, files=files)

    def read_silver(self, spark: SparkSession, table: Table, *, below: int | None = None) -> DataFrame:
        """All complete batches of a silver table, or those before batch `below`."""
        batches = [batch for batch in self.batch_ids() if below is None or batch < below]
        return self.read_batches(spark, table, batches, with_current=below is None)

    def read_batches(
        self,
        spark: SparkSession,
        table: Table,
        batches: Iterable[int],
        *,
        with_current: bool = False,
    ) -> DataFrame:
        """These batches of a silver table."""
        paths = [path for batch in batches if (path := self.batch_path(table, batch)).is_dir()]
        if with_current and (self.root / table.name / CURRENT).is_dir():
            paths.append(self.root / table.name / CURRENT)
        return read_table(spark, table, paths)

    def batch_files(self, table: Table, batches: Iterable[int], *, with_current: bool = False) -> list[Path]:
        """The files of these batches of a silver table."""
        paths = [self.batch_path(table, batch) for batch in batches]
        if with_current:
            paths.append(self.root / table.name / CURRENT)
        return [file for path in paths for file in sorted(path.glob("*.parquet"))]

    # what a run keeps for itself while it lasts

    def write_state(self, table: Table, rows: DataFrame) -> int:
        """Write something for later in this run; how many rows it has."""
        return count_rows(self._write(table, rows, table.name))

    def write_rows(self, table: Table, parts: Iterable[pa.Table]) -> int:
        """Write rows that this process has for later in this run; how many there are."""
        target = self.root / STATE / "next" / table.name
        write_here(table, parts, target)
        return count_rows(target)

    def read_rows(self, table: Table) -> pa.Table:
        """What this run has written, in this process."""
        return read_here(table, sorted((self.root / STATE / "next" / table.name).glob("*.parquet")))

    def read_written(self, spark: SparkSession, table: Table) -> DataFrame:
        """What this run has written."""
        return read_table(spark, table, [self.root / STATE / "next" / table.name])

    # gold

    def write_gold(self, table: Table, rows: DataFrame) -> Change:
        """Write a gold table beside the present one; `publish_gold` puts it in place."""
        self._write(table, rows, table.name)
        return Change(table)

    def write_gold_rows(self, table: Table, parts: Iterable[pa.Table]) -> Change:
        """The same with rows that this process has."""
        self.write_rows(table, parts)
        return Change(table)

    def write_files(
        self, table: Table, kept: DataFrame | None, made: Iterable[Table], replaced: Iterable[str]
    ) -> Change:
        """Put what will stand in the place of some files of a table beside it: rows, and files of this run's tables."""
        target = self.root / STATE / "next" / table.name
        if kept is None:
            shutil.rmtree(target, ignore_errors=True)
            target.mkdir(parents=True)
        else:
            self._write(table, kept, table.name)
        for one in made:
            _link_files((self.root / STATE / "next" / one.name).glob("*.parquet"), target)
        return Change(table, frozenset(replaced))

    def read_next(self, spark: SparkSession, change: Change) -> DataFrame:
        """A gold table as it will be when it is published."""
        paths = [self.root / STATE / "next" / change.table.name]
        if change.replaced is not None:
            paths += [path for path in self.gold_files(change.table) if path.name not in change.replaced]
        return read_table(spark, change.table, paths)

    def read_gold(self, spark: SparkSession, table: Table) -> DataFrame:
        """A gold table as it was published, with the name of each row's `file` beside its columns."""
        return read_table(spark, table, [self.root / table.name], with_file=True)

    def read_files(self, spark: SparkSession, table: Table, names: Sequence[str]) -> DataFrame:
        """Some files of a gold table."""
        return read_table(spark, table, [self.root / table.name / name for name in names])

    def gold_files(self, table: Table) -> list[Path]:
        """The files of a gold table as it was published."""
        return sorted((self.root / table.name).glob("*.parquet"))

    def current_files(self, table: Table) -> list[Path] | None:
        """The files of the part of a silver table that runs change; None where no run has made it."""
        path = self.root / table.name / CURRENT
        return sorted(path.glob("*.parquet")) if path.is_dir() else None

    def write_current(self, table: Table, rows: DataFrame, kept: Iterable[Path] = ()) -> None:
        """Replace the part of a silver table that runs change, by these rows and some of the files it had."""
        written = self._write(table, rows, f"{table.name}-{CURRENT}")
        (self.root / table.name).mkdir(exist_ok=True)
        _link_files(kept, written)
        _replace(written, self.root / table.name / CURRENT)

    def publish_gold(self, changes: Iterable[Change], record: RunRecord) -> None:
        """Put all that was written in place and say what it was made from.

        In between the tables belong to different runs, and no `run.json` says otherwise.
        """
        self.forget_run()
        for change in changes:
            written, target = self.root / STATE / "next" / change.table.name, self.root / change.table.name
            if change.replaced is None:
                target.parent.mkdir(parents=True, exist_ok=True)
                _replace(written, target)
                continue
            for name in change.replaced:
                (target / name).unlink()
            for path in written.glob("*.parquet"):
                path.rename(target / path.name)
            shutil.rmtree(written)
        replace_file(self.root / STATE / "run.json", msgspec.json.encode(record))

    def forget_run(self) -> None:
        """From here on the gold tables may be of different runs."""
        (self.root / STATE / "run.json").unlink(missing_ok=True)

    def run_record(self) -> RunRecord | None:
        """What the gold tables were made from; None where a run was interrupted or never was."""
        path = self.root / STATE / "run.json"
        if not path.is_file():
            return None
        return msgspec.json.decode(path.read_bytes(), type=RunRecord)

    # reading

    def read(self, spark: SparkSession, name: str) -> DataFrame:
        """Any table by name."""
        table = BY_NAME.get(name)
        if table is None:
            raise PipelineError(f"there is no table {name!r}; there are {', '.join(BY_NAME)}")
        if table.layer == "silver":
            return self.read_silver(spark, table)
        if not (self.root / name).is_dir():
            raise PipelineError(f"{self.root} has no table {name!r} yet")
        return read_table(spark, table, [self.root / name])

    def _write(self, table: Table, rows: DataFrame, name: str) -> Path:
        target = self.root / STATE / "next" / name
        write_table(table, rows, target)
        return target


def _link_files(files: Iterable[Path], target: Path) -> None:
    """Let a directory have these files too; they are copied only where the file system has no links."""
    for file in files:
        try:
            os.link(file, target / file.name)
        except OSError:
            shutil.copyfile(file, target / file.name)


def _replace(source: Path, target: Path) -> None:
    """Put a directory in the place of another."""
    old = source.with_name(f"{source.name}.old")
    if old.exists():
        shutil.rmtree(old)
    if target.exists():
        target.rename(old)
    source.rename(target)
    shutil.rmtree(old, ignore_errors=True)
