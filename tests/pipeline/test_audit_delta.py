"""A run after another makes only what new segments touch, and the tables are those of one run over everything."""

from __future__ import annotations

import datetime as dt
import random
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark.testing import assertDataFrameEqual

from dovetail.pipeline import schemas
from dovetail.pipeline.jobs.run import Audit
from dovetail.pipeline.reading import open_table
from dovetail.pipeline.store import Store
from dovetail.pipeline.transforms.sightings import collect_sightings, sightings
from pipeline.audit_worlds import SECOND, SETTINGS, T0_US, pcp_world, won_world, write_lake

LATER = 100 * SECOND
T0 = dt.datetime(2026, 11, 15, tzinfo=dt.UTC)


def world(number: int):
    """Some traffic; each number has messages of its own. No swarm: the clocks of its peers are estimated anew."""
    rng, start = random.Random(number), T0_US + number * LATER
    return {
        **pcp_world(rng, 6, first=1 + 1000 * number, start_us=start),
        **won_world(rng, 6, start, creates=number == 0),
    }


def run(spark, root: Path, out: str, **options) -> Path:
    audit = Audit(spark=spark, lake=root / "lake", store=Store.open(root / out), settings=SETTINGS, **options)
    audit.run()
    return root / out


def rows_of(out: Path, table: str) -> list[str]:
    return sorted(repr(sorted(row.items())) for row in open_table(out, table).to_table().to_pylist())


def files_of(out: Path, table: str) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in (out / table).glob("*.parquet")}


@pytest.mark.timeout(900)
def test_a_second_run_replaces_what_is_touched_and_keeps_the_rest(spark, tmp_path):
    write_lake(tmp_path, world(0))
    out = run(spark, tmp_path, "out", whole_below=0)
    split_by_fabric(out / "deliveries")
    before = files_of(out, "deliveries")
    write_lake(tmp_path, world(1))
    run(spark, tmp_path, "out", whole_below=0)
    kept = {name for name, changed in files_of(out, "deliveries").items() if before.get(name) == changed}
    assert kept == {"pcp.parquet"}, "won has messages under way"
    assert_each_address_once(out)

    whole = run(spark, tmp_path, "whole")
    for table in schemas.TABLES:
        assert rows_of(out, table.name) == rows_of(whole, table.name), table.name

    # killed while tables were put in place: nothing says what they were made from
    (out / "_state" / "run.json").unlink()
    for path in (out / "deliveries").glob("*.parquet"):
        path.unlink()
    run(spark, tmp_path, "out", whole_below=0)
    for table in schemas.TABLES:
        assert rows_of(out, table.name) == rows_of(whole, table.name), table.name


def split_by_fabric(directory: Path) -> None:
    """A small table is one file; in how many files it lies has no meaning."""
    table = pq.read_table(directory)
    for path in directory.glob("*.parquet"):
        path.unlink()
    for fabric in ("pcp", "won"):
        pq.write_table(table.filter(pc.field("fabric") == fabric), directory / f"{fabric}.parquet")


def assert_each_address_once(out: Path) -> None:
    """Bytes are decoded once, and signatures verified once, whatever the number of runs."""
    for table, column, batches in (("decoded", "digest", 2), ("verdicts", "message", 2)):
        paths = sorted((out / "_state" / table).glob("batch=*"))
        assert len(paths) == batches
        values = [value for path in paths for value in pq.read_table(path)[column].to_pylist()]
        assert len(values) == len(set(values)), table
        assert all(pq.read_table(path).num_rows for path in paths), f"each run had new rows of {table}"


def test_a_column_for_each_peer_gives_what_collecting_gives(spark):
    hops = [
        ("swarm://s/a", "created", 5, b"1", None),
        ("swarm://s/b", "accepted", 5, b"1", None),
        ("swarm://s/b", "accepted", 3, b"1", None),
        ("swarm://s/b", "rejected", 9, b"1", "too_large"),
        ("swarm://s/a", "rejected", 4, b"2", "truncated"),
        ("swarm://s/a", "rejected", 4, b"2", None),
        ("swarm://s/a", "forwarded", 1, b"3", None),
        ("swarm://s/b", "rejected", -7, b"4", "lifetime_over"),
    ]
    rows = [
        ("swarm", server, seq, T0 + dt.timedelta(microseconds=us), stage, message * 32, None, reason, 1, False, True)
        for seq, (server, stage, us, message, reason) in enumerate(hops)
    ]
    known = [
        {"fabric": "swarm", "message": m * 32, "key": m * 8, "created": T0, "work_valid": m == b"1"}
        for m in (b"1", b"5")
    ]
    names = schemas.MESSAGES.schema.names
    messages = spark.createDataFrame([tuple(row.get(name) for name in names) for row in known], schemas.MESSAGES.schema)
    seen = spark.createDataFrame(rows, schemas.HOPS.schema)
    columns = sightings(seen, messages, peers=["swarm://s/a", "swarm://s/b"])
    assertDataFrameEqual(columns, collect_sightings(seen, messages), ignoreNullable=True)
    assert columns.count() == 4
