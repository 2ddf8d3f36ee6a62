"""A search gives the rows that are asked for, whether this process looks through the files or Spark does."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.types import StructField, StructType

from dovetail.audit import session
from dovetail.audit.jobs import search
from dovetail.audit.jobs.search import Search, distinct, pick
from dovetail.audit.schemas import BINARY, LONG, STRING, Table
from dovetail.audit.store import Store

SCHEMA = StructType([StructField("fabric", STRING), StructField("message", BINARY), StructField("many", LONG)])
TABLE = Table("_state/things", "silver", "Things.", ("fabric", "message"), SCHEMA)
ROWS = [("pcp", b"1", 1), ("won", b"1", 2), ("won", b"2", 3), ("swarm", None, 4), ("won", b"1", 5)]
WANTED = pa.table({"fabric": ["won", "pcp"], "message": pa.array([b"1", b"9"], pa.binary())})


def rows_of(rows: pa.Table) -> list[tuple]:
    return sorted(tuple(row.values()) for row in rows.to_pylist())


def to_table(rows: list[tuple]) -> pa.Table:
    names = SCHEMA.names
    types = [pa.string(), pa.binary(), pa.int64()]
    return pa.table([pa.array([row[i] for row in rows], types[i]) for i in range(3)], names=names)


@pytest.fixture(params=["here", "on Spark"])
def looking(request, spark, tmp_path, monkeypatch):
    """A search, and the files it looks through."""
    if request.param == "on Spark":
        monkeypatch.setattr(search, "MAX_HERE", 0)
    files = []
    for number, rows in enumerate((ROWS[:2], ROWS[2:4], ROWS[4:])):
        files.append(tmp_path / f"{number}.parquet")
        pq.write_table(to_table(rows), files[-1])
    yield Search(spark, Store.open(tmp_path / "out"), 0), files
    session.tune(spark, 0)


def test_only_rows_with_all_of_the_values_are_taken(looking):
    looked, files = looking
    assert rows_of(looked.take(TABLE, files, WANTED)) == [("won", b"1", 2), ("won", b"1", 5)]
    assert rows_of(looked.take(TABLE, files, WANTED.select(["message"]))) == [
        ("pcp", b"1", 1),
        ("won", b"1", 2),
        ("won", b"1", 5),
    ]
    assert not looked.take(TABLE, files, WANTED.slice(0, 0)).num_rows


def test_files_that_hold_such_a_row_are_named(looking):
    looked, files = looking
    assert looked.holding(TABLE, files, WANTED) == {"0.parquet", "2.parquet"}
    assert looked.holding(TABLE, files, WANTED.slice(1)) == set()
    assert looked.holding(TABLE, files, WANTED.slice(0, 0)) == set()


def test_what_is_in_memory_is_picked_by_the_same_rule():
    rows = to_table(ROWS)
    assert rows_of(pick(rows, WANTED)) == [("won", b"1", 2), ("won", b"1", 5)]
    assert pick(rows, WANTED, others=True)["many"].to_pylist() == [1, 3, 4], "a row without a value is another one"
    assert not pick(rows, WANTED.slice(0, 0)).num_rows
    assert pick(rows, WANTED.slice(0, 0), others=True).num_rows == len(ROWS)


def test_rows_of_several_tables_stand_once():
    keys = WANTED.rename_columns(["fabric", "key"])
    assert rows_of(distinct(WANTED, keys, keys.slice(0, 1))) == [("pcp", b"9"), ("won", b"1")]
    assert distinct(WANTED, keys).column_names == ["fabric", "message"]
