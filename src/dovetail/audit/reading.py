"""Reading the audit's tables without Spark: they are plain Parquet. Used by everything that only looks."""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from dovetail.model.errors import PipelineError

STATE = "_state"
BATCH = "batch="
Row = dict[str, Any]


@contextlib.contextmanager
def readable(table: Path) -> Iterator[None]:
    """A file that is cut, is no Parquet, or is gone since it was listed, is one line about its table."""
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise PipelineError(f"{table} cannot be read: {why}") from None


def check_out(out: Path) -> Path:
    """The output directory of an audit; PipelineError where there is none."""
    if not (out / STATE).is_dir():
        raise PipelineError(f"{out} holds no audit: run `dovetail audit run LAKE --out {out}` first")
    return out


def table_names(out: Path) -> list[str]:
    """The tables that are there."""
    return sorted(
        path.name for path in check_out(out).iterdir() if path.is_dir() and not path.name.startswith(("_", "."))
    )


def open_table(out: Path, name: str, *, repeated: Sequence[str] = ()) -> ds.Dataset:
    """One table; PipelineError names those that are there. Columns with few values stay the dictionaries they are."""
    names = table_names(out)
    if name not in names:
        raise PipelineError(f"there is no table {name!r}; there are {', '.join(names) or 'none yet'}")
    files = sorted(str(path) for path in (out / name).rglob("*.parquet") if _counts(out, path))
    if not files:
        raise PipelineError(f"the table {name!r} has no files yet")
    with readable(out / name):
        return ds.dataset(files, format=ds.ParquetFileFormat(dictionary_columns=set(repeated)))


def _counts(out: Path, path: Path) -> bool:
    """A batch that was not finished is not there yet: it will be written anew."""
    batch = next((part.removeprefix(BATCH) for part in path.relative_to(out).parts if part.startswith(BATCH)), None)
    return batch is None or (out / STATE / "batches" / f"{batch}.json").is_file()


def count_rows(out: Path, name: str) -> int:
    """How many rows a table has, from the files' own counts."""
    with readable(out / name):
        return int(open_table(out, name).count_rows())


def scan(out: Path, name: str, where: pc.Expression | None = None, limit: int | None = None) -> Iterator[Row]:
    """Rows of a table as plain values, in the order of the files."""
    left = limit
    for batch in _batches(out, name, where):
        for row in batch.to_pylist() if left is None else batch.slice(0, left).to_pylist():
            yield {name: to_plain(value) for name, value in row.items()}
        if left is not None:
            left -= min(left, batch.num_rows)
            if left == 0:
                return


def _batches(out: Path, name: str, where: pc.Expression | None) -> Iterator[pa.RecordBatch]:
    batches = iter(open_table(out, name).to_batches(filter=where))
    while True:
        with readable(out / name):
            batch = next(batches, None)
        if batch is None:
            return
        yield batch


def equals(out: Path, name: str, conditions: dict[str, str]) -> pc.Expression | None:
    """A filter for rows whose columns have these values; binary columns take leading hex digits."""
    schema = open_table(out, name).schema
    expression: pc.Expression | None = None
    for column, text in conditions.items():
        index = schema.get_field_index(column)
        if index < 0:
            raise PipelineError(f"{name} has no column {column!r}; it has {', '.join(schema.names)}")
        one = _equals(schema.field(index), column, text)
        expression = one if expression is None else expression & one
    return expression


def _equals(field: pa.Field, column: str, text: str) -> pc.Expression:
    if pa.types.is_binary(field.type):
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
