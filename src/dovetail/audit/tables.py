"""Reading the audit's tables without Spark: the one reader of everything that only looks.

The tables are Delta tables. A run of the audit commits each of them at its own time and says last, in a row of `runs`,
which versions belong together; so whoever opens what one run names sees all of it and nothing of any other run, while
further runs go on. A file that was vacuumed since, is cut or is gone, is one line about its table.
"""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import and_, or_
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from dovetail.audit.schemas import BY_NAME, RUNS
from dovetail.audit.table import Table
from dovetail.model.errors import PipelineError
from dovetail.model.times import to_us

Row = dict[str, Any]
Where = Sequence[tuple[str, str, Any]]
"""Conditions on columns, all of which must hold: name, `=`, `>`, `>=`, `<`, `<=` or `in`, and the value."""

OLD_STATE = "_state"
"""Where the tables of versions before 0.9 kept what they remembered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run of the audit: what its tables were made from, and their versions."""

    number: int
    lake: str
    as_of_us: int
    fingerprint: str = ""
    basis: str = ""
    hops: int = 0
    began: dt.datetime | None = None
    finished: dt.datetime | None = None
    versions: Mapping[str, int] = field(default_factory=dict)


def table_uri(root: str | Path, name: str) -> str:
    """Where a table lies."""
    return f"{str(root).rstrip('/')}/{name}"


@contextlib.contextmanager
def readable(table: str) -> Iterator[None]:
    """What goes wrong while a table is read is one line about it."""
    from deltalake.exceptions import DeltaError

    try:
        yield
    except (pa.ArrowException, OSError, DeltaError) as error:
        why = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise PipelineError(f"{table} cannot be read: {why[:300]}") from None


def open_tables(root: str | Path, run: int | None = None) -> Tables:
    """The tables as one run left them: the newest, or the run of this number. PipelineError where there are none."""
    known = read_runs(root)
    if not known:
        raise PipelineError(f"{root} holds no audit: run `dovetail audit run LAKE --tables {root}` first")
    for each in known:
        if run is None or each.number == run:
            return Tables(str(root), each)
    numbers = ", ".join(str(each.number) for each in known[:20])
    raise PipelineError(f"{root} has no run {run}; there are {numbers}")


def changed_ns(root: str | Path) -> int:
    """When a run last became visible, in nanoseconds since 1970; OSError where there are no tables."""
    return (Path(root) / RUNS.name / "_delta_log").stat().st_mtime_ns


def read_runs(root: str | Path) -> list[Run]:
    """All runs whose tables can still be opened, the newest first."""
    refuse_old_format(root)
    from deltalake import DeltaTable
    from deltalake.exceptions import TableNotFoundError

    uri = table_uri(root, RUNS.name)
    try:
        with readable(uri):
            rows = (
                DeltaTable(uri).to_pyarrow_table().sort_by([("run", "descending")]).to_pylist(maps_as_pydicts="strict")
            )
    except TableNotFoundError:
        return []
    except PipelineError as error:
        if isinstance(error.__context__, TableNotFoundError):
            return []
        raise
    return [
        Run(
            number=row["run"],
            lake=row["lake"],
            as_of_us=to_us(row["as_of"]),
            fingerprint=row["fingerprint"],
            basis=row["basis"],
            hops=row["hops"],
            began=row["began"],
            finished=row["finished"],
            versions=row["versions"],
        )
        for row in rows
    ]


def refuse_old_format(root: str | Path) -> None:
    """PipelineError where a directory has tables that an earlier version wrote as plain Parquet."""
    if "://" not in str(root) and (Path(root) / OLD_STATE).is_dir():
        raise PipelineError(
            f"{root} has tables of an earlier version, which are not read any more: give a new directory"
        )


@dataclass(slots=True)
class Tables:
    """The tables that one run names."""

    root: str
    run: Run
    _opened: dict[str, ds.Dataset] = field(default_factory=dict)

    @classmethod
    def open(cls, root: str | Path, run: int | None = None) -> Tables:
        """The same as `open_tables`."""
        return open_tables(root, run)

    @property
    def names(self) -> list[str]:
        """The tables that are there, in the order of the reference."""
        return [name for name in BY_NAME if name in self.run.versions or name == RUNS.name]

    def dataset(self, name: str) -> ds.Dataset:
        """One table as an Arrow dataset; the rows of a table of sums are partial."""
        if name not in self.names:
            raise PipelineError(f"there is no table {name!r}; there are {', '.join(self.names)}")
        if name not in self._opened:
            from deltalake import DeltaTable

            uri = table_uri(self.root, name)
            with readable(uri):
                self._opened[name] = DeltaTable(uri, version=self.run.versions.get(name)).to_pyarrow_dataset()
        return self._opened[name]

    def read(self, name: str, columns: Sequence[str] | None = None, where: ds.Expression | None = None) -> pa.Table:
        """Some columns of a table, of the rows for which `where` holds; sums are added up."""
        table = BY_NAME[name]
        names = table.names if columns is None else list(columns)
        wanted = pa.schema([table.arrow.field(column) for column in names]).remove_metadata()
        if name not in self.names:
            return wanted.empty_table()
        source = self.dataset(name)
        asked = table.names if table.sums else names
        missing = [column for column in asked if column not in source.schema.names]
        if missing:
            raise PipelineError(f"{self.root}/{name} lacks the column {missing[0]!r}: written by another version")
        with readable(f"{self.root}/{name}"):
            return add_up(source.to_table(columns=asked, filter=where), table).select(names).cast(wanted)

    def count(self, name: str, where: ds.Expression | None = None) -> int:
        """How many rows a table has, from the files' own counts where all are asked for."""
        if name not in self.names:
            return 0
        if BY_NAME[name].sums:
            return int(self.read(name, where=where).num_rows)
        with readable(f"{self.root}/{name}"):
            return int(self.dataset(name).count_rows(filter=where))

    def batches(
        self, name: str, columns: Sequence[str] | None = None, where: ds.Expression | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Rows of a table, batch by batch, so that a large one is never held whole."""
        if BY_NAME[name].sums:
            yield from self.read(name, columns, where).to_batches()
            return
        batches = iter(self.dataset(name).to_batches(columns=None if columns is None else list(columns), filter=where))
        while True:
            with readable(f"{self.root}/{name}"):
                batch = next(batches, None)
            if batch is None:
                return
            yield batch

    def scan(self, name: str, where: ds.Expression | None = None, limit: int | None = None) -> Iterator[Row]:
        """Rows of a table as plain values, in the order of the files."""
        left = limit
        for batch in self.batches(name, None, where):
            for row in batch.to_pylist() if left is None else batch.slice(0, left).to_pylist():
                yield {column: to_plain(value) for column, value in row.items()}
            if left is not None:
                left -= min(left, batch.num_rows)
                if left == 0:
                    return

    def equals(self, name: str, conditions: Mapping[str, str]) -> pc.Expression | None:
        """A filter for rows whose columns have these values; binary columns take leading hex digits."""
        schema = self.dataset(name).schema
        each = []
        for column, text in conditions.items():
            index = schema.get_field_index(column)
            if index < 0:
                raise PipelineError(f"{name} has no column {column!r}; it has {', '.join(schema.names)}")
            each.append(_equals(schema.field(index), column, text))
        return reduce(and_, each) if each else None


def add_up(rows: pa.Table, table: Table) -> pa.Table:
    """The rows of a table of sums, each key once; other rows as they are."""
    if not table.sums:
        return rows
    summed = rows.group_by(list(table.key)).aggregate([(name, "sum") for name in table.sums])
    summed = summed.rename_columns([name.removesuffix("_sum") for name in summed.column_names]).select(table.names)
    return summed.filter(pc.greater(summed[table.sums[0]], 0))


def expression_of(where: Where) -> pc.Expression | None:
    """Conditions as Arrow has them."""
    each = []
    for name, operator, value in where:
        column = pc.field(name)
        if operator == "in":
            each.append(column.isin(value))
        else:
            compare = {"=": column == value, ">": column > value, ">=": column >= value, "<": column < value}
            each.append(compare.get(operator, column <= value))
    return reduce(and_, each) if each else None


def is_among(source: ds.Dataset, wanted: pa.Table, where: Where = ()) -> pa.Table:
    """Rows whose columns are among those of `wanted`; its last column tells rows best apart."""
    bound = expression_of(where)
    *first, last = wanted.column_names
    if not first:
        chosen = pc.field(last).isin(wanted[last].combine_chunks())
    else:
        (by,) = first
        chosen = reduce(
            or_,
            (
                (pc.field(by) == value)
                & pc.field(last).isin(wanted.filter(pc.field(by) == value)[last].combine_chunks())
                for value in wanted[by].unique()
            ),
        )
    return source.to_table(filter=chosen if bound is None else bound & chosen)


def _equals(field: pa.Field, column: str, text: str) -> pc.Expression:
    if pa.types.is_binary(field.type) or pa.types.is_large_binary(field.type):
        return has_prefix(column, bytes.fromhex(text))
    if pa.types.is_boolean(field.type):
        return pc.field(column) == (text.lower() == "true")
    if pa.types.is_integer(field.type):
        return pc.field(column) == int(text)
    return pc.field(column) == text


def has_prefix(column: str, prefix: bytes) -> pc.Expression:
    """A filter for binary values that begin with `prefix`."""
    lower = pc.field(column) >= pa.scalar(prefix, pa.binary())
    number = int.from_bytes(prefix) + 1
    if not prefix or number >> (8 * len(prefix)):
        return lower
    return lower & (pc.field(column) < pa.scalar(number.to_bytes(len(prefix)), pa.binary()))


def to_plain(value: Any) -> Any:
    """A value as JSON knows it: bytes as hex, times as ISO 8601."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dt.datetime):
        return value.astimezone(dt.UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    if isinstance(value, list):
        return [to_plain(item) for item in value]
    if isinstance(value, dict):
        return {name: to_plain(item) for name, item in value.items()}
    return value
