"""Small tables are read and written in the driver, and are the same as those that Spark reads and writes."""

from __future__ import annotations

import datetime as dt

import pyarrow.parquet as pq
import pytest
from pyspark.sql.types import ArrayType, StructField, StructType
from pyspark.testing import assertDataFrameEqual

from dovetail.audit import session
from dovetail.audit.schemas import BINARY, LONG, QUARANTINE, STRING, TIMESTAMP, Table
from dovetail.audit.tablefiles import count_rows, has_nulls, local_rows, read_here, read_table, to_arrow, write_table

NESTED = StructType([StructField("since", TIMESTAMP), StructField("server", STRING)])
SCHEMA = StructType(
    [
        StructField("message", BINARY),
        StructField("at", TIMESTAMP),
        StructField("name", STRING),
        StructField("many", LONG),
        StructField("holders", ArrayType(NESTED)),
    ]
)
TABLE = Table("_state/things", "silver", "Things.", ("message",), SCHEMA)
T0 = dt.datetime(2026, 11, 16, 1, 2, 3, 456_789, dt.UTC)
ROWS = [
    (b"1" * 32, T0, "one", 1, [(T0, "s"), (None, None)]),
    (b"2" * 32, None, None, None, None),
    (b"3" * 32, T0 - dt.timedelta(days=30_000), "three", -(1 << 62), []),
]


@pytest.fixture
def tuned(spark):
    yield lambda rows: session.tune(spark, rows)
    session.tune(spark, 0)


def test_a_table_is_the_same_whoever_writes_and_reads_it(spark, tmp_path, tuned):
    made = local_rows(spark, ROWS, SCHEMA)
    for name, rows in (("small", 0), ("large", 1 << 40)):
        tuned(rows)
        write_table(TABLE, made, tmp_path / name)
        assert count_rows(tmp_path / name) == 3
    for rows in (0, 1 << 40):
        tuned(rows)
        for name in ("small", "large"):
            assertDataFrameEqual(read_table(spark, TABLE, [tmp_path / name]), made)


def test_rows_tell_their_file(spark, tmp_path, tuned):
    directory = tmp_path / "a name with 100 % blanks"
    for name, row in zip(("x.parquet", "y.parquet"), ROWS, strict=False):
        write_table(TABLE, local_rows(spark, [row], SCHEMA), tmp_path / name)
        (written,) = (tmp_path / name).glob("*.parquet")
        directory.mkdir(exist_ok=True)
        written.rename(directory / name)
    for rows in (0, 1 << 40):
        tuned(rows)
        files = read_table(spark, TABLE, [directory], with_file=True).collect()
        assert {row["file"]: bytes(row["message"])[:1] for row in files} == {"x.parquet": b"1", "y.parquet": b"2"}


def test_files_without_rows_do_not_hide_others(spark, tmp_path):
    for name, rows in (("a", []), ("b", ROWS), ("c", [])):
        write_table(TABLE, local_rows(spark, rows, SCHEMA), tmp_path / name)
    assert read_table(spark, TABLE, [tmp_path / name for name in "abc"]).count() == 3
    assert read_table(spark, TABLE, []).count() == 0


def test_a_column_that_an_older_file_lacks_is_null(spark, tmp_path):
    path = tmp_path / "part.parquet"
    pq.write_table(local_rows(spark, ROWS, SCHEMA).drop("many").toArrow(), path)
    assert [row["many"] for row in read_table(spark, TABLE, [path]).collect()] == [None, None, None]


def test_some_columns_of_some_files_are_read_here(spark, tmp_path, tuned):
    for name, rows in (("small", 0), ("large", 1 << 40)):
        tuned(rows)
        write_table(TABLE, local_rows(spark, ROWS, SCHEMA), tmp_path / name)
        files = sorted((tmp_path / name).glob("*.parquet"))
        assert read_here(TABLE, files).equals(to_arrow(ROWS, SCHEMA))
        assert read_here(TABLE, files, ["many"]).to_pydict() == {"many": [1, None, -(1 << 62)]}
        assert [has_nulls(files[0], column) for column in ("message", "at")] == [False, True]
    assert read_here(TABLE, []).num_rows == 0


def test_what_was_there_is_replaced(spark, tmp_path):
    for rows in (ROWS, ROWS[:1]):
        write_table(TABLE, local_rows(spark, rows, SCHEMA), tmp_path / "table")
    assert count_rows(tmp_path / "table") == 1


def test_bytes_of_messages_do_not_come_to_the_driver(spark, tmp_path, monkeypatch):
    rows = local_rows(spark, [], QUARANTINE.schema)
    monkeypatch.setattr(type(rows), "toArrow", lambda self: pytest.fail("collected"))
    write_table(QUARANTINE, rows, tmp_path / "quarantine")
    assert list((tmp_path / "quarantine").glob("*.parquet"))
