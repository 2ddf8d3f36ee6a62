"""Reads the audit's tables without Spark: the one reader for everything that does not write them.

The tables are Delta tables. A run of the audit commits each of them separately and records last, in a row of `runs`,
which versions belong together; so a reader that opens the versions of one run sees all of it and nothing of any other
run, while further runs go on. A file that was vacuumed, truncated or removed is reported as one line about its table.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import and_, or_
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from dovetail.audit.delta import open_delta, table_uri
from dovetail.audit.schemas import BY_NAME, RUNS
from dovetail.audit.table import Table
from dovetail.lake.location import Location, is_url, open_store
from dovetail.model.address import Address, AddressPrefix, parse_name
from dovetail.model.errors import NoSuchTable, PipelineError, UsageError
from dovetail.model.times import to_us

Row = dict[str, Any]
WithId = Callable[[str], Sequence[Address]]
"""Finds the messages whose own id begins with this text."""
Where = Sequence[tuple[str, str, Any]]
"""Conditions on columns, all of which must hold: name, `=`, `>`, `>=`, `<`, `<=` or `in`, and the value."""

_MAX_HINT_BYTES = 1 << 16
MIN_FREE_BYTES = 16 << 20
"""With less, a run is not begun: libraries report a full disk in many lines."""
OLD_STATE = "_state"
"""Where tables of the old format have their state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run of the audit: the inputs of its tables, and their versions."""

    number: int
    lake: str
    as_of_us: int
    fingerprint: str = ""
    basis: str = ""
    hops: int = 0
    began: dt.datetime | None = None
    finished: dt.datetime | None = None
    versions: Mapping[str, int] = field(default_factory=dict)
    is_reread: bool = False


@contextlib.contextmanager
def readable(table: str) -> Iterator[None]:
    """Report an error while reading a table as one line about it."""
    from deltalake.exceptions import DeltaError

    try:
        yield
    except (pa.ArrowException, OSError, DeltaError) as error:
        why = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise PipelineError(f"{table} cannot be read: {why[:300]}") from None


def open_tables(root: Location, run: int | None = None) -> Tables:
    """The tables of the newest run, or of the run with this number; raises PipelineError if there are none."""
    known = read_runs(root)
    if not known:
        raise PipelineError(f"{root} holds no audit: run `dovetail audit run LAKE --tables {root}` first")
    for each in known:
        if run is None or each.number == run:
            return Tables(str(root), each)
    numbers = ", ".join(str(each.number) for each in known[:20])
    raise PipelineError(f"{root} has no run {run}; there are {numbers}")


def changed_ns(root: Location) -> int:
    """When a run last became visible, in nanoseconds since 1970; raises OSError if there are no tables."""
    log = f"{RUNS.name}/_delta_log/"
    if not is_url(root):
        return (Path(root) / log).stat().st_mtime_ns
    store, after = open_store(root), log
    with contextlib.suppress(FileNotFoundError, ValueError, KeyError, TypeError):
        last = json.loads(store.get(f"{log}_last_checkpoint", 0, _MAX_HINT_BYTES))
        after = f"{log}{int(last['version']):020d}"  # older entries need not be listed
    times = [entry.modified_s for entry in store.list(log, after)]
    if not times:
        raise FileNotFoundError(f"{root} holds no audit")
    return int(max(times) * 1_000_000_000)


def read_runs(root: Location) -> list[Run]:
    """All runs whose tables can still be opened, the newest first."""
    refuse_old_format(root)
    from deltalake.exceptions import TableNotFoundError

    try:
        with readable(table_uri(root, RUNS.name)):
            known = open_delta(root, RUNS.name).to_pyarrow_table().sort_by([("run", "descending")])
            rows = known.to_pylist(maps_as_pydicts="strict")
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
            is_reread=row.get("is_reread") or False,  # an older version wrote no such column
        )
        for row in rows
    ]


def refuse_old_format(root: Location) -> None:
    """Raise PipelineError if a directory has tables that an earlier version wrote as plain Parquet."""
    if not is_url(root) and (Path(root) / OLD_STATE).is_dir():
        raise PipelineError(
            f"{root} has tables of an earlier version, which can no longer be read: give a new directory"
        )


def check_room(root: Location) -> None:
    """Raise PipelineError if the disk of a tables directory is full, or will be in a moment."""
    if is_url(root):
        return
    path = Path(root).absolute()
    free = shutil.disk_usage(next(each for each in (path, *path.parents) if each.exists())).free
    if free < MIN_FREE_BYTES:
        raise PipelineError(
            f"{root} has {free >> 20} MiB free, expected at least {MIN_FREE_BYTES >> 20}: free some space, or "
            "choose another directory"
        )


@dataclass(slots=True)
class Tables:
    """The tables of one run."""

    root: str
    run: Run
    _opened: dict[str, ds.Dataset] = field(default_factory=dict)

    @classmethod
    def open(cls, root: Location, run: int | None = None) -> Tables:
        """The same as `open_tables`."""
        return open_tables(root, run)

    @property
    def names(self) -> list[str]:
        """The existing tables, in the order of the reference."""
        return [name for name in BY_NAME if name in self.run.versions or name == RUNS.name]

    def dataset(self, name: str) -> ds.Dataset:
        """One table as an Arrow dataset; the rows of a table of sums are partial."""
        if name not in self.names:
            raise NoSuchTable(f"there is no table {name!r}; there are {', '.join(self.names)}")
        if name not in self._opened:
            with readable(table_uri(self.root, name)):
                self._opened[name] = open_delta(self.root, name, self.run.versions.get(name)).to_pyarrow_dataset()
        return self._opened[name]

    def read(self, name: str, columns: Sequence[str] | None = None, where: ds.Expression | None = None) -> pa.Table:
        """Some columns of a table, for the rows that match `where`; sums are added up."""
        table = BY_NAME[name]
        names = table.names if columns is None else list(columns)
        wanted = pa.schema([table.arrow.field(column) for column in names]).remove_metadata()
        if name not in self.names:
            return wanted.empty_table()
        source = self.dataset(name)
        asked = table.names if table.sums else names
        missing = [column for column in asked if column not in source.schema.names]
        if missing:
            raise PipelineError(f"{self.root}/{name} lacks the column {missing[0]!r}, written by another version")
        with readable(f"{self.root}/{name}"):
            return add_up(source.to_table(columns=asked, filter=where), table).select(names).cast(wanted)

    def count(self, name: str, where: ds.Expression | None = None) -> int:
        """Number of rows of a table, from file metadata if there is no filter."""
        if name not in self.names:
            return 0
        if BY_NAME[name].sums:
            return int(self.read(name, where=where).num_rows)
        with readable(f"{self.root}/{name}"):
            return int(self.dataset(name).count_rows(filter=where))

    def batches(
        self, name: str, columns: Sequence[str] | None = None, where: ds.Expression | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Rows of a table, batch by batch, so that a large one is never held completely."""
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

    def count_by(self, name: str, *columns: str) -> Counter[tuple[Any, ...]]:
        """Number of rows for each combination of values in these columns."""
        counts: Counter[tuple[Any, ...]] = Counter()
        if name not in self.names:
            return counts
        for batch in self.batches(name, columns):
            grouped = pa.Table.from_batches([batch]).group_by(list(columns)).aggregate([([], "count_all")])
            for row in grouped.to_pylist():
                counts[tuple(row[column] for column in columns)] += row["count_all"]
        return counts

    def scan(self, name: str, where: ds.Expression | None = None, limit: int | None = None) -> Iterator[Row]:
        """Rows of a table as plain values, in file order."""
        left = limit
        for batch in self.batches(name, None, where):
            for row in batch.to_pylist() if left is None else batch.slice(0, left).to_pylist():
                yield {column: to_plain(value) for column, value in row.items()}
            if left is not None:
                left -= min(left, batch.num_rows)
                if left == 0:
                    return

    def equals(self, name: str, conditions: Mapping[str, Any]) -> pc.Expression | None:
        """A filter for rows whose columns have these values; raises UsageError if a value is invalid for its column.

        A message may be named in any form that `parse_name` accepts.
        """
        return rows_with(self.dataset(name).schema, conditions, self.with_id)

    def with_id(self, wanted: str) -> list[Address]:
        """The messages whose own id begins with this text."""
        if "messages" not in self.names:
            return []
        begins = pc.starts_with(pc.utf8_lower(pc.field("id")), wanted)
        rows = self.read("messages", ["message"], begins)
        return [Address(each) for each in rows.column("message").unique().to_pylist()]


def add_up(rows: pa.Table, table: Table) -> pa.Table:
    """The rows of a table of sums, one per key; rows of other tables unchanged."""
    if not table.sums:
        return rows
    summed = rows.group_by(list(table.key)).aggregate([(name, "sum") for name in table.sums])
    summed = summed.rename_columns([name.removesuffix("_sum") for name in summed.column_names]).select(table.names)
    return summed.filter(pc.greater(summed[table.sums[0]], 0))


def expression_of(where: Where) -> pc.Expression | None:
    """Conditions as an Arrow expression."""
    each = []
    for name, operator, value in where:
        column = pc.field(name)
        if isinstance(value, dt.datetime):
            # as numbers: `deltalake` knows no bounds of files with times after the year 9999, and would skip them
            column, value = column.cast(pa.int64()), to_us(value)
        if operator == "in":
            each.append(column.isin(value))
        else:
            compare = {"=": column == value, ">": column > value, ">=": column >= value, "<": column < value}
            each.append(compare.get(operator, column <= value))
    return reduce(and_, each) if each else None


def is_among(source: ds.Dataset, wanted: pa.Table) -> pa.Table:
    """Rows whose columns are among those of `wanted`; its last column is the most selective.

    Usually few files, or none, have such rows; of all others only the columns compared are read.
    """
    chosen = _among(wanted)
    files = keys_among(source, wanted, ["__filename"])["__filename"].unique().to_pylist()
    parts = [
        part.to_table(schema=source.schema, filter=chosen) for part in source.get_fragments() if part.path in files
    ]
    return pa.concat_tables([source.schema.empty_table(), *parts])


def keys_among(source: ds.Dataset, wanted: pa.Table, columns: Sequence[str]) -> pa.Table:
    """Some columns of the rows whose columns are among those of `wanted`."""
    return source.to_table(list(columns), filter=_among(wanted))


def _among(wanted: pa.Table) -> pc.Expression:
    *first, last = wanted.column_names
    if not first:
        return pc.field(last).isin(wanted[last].combine_chunks())
    (by,) = first
    return reduce(
        or_,
        (
            (pc.field(by) == value) & pc.field(last).isin(wanted.filter(pc.field(by) == value)[last].combine_chunks())
            for value in wanted[by].unique()
        ),
    )


def check_columns(schema: pa.Schema, names: Iterable[str]) -> None:
    """Raise UsageError unless a table has these columns."""
    for name in names:
        if schema.get_field_index(name) < 0:
            raise UsageError(f"there is no column {name!r}; there are {', '.join(schema.names)}")


def rows_with(schema: pa.Schema, conditions: Mapping[str, Any], with_id: WithId | None = None) -> pc.Expression | None:
    """A filter for rows whose columns have these values, given as text or as typed values.

    Without `with_id` a message is found by its address only.
    """
    each = []
    for column, value in conditions.items():
        check_columns(schema, [column])
        index = schema.get_field_index(column)
        try:
            each.append(_equals(schema.field(index).type, column, value, with_id))
        except (ValueError, TypeError, pa.ArrowException) as error:
            raise UsageError(f"{column}: {error}") from None
    return reduce(and_, each) if each else None


def _equals(kind: pa.DataType, column: str, value: Any, with_id: WithId | None) -> pc.Expression:
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        name = parse_name(value.hex() if isinstance(value, bytes) else value)
        if with_id is None and name.address is None:
            raise ValueError(f"{name.text} is an id; messages are looked up by address here")
        by_id = pc.field(column).isin(pa.array(with_id(name.id) if with_id and name.id else [], pa.binary()))
        return by_id if name.address is None else lies_in(column, name.address) | by_id
    if pa.types.is_boolean(kind) and isinstance(value, str):
        value = value.lower() == "true"
    elif pa.types.is_integer(kind):
        value = int(value)
    return pc.field(column) == pa.scalar(value, kind)


def lies_in(column: str, prefix: AddressPrefix) -> pc.Expression:
    """A filter for binary values with this prefix; keys of messages are shorter than their addresses."""
    low, high = (pa.scalar(each, pa.binary()) for each in (prefix.low.rstrip(b"\0"), prefix.high))
    return (pc.field(column) >= low) & (pc.field(column) <= high)


def to_plain(value: Any) -> Any:
    """A value for JSON: bytes as hex, times as ISO 8601."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dt.datetime):
        return value.astimezone(dt.UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    if isinstance(value, list):
        return [to_plain(item) for item in value]
    if isinstance(value, dict):
        return {name: to_plain(item) for name, item in value.items()}
    return value
