"""Rows are replaced by their keys in one commit, whichever way the size of the table and of the rows makes it."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql import functions as F  # noqa: N812 - the conventional name

from dovetail.audit import warehouse as warehouses
from dovetail.audit.delta import open_delta, table_uri
from dovetail.audit.local_rows import from_arrow
from dovetail.audit.schemas import COVERAGE, HOPS
from dovetail.audit.session import SMALL_ROWS, tune
from dovetail.audit.spark_files import STAGING
from dovetail.audit.table import TIMESTAMP
from dovetail.audit.warehouse import Warehouse
from dovetail.model.errors import ConfigError
from dovetail.model.times import to_datetime

ONE, TWO, OTHER = b"1" * 32, b"2" * 32, b"3" * 32


def rows(*each: tuple[bytes | None, str, int]) -> pa.Table:
    """Rows of coverage: about a message, or about a peer where there is none."""
    named = [{"message": message, "peer": peer, "holders": holders} for message, peer, holders in each]
    return pa.Table.from_pylist([dict.fromkeys(COVERAGE.names) | row for row in named], schema=COVERAGE.arrow)


def keys(*messages: bytes) -> pa.Table:
    return pa.table({"message": pa.array(messages, pa.binary())})


def told(warehouse: Warehouse) -> list[tuple[bytes | None, str, int]]:
    each = warehouse.arrow("coverage").to_pylist()
    return sorted(((row["message"], row["peer"], row["holders"]) for row in each), key=repr)


@pytest.fixture(params=["here", "merged", pytest.param("merged from Spark", marks=pytest.mark.soak)])
def warehouse(request, spark, tmp_path, monkeypatch):
    """A table with two messages and a peer; the given way of replacing is the only one."""
    made = Warehouse(spark, str(tmp_path / "odd {a,b} *?"))  # no path is a pattern
    made.prepare()
    made.append_arrow("coverage", rows((ONE, "-", 1), (None, "peer", 2)))
    made.append_arrow("coverage", rows((TWO, "-", 1)))
    rewritten = []
    if request.param == "here":
        monkeypatch.setattr(warehouses, "tune", lambda *_: pytest.fail("nothing has to be merged by Spark"))
    else:
        monkeypatch.setattr(warehouses, "REWRITE_ROWS", 0)
        commit = Warehouse._commit
        monkeypatch.setattr(
            Warehouse,
            "_commit",
            lambda self, name, rows, mode: (rewritten.append(mode), commit(self, name, rows, mode)),
        )
    if request.param == "merged from Spark":
        tune(spark, SMALL_ROWS + 1)
        replace = Warehouse.replace
        monkeypatch.setattr(
            Warehouse,
            "replace",
            lambda self, name, rows, keys: replace(self, name, from_arrow(spark, rows, COVERAGE.schema), keys),
        )
    yield made
    tune(spark, 0)
    assert "overwrite" not in rewritten


def test_all_rows_of_known_keys_are_replaced_in_one_commit(warehouse):
    before = warehouse.versions()["coverage"]
    warehouse.replace("coverage", rows((ONE, "a", 3), (ONE, "b", 4), (None, "peer", 5)), keys(ONE, OTHER, b""))
    assert told(warehouse) == [(None, "peer", 5), (ONE, "a", 3), (ONE, "b", 4), (TWO, "-", 1)]
    assert warehouse.versions()["coverage"] == before + 1
    warehouse.replace("coverage", rows(), keys(TWO, ONE))
    assert told(warehouse) == [(None, "peer", 5)], "nothing takes their place"


def test_tables_whose_columns_another_version_described_in_other_words_are_written(warehouse):
    table = warehouse._opened["coverage"]
    table.alter.set_column_metadata("holders", {"comment": "older words"})
    table.update_incremental()
    warehouse.append_arrow("coverage", rows((OTHER, "-", 1)))
    warehouse.replace("coverage", rows((ONE, "a", 3)), keys(ONE))
    assert told(warehouse) == [(None, "peer", 2), (ONE, "a", 3), (TWO, "-", 1), (OTHER, "-", 1)]


def test_rows_whose_keys_nothing_has_are_added(warehouse):
    before = set(warehouse._opened["coverage"].file_uris())
    warehouse.replace("coverage", rows((OTHER, "-", 1)), keys())
    warehouse.replace("coverage", rows((OTHER, "x", 1)), keys(b"4" * 32))
    assert before < set(warehouse._opened["coverage"].file_uris())
    assert (OTHER, "-", 1) in told(warehouse)
    assert len(told(warehouse)) == 5


@pytest.mark.parametrize("name", ["tables[1]", "100%20"])
def test_a_directory_that_no_table_can_be_in_is_refused(spark, tmp_path, name):
    with pytest.raises(ConfigError, match="tables cannot be kept in a directory with"):
        Warehouse(spark, str(tmp_path / name)).prepare()
    assert not (tmp_path / name).exists()


def hops_at(spark, *times_us: int):
    """Hops at these times, numbered; some partitions are empty."""
    each = spark.createDataFrame([(number, us) for number, us in enumerate(times_us)], "seq bigint, us bigint")
    given = {"seq": F.col("seq"), "at": F.timestamp_micros("us")}
    names = [own for own in HOPS.schema if own.name != "run"]
    columns = (given.get(own.name, F.lit(None)).cast(own.dataType).alias(own.name) for own in names)
    return each.select(*columns).repartition(5)


def seqs_since(warehouse: Warehouse, us: int) -> list[int]:
    return sorted(warehouse.scan("hops", ["seq"], (("at", ">=", to_datetime(us)),))["seq"].to_pylist())


FAR_US = 280_000_000_000_000_000  # in the year 10842


@pytest.mark.parametrize("times", [(-1, 1_500, 9_999), (0, 9_999, FAR_US), (9_500,)])
def test_spark_adds_rows_by_one_job_and_skips_no_file_that_may_have_them(spark, tmp_path, times):
    warehouse = Warehouse(spark, str(tmp_path / "odd {a,b} *?"))
    warehouse.prepare()
    warehouse.begin(3)
    tune(spark, 0)
    rows = hops_at(spark, *times)
    before = spark.sparkContext._jsc.sc().dagScheduler().numTotalJobs()
    warehouse.save("hops", rows)
    assert spark.sparkContext._jsc.sc().dagScheduler().numTotalJobs() - before == 1
    for since in (-2, 0, 1_501, 9_500, 9_999):
        assert seqs_since(warehouse, since) == [number for number, us in enumerate(times) if us >= since]
    assert seqs_since(warehouse, 20_000) == [number for number, us in enumerate(times) if us == FAR_US]
    assert warehouse.rows("hops") == len(times)
    assert warehouse.files("hops") <= len(times)
    actions = pa.table(open_delta(warehouse.root, "hops").get_add_actions(flatten=True))
    assert actions["min.run"].to_pylist() == actions["max.run"].to_pylist() == [3] * actions.num_rows
    assert not list((tmp_path / "odd {a,b} *?" / STAGING).iterdir())


def test_a_time_after_the_year_9999_hides_no_other_rows_of_its_file(spark, tmp_path):
    warehouse = Warehouse(spark, str(tmp_path))
    warehouse.prepare()
    times = pa.array([1_500, 9_999, FAR_US], TIMESTAMP)
    columns = {"seq": pa.array([0, 1, 2], pa.int64()), "at": times}
    nothing = HOPS.arrow.empty_table()
    hops = pa.table([columns.get(own.name, pa.nulls(3, own.type)) for own in nothing.schema], schema=nothing.schema)
    warehouse.append_arrow("hops", hops)
    assert seqs_since(warehouse, 9_500) == [1, 2]
    until = warehouse.scan("hops", ["seq"], (("at", "<", to_datetime(9_500)),))
    assert until["seq"].to_pylist() == [0]


def test_spark_may_add_nothing_and_overwrite_with_nothing(spark, tmp_path):
    warehouse = Warehouse(spark, str(tmp_path))
    warehouse.prepare()
    warehouse.save("hops", hops_at(spark))
    assert warehouse.versions()["hops"] == 0
    warehouse.append_arrow("coverage", rows((ONE, "-", 1)))
    warehouse._save("coverage", from_arrow(spark, rows(), COVERAGE.schema), "overwrite")
    assert warehouse.rows("coverage") == 0


def test_a_table_that_spark_writes_is_read_by_spark_and_others(spark, tmp_path):
    warehouse = Warehouse(spark, str(tmp_path))
    warehouse.prepare()
    warehouse.append_arrow("coverage", rows((TWO, "-", 1)))
    warehouse._save("coverage", from_arrow(spark, rows((ONE, "-", 1), (None, "peer", 2)), COVERAGE.schema), "overwrite")
    assert told(warehouse) == [(None, "peer", 2), (ONE, "-", 1)]
    with_delta = spark.read.format("delta").load(table_uri(warehouse.root, "coverage"))
    assert sorted((row["peer"], row["holders"]) for row in with_delta.collect()) == [("-", 1), ("peer", 2)]


def test_what_an_interrupted_write_left_is_deleted_by_the_next_run(spark, tmp_path):
    left = tmp_path / STAGING / "some" / "_temporary" / "part.parquet"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"half")
    warehouse = Warehouse(spark, str(tmp_path))
    warehouse.prepare()
    warehouse.recover({})
    assert not (tmp_path / STAGING).exists()
