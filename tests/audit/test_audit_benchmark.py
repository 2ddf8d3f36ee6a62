"""The benchmark compares like with like: its lake is sound, and DuckDB's script builds the same tables as Spark."""

from __future__ import annotations

import pytest
from benchmarks.audit import say_growth
from benchmarks.audit_duckdb import compare, run_duckdb
from benchmarks.audit_lake import AGREEMENT, LakeWriter, Shares
from benchmarks.audit_spark import run_core

from audit.audit_worlds import open_test_session
from dovetail.audit.session import tune

MESSAGES = 16_384
"""One file of two chunks: those of the second refer to those of the first."""


@pytest.fixture(scope="module")
def cores(spark, tmp_path_factory):
    root = tmp_path_factory.mktemp("bench")
    LakeWriter(root / "lake", 1).seal(Shares(MESSAGES, 0, 0))
    run_core(spark, root / "lake", root / "ours")
    tune(open_test_session(), 0)
    run_duckdb(root / "lake", root / "theirs", 1, AGREEMENT)
    return root


@pytest.mark.soak
def test_spark_and_duckdb_make_the_same_tables(cores):
    counts = compare(cores / "ours", cores / "theirs")
    assert counts["decoded"] == MESSAGES
    assert counts["links"] > 0


@pytest.mark.soak
def test_a_table_that_differs_is_told(cores, spark):
    links = spark.read.parquet(str(cores / "ours" / "links"))
    links.limit(1).write.mode("append").parquet(str(cores / "ours" / "links"))
    with pytest.raises(SystemExit, match="links: spark has"):
        compare(cores / "ours", cores / "theirs")


def test_growth_is_told_by_what_one_message_costs(capsys):
    run = {"seconds": 14.0, "cpu_seconds": 25.0, "peak_mb": 6500}
    say_growth([{"messages": 1_000_000, "duckdb": {"seconds": 7.0, "cpu_seconds": 13.0}, "core": run}])
    assert capsys.readouterr().err == (
        "   1,000,000 messages, each: duckdb 7.0 us (13.0 of processor time);"
        " core 14.0 us (25.0 of processor time, 6,500 MB)\n"
    )
