from __future__ import annotations

import pyarrow as pa
import pytest

from dovetail.report.arrays import (
    MAX_SLOTS,
    SECOND_US,
    count_by,
    quantiles,
    quantiles_by,
    slot_width_us,
    span_us,
    sum_by,
    with_slot,
)


def test_counts_keep_rows_without_a_value() -> None:
    table = pa.table({"a": ["x", None, "x", None, "y"], "b": [1, 1, 1, 1, None]})
    assert list(count_by(table, ("a", "b"))) == [(None, 1, 2), ("x", 1, 2), ("y", None, 1)]


def test_sums() -> None:
    table = pa.table({"a": ["x", "x", "y"], "n": [1, 2, 5]})
    assert list(sum_by(table, ("a",), ("n",))) == [("x", 3), ("y", 5)]


def test_quantiles_are_values_that_occurred() -> None:
    found = quantiles(pa.array(range(1, 101)))
    assert (found.count, found.p50_us, found.p90_us, found.p99_us, found.max_us) == (100, 51, 91, 100, 100)


def test_quantiles_of_groups_leave_out_nulls() -> None:
    table = pa.table({"a": ["x", "x", "x", "y"], "n": pa.array([5, None, 7, None], pa.int64())})
    ((name, found),) = quantiles_by(table, ("a",), "n")
    assert (name, found.count, found.max_us) == ("x", 2, 7)
    assert list(quantiles_by(table.slice(3), (), "n")) == []


@pytest.mark.parametrize("seconds", [0, 1, 71, 72, 3600, 86_400, 10**7, 10**9])
def test_a_slot_width_gives_few_enough_slots(seconds: int) -> None:
    width = slot_width_us(0, seconds * SECOND_US)
    assert seconds * SECOND_US // width < MAX_SLOTS + 1
    assert slot_width_us(None, None) == SECOND_US


def test_slots_begin_at_round_times_and_leave_out_rows_without_time() -> None:
    times = pa.array([0, 1_999_999, 2_000_000, None], pa.timestamp("us", tz="UTC"))
    slots = with_slot(pa.table({"at": times}), "at", 2 * SECOND_US)
    assert slots["slot"].to_pylist() == [0, 0, 2_000_000]
    assert span_us(pa.chunked_array([times])) == (0, 2_000_000)
    assert span_us(pa.chunked_array([times.slice(0, 0)])) == (None, None)
