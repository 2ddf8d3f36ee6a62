"""Small queries over Arrow tables: groups, counts, quantiles and time slots."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from dovetail.model.times import SECOND_US
from dovetail.report.numbers import Quantiles

MAX_SLOTS = 72
SLOT_WIDTHS_US = tuple(
    seconds * SECOND_US
    for seconds in (1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21_600, 43_200, 86_400, 604_800)
)


def micros(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Timestamps as integer microseconds."""
    return column.cast(pa.int64())


def count_by(table: pa.Table, keys: Sequence[str]) -> Iterable[tuple[Any, ...]]:
    """Each combination of the keys with its number of rows, sorted; nulls sort as empty."""
    grouped = table.select(list(keys)).group_by(list(keys)).aggregate([([], "count_all")])
    return _sorted_rows(grouped, [*keys, "count_all"])


def sum_by(table: pa.Table, keys: Sequence[str], values: Sequence[str]) -> Iterable[tuple[Any, ...]]:
    """Each combination of the keys with the sums of the values, sorted."""
    grouped = table.group_by(list(keys)).aggregate([(value, "sum") for value in values])
    return _sorted_rows(grouped, [*keys, *(f"{value}_sum" for value in values)])


def quantiles_by(table: pa.Table, keys: Sequence[str], value: str) -> Iterable[tuple[Any, ...]]:
    """Each combination of the keys with the quantiles of the value; rows without a value are ignored."""
    known = table.filter(pc.is_valid(table[value])).select([*keys, value])
    if not known.num_rows:
        return []
    if not keys:
        return [(quantiles(known[value].combine_chunks()),)]
    grouped = known.group_by(list(keys)).aggregate([(value, "list")])
    lists = grouped[f"{value}_list"].combine_chunks()
    rows = zip(*(grouped[key].to_pylist() for key in keys), (quantiles(one.values) for one in lists), strict=True)
    return sorted(rows, key=lambda row: tuple(str(part or "") for part in row[:-1]))


def quantiles(values: pa.Array) -> Quantiles:
    """Quantiles of at least one value; each is a value that occurred."""
    p50, p90, p99, most = pc.quantile(values, [0.5, 0.9, 0.99, 1.0], interpolation="higher").to_pylist()
    return Quantiles(count=len(values), p50_us=p50, p90_us=p90, p99_us=p99, max_us=most)


def slot_width_us(first_us: int | None, last_us: int | None) -> int:
    """A round width that divides the time into at most `MAX_SLOTS` slots."""
    span = (last_us - first_us) if first_us is not None and last_us is not None else 0
    for width in SLOT_WIDTHS_US:
        if span // width < MAX_SLOTS:
            return width
    weeks = -(-span // (MAX_SLOTS * SLOT_WIDTHS_US[-1]))
    return weeks * SLOT_WIDTHS_US[-1]


def with_slot(table: pa.Table, time: str, width_us: int) -> pa.Table:
    """The table with a column `slot`: the start of the slot that contains `time`; rows without a time are dropped."""
    known = table.filter(pc.is_valid(table[time]))
    at = micros(known[time])
    # arrow's integer division truncates towards zero; a journal cannot hold times before 1970
    return known.append_column("slot", pc.multiply(pc.divide(at, width_us), width_us))


def span_us(column: pa.ChunkedArray) -> tuple[int | None, int | None]:
    """The first and the last time, in microseconds."""
    if not len(column):
        return None, None
    ends = pc.min_max(micros(column)).as_py()
    return ends["min"], ends["max"]


def _sorted_rows(grouped: pa.Table, columns: Sequence[str]) -> list[tuple[Any, ...]]:
    rows = zip(*(grouped[column].to_pylist() for column in columns), strict=True)
    return sorted(rows, key=lambda row: tuple((part is not None, part if part is not None else 0) for part in row))
