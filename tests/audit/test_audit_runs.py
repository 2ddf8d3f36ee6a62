"""Runs of the audit: one writer at a time, killed runs rolled back, readers that see one complete run, vacuum."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import duckdb
import polars as pl
import pyarrow as pa
import pytest

from audit.audit_worlds import BROKER, PEERS, SETTINGS, quiet_pcp, write_lake
from audit.test_audit_tampering import rewrite, set_cell
from dovetail.audit import failures, sources
from dovetail.audit import lease as leases
from dovetail.audit.delta import table_uri
from dovetail.audit.engines import spark_frame
from dovetail.audit.ingest_log import CHANGING
from dovetail.audit.lease import Lease, LeaseLost
from dovetail.audit.run import Audit
from dovetail.audit.runs import publish, writing
from dovetail.audit.schemas import GAPS, SKEW
from dovetail.audit.tables import Run, open_tables
from dovetail.audit.vacuum import vacuum_tables
from dovetail.audit.warehouse import STORED, Warehouse
from dovetail.lake.layout import server_slug
from dovetail.lake.store import LocalStore
from dovetail.model.errors import PipelineError

OTHER = "pcp://other.example/server"


def write_run(root: Path, rows: int, *, is_finished: bool = True) -> None:
    """A run that writes the same number of rows to two tables."""
    warehouse = Warehouse(None, str(root))
    with writing(warehouse):
        for table in (SKEW, GAPS):
            row = dict.fromkeys(table.names) | {"server": "pcp://a/server"}
            warehouse.overwrite_arrow(table.name, pa.Table.from_pylist([row] * rows, schema=table.arrow))
            if not is_finished:
                return
        publish(warehouse, Run(number=warehouse.run, lake="lake", as_of_us=rows), is_whole=True)


def test_a_second_writer_is_told_who_holds_the_lease(tmp_path):
    first, second = (Lease(LocalStore(tmp_path)) for _ in range(2))
    first.take()
    with pytest.raises(PipelineError, match=f"another audit is writing these tables: process {os.getpid()} on"):
        second.take()
    first.give_back()
    second.take()
    second.check()
    with pytest.raises(LeaseLost):
        first.check()
    second.give_back()


def test_a_second_writer_waits(tmp_path):
    first, second = (Lease(LocalStore(tmp_path)) for _ in range(2))
    first.take()
    waiting = threading.Thread(target=second.take, args=(600,))
    waiting.start()
    first.give_back()
    waiting.join()
    second.check()
    second.give_back()


def test_the_lease_of_a_dead_process_is_free_at_once(tmp_path):
    program = (
        "import os, sys; from pathlib import Path; from dovetail.audit.lease import Lease;"
        "from dovetail.lake.store import LocalStore;"
        "Lease(LocalStore(Path(sys.argv[1]))).take(); os.kill(os.getpid(), 9)"
    )
    killed = subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=False)
    assert killed.returncode == -signal.SIGKILL
    lease = Lease(LocalStore(tmp_path))
    lease.take()
    lease.give_back()


def test_a_lease_that_was_not_renewed_is_taken_and_its_holder_notices(tmp_path, monkeypatch):
    monkeypatch.setattr(leases, "LASTS_S", 0.05)
    first, second = (Lease(LocalStore(tmp_path)) for _ in range(2))
    first.take()
    time.sleep(0.06)
    with pytest.raises(LeaseLost):
        first.check()
    monkeypatch.setattr(leases, "LASTS_S", 60)
    second.take()
    assert not first._write(first._number + 1, 60), "the number is gone, and a higher one counts"
    second.check()
    second.give_back()


def test_what_an_unfinished_run_wrote_is_taken_back(tmp_path):
    write_run(tmp_path, 3)
    write_run(tmp_path, 5, is_finished=False)
    tables = open_tables(tmp_path)
    assert (tables.count("skew"), tables.count("gaps"), tables.run.number) == (3, 3, 1)
    warehouse = Warehouse(None, str(tmp_path))
    with writing(warehouse) as previous:
        assert previous.number == 1
        assert (warehouse.rows("skew"), warehouse.rows("gaps")) == (3, 3)
        versions = warehouse.versions()
    with writing(Warehouse(None, str(tmp_path))):
        pass
    again = Warehouse(None, str(tmp_path))
    with writing(again):
        assert again.versions() == versions, "it is taken back once"
    write_run(tmp_path, 4)
    assert (open_tables(tmp_path).count("skew"), open_tables(tmp_path, 1).count("skew")) == (4, 3)


def test_tables_of_an_older_version_get_the_new_columns(tmp_path, monkeypatch):
    write_run(tmp_path, 3)
    newer = replace(SKEW, arrow=SKEW.arrow.append(pa.field("added", pa.int64())))
    monkeypatch.setitem(STORED, "skew", newer)
    warehouse = Warehouse(None, str(tmp_path))
    for value in (7, 8):
        with writing(warehouse):
            row = dict.fromkeys(newer.names) | {"added": value}
            warehouse.overwrite_arrow("skew", pa.Table.from_pylist([row], schema=newer.arrow))
            publish(warehouse, Run(number=warehouse.run, lake="lake", as_of_us=value), is_whole=True)
        assert warehouse.arrow("skew")["added"].to_pylist() == [value]
    assert (open_tables(tmp_path).count("skew"), open_tables(tmp_path, 1).count("skew")) == (1, 3)


def test_a_first_run_that_did_not_end_leaves_nothing(tmp_path):
    write_run(tmp_path, 5, is_finished=False)
    with pytest.raises(PipelineError, match="holds no audit"):
        open_tables(tmp_path)
    write_run(tmp_path, 2)
    assert open_tables(tmp_path).count("gaps") == 2


def read_with_deltalake(root: Path) -> set[int]:
    tables = open_tables(root)
    return {tables.read(name).num_rows for name in ("skew", "gaps")} | {tables.run.as_of_us}


def read_with_polars(root: Path) -> set[int]:
    run = open_tables(root).run
    each = {pl.read_delta(table_uri(root, name), version=run.versions[name]).height for name in ("skew", "gaps")}
    return each | {run.as_of_us}


def read_with_duckdb(root: Path) -> set[int]:
    tables = open_tables(root)
    found = {tables.run.as_of_us}
    for name in ("skew", "gaps"):
        rows = tables.dataset(name)  # DuckDB finds it by its name here
        found |= set(duckdb.sql("SELECT count(*) FROM rows").fetchall()[0])
        del rows
    return found


@pytest.mark.parametrize(("read", "times"), [(read_with_deltalake, 40), (read_with_polars, 40), (read_with_duckdb, 40)])
def test_readers_beside_a_writer_see_one_run_whole(tmp_path, read, times):
    read_beside_a_writer(tmp_path, read, times)


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.parametrize("engine", ["deltalake", "polars", "duckdb", "spark"])
def test_a_thousand_reads_beside_a_writer(spark, tmp_path, engine):
    def read_with_spark(root: Path) -> set[int]:
        tables = open_tables(root)
        return {spark_frame(spark, tables, name).count() for name in ("skew", "gaps")} | {tables.run.as_of_us}

    readers = {"deltalake": read_with_deltalake, "polars": read_with_polars, "duckdb": read_with_duckdb}
    read_beside_a_writer(tmp_path, readers.get(engine, read_with_spark), 1000)


def read_beside_a_writer(tmp_path: Path, read, times: int) -> None:
    """Read so often while runs follow each other, and until at least two were seen."""
    write_run(tmp_path, 1)
    stop = threading.Event()

    def write() -> None:
        rows = 1
        while not stop.is_set():
            rows += 1
            write_run(tmp_path, rows)

    writer = threading.Thread(target=write)
    writer.start()
    seen = set()
    try:
        while len(seen) < 2 or times > 0:
            found = read(tmp_path)
            assert len(found) == 1, "torn"
            seen |= found
            times -= 1
    finally:
        stop.set()
        writer.join()


def test_spark_sees_one_run_whole(spark, tmp_path):
    for rows in (1, 2):
        write_run(tmp_path, rows)
        tables = open_tables(tmp_path)
        write_run(tmp_path, rows + 7)
        found = {spark_frame(spark, tables, name).count() for name in ("skew", "gaps")}
        assert found == {rows}


def swap_once(monkeypatch, lake: Path) -> None:
    """Once, a file of one server is another one as soon as it was looked at."""
    looked = sources.inspect_files

    def look(spark, store, files):
        found = looked(spark, store, files)
        (victim,) = [file for file in files if server_slug(BROKER) in file.path]
        data = (lake / victim.path).read_bytes()
        (lake / victim.path).write_bytes(data[:4] + b"\xff" * (len(data) - 8) + data[-4:])
        monkeypatch.setattr(sources, "inspect_files", looked)
        return found

    monkeypatch.setattr(sources, "inspect_files", look)


def test_a_file_that_changes_while_it_is_read_stops_nobody(spark, tmp_path, monkeypatch):
    lake = write_lake(tmp_path, {BROKER: quiet_pcp(4), PEERS[0]: quiet_pcp(2, first=50)})
    swap_once(monkeypatch, lake)
    summary = Audit(spark=spark, lake=lake, tables=tmp_path / "out", settings=SETTINGS).run()
    assert {state.server: state.verdict for state in summary.servers} == {BROKER: "broken", PEERS[0]: "proven"}


def test_rows_that_replaced_others_while_the_file_was_read_are_not_believed(spark, tmp_path, monkeypatch):
    """Another file is in its place when its rows are read, and the sealed one before and after that."""
    lake = write_lake(tmp_path, {BROKER: quiet_pcp(4)})
    (path,) = lake.glob("fabric=*/*/*.parquet")
    data, walked, appended, left = path.read_bytes(), sources.walk_rows, Warehouse.append, [1]

    def walk(rows):
        found = walked(rows)
        if left[0]:
            left[0] -= 1
            rewrite(path, lambda rows: set_cell(rows, 1, counterpart="pcp://mallory/agent"))
        return found

    def append(self, name, rows):
        written = appended(self, name, rows)
        if path.read_bytes() != data:
            path.write_bytes(data)
        return written

    monkeypatch.setattr(sources, "walk_rows", walk)
    monkeypatch.setattr(Warehouse, "append", append)
    summary = Audit(spark=spark, lake=lake, tables=tmp_path / "out", settings=SETTINGS).run()
    assert [state.verdict for state in summary.servers] == ["proven"]
    assert "pcp://mallory/agent" not in open_tables(tmp_path / "out").read("hops")["counterpart"].to_pylist()


def touch_always(monkeypatch, path: Path) -> None:
    """From now on a file is another object as soon as it was looked at, with the same bytes."""
    looked = sources.inspect_files

    def look(spark, store, files):
        found = looked(spark, store, files)
        path.touch()
        return found

    monkeypatch.setattr(sources, "inspect_files", look)


def test_a_file_that_is_touched_all_the_time_is_left_out_until_it_is_quiet(spark, tmp_path, monkeypatch):
    lake = write_lake(tmp_path, {BROKER: quiet_pcp(4), OTHER: quiet_pcp(2, first=50)})
    (path,) = lake.glob(f"fabric=*/*/{server_slug(BROKER)}*.parquet")
    audit = Audit(spark=spark, lake=lake, tables=tmp_path / "out", settings=SETTINGS)
    with monkeypatch.context() as hostile:
        touch_always(hostile, path)
        hostile.setattr(failures, "ATTEMPTS", 1)
        summary = audit.run()
        assert {state.server: state.verdict for state in summary.servers} == {BROKER: "broken", OTHER: "proven"}
        tables = open_tables(tmp_path / "out")
        (row,) = [row for row in tables.scan("integrity") if row["server"] == BROKER]
        key = str(path.relative_to(lake))
        assert [(item["check"], item["file"], item["detail"]) for item in row["breaks"]] == [
            ("integrity.missing_file", key, f"hops 0 to 7: {CHANGING}")
        ]
        assert {row["server"] for row in tables.scan("findings")} == {BROKER}
        assert set(tables.read("hops")["server"].to_pylist()) == {OTHER}
        assert audit.refresh().number == 1, "nothing is new while it goes on"
    summary = audit.run()
    assert {state.server: state.verdict for state in summary.servers} == {BROKER: "proven", OTHER: "proven"}
    assert open_tables(tmp_path / "out").count("hops") == 12


def test_vacuum_keeps_what_a_kept_run_names(tmp_path):
    for rows in range(1, 5):
        write_run(tmp_path, rows)
    write_run(tmp_path, 9, is_finished=False)
    files = len(list(tmp_path.glob("*/*.parquet")))
    dry = vacuum_tables(str(tmp_path), keep_runs=2, older_than_h=0, is_dry=True)
    assert (dry.forgotten, len(list(tmp_path.glob("*/*.parquet")))) == ([1, 2], files)
    young = vacuum_tables(str(tmp_path), keep_runs=2, older_than_h=24)
    assert young.forgotten == [], "a reader may still look at them"
    done = vacuum_tables(str(tmp_path), keep_runs=2, older_than_h=0)
    assert (done.forgotten, sorted(done.kept)) == ([1, 2], [3, 4])
    assert len(list(tmp_path.glob("*/*.parquet"))) < files
    for number in (3, 4):
        assert open_tables(tmp_path, number).read("gaps").num_rows == number
    with pytest.raises(PipelineError, match="has no run 1; there are 4, 3"):
        open_tables(tmp_path, 1)
    write_run(tmp_path, 6)
    assert open_tables(tmp_path).read("skew").num_rows == 6
