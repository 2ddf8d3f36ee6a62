"""The tables equal those of the slow, separate implementation, however the work is split into runs and partitions."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from audit.audit_worlds import SECOND, SETTINGS, T0_US, open_test_session, whole_world, write_lake
from dovetail.audit import schemas
from dovetail.audit.run import Audit
from dovetail.audit.session import SMALL_WORK
from dovetail.audit.tables import open_tables, read_runs
from lake.lakes import manifest_files
from oracle.audit_answers import ask_oracle, ask_tables

LARGE = {
    SMALL_WORK: "false",
    "spark.sql.optimizer.disableHints": "false",
    "spark.sql.autoBroadcastJoinThreshold": "10485760",
}
ADAPTIVE = {**LARGE, "spark.sql.shuffle.partitions": "3", "spark.sql.adaptive.enabled": "true"}
SEEDS = (5, *range(100, 105))
ANSWERS = [table.name for table in schemas.TABLES if table.layer != "log"]
COMPILED = {"spark.sql.codegen.wholeStage": "true", "spark.sql.codegen.factoryMode": "FALLBACK"}


def audit(spark, root: Path, out: str, **options) -> Audit:
    return Audit(spark=spark, lake=root / "lake", tables=root / out, settings=SETTINGS, **options)


def rows_of(out: Path, table: str) -> list[str]:
    """All rows, sorted: files may differ, and which run read a row."""
    rows = open_tables(out).read(table).to_pylist()
    return sorted(repr(sorted((name, value) for name, value in row.items() if name != "run")) for row in rows)


def fix(spark, monkeypatch, settings: dict[str, str]) -> None:
    """Fix these settings of the session, so that no step tunes it otherwise."""
    for key, value in settings.items():
        spark.conf.set(key, value)
    for module in ("run", "refresh", "increment", "finding", "warehouse"):
        monkeypatch.setattr(f"dovetail.audit.{module}.tune", lambda spark, rows: None)


def write_world(root: Path, seed: int) -> dict[str, set[tuple]]:
    """A lake of three days, and what the separate implementation says of it."""
    write_lake(root, *(whole_world(seed, 8, T0_US + day * 100 * SECOND) for day in range(3)))
    return ask_oracle(root)


def check(spark, root: Path, seed: int, monkeypatch, settings: dict[str, str]) -> None:
    expected = write_world(root, seed)

    # in three runs, of which the first sees only the latest manifests and the last the earliest ones
    paths = manifest_files(root / "lake")
    hidden = root / "hidden"
    steps = audit(spark, root, "steps", whole_below=0)
    for number in (2, 1, 0):
        for path in paths:
            own = [other for other in paths if other.parent == path.parent]
            aside = hidden / path.relative_to(root)
            aside.parent.mkdir(parents=True, exist_ok=True)
            if own.index(path) < number and path.exists():
                shutil.move(path, aside)
            elif own.index(path) >= number and aside.exists():
                shutil.move(aside, path)
        steps.run()
    assert len(read_runs(root / "steps")) == 3
    assert ask_tables(root / "steps") == expected

    # in one run, with other partitions
    with monkeypatch.context() as patch:
        fix(spark, patch, settings)
        audit(spark, root, "once").run()
    assert ask_tables(root / "once") == expected
    for table in ANSWERS:
        assert rows_of(root / "once", table) == rows_of(root / "steps", table), table


@pytest.mark.parametrize("seed", SEEDS)
def test_each_world_has_something_of_everything(tmp_path, seed):
    assert [name for name, rows in write_world(tmp_path, seed).items() if not rows] == []


@pytest.mark.timeout(900)
def test_spark_agrees_with_the_oracle(tmp_path, monkeypatch):
    check(open_test_session(), tmp_path, SEEDS[0], monkeypatch, ADAPTIVE)


@pytest.mark.soak
@pytest.mark.parametrize("adaptive", ["true", "false"])
@pytest.mark.parametrize("partitions", [1, 2, 8, 200])
@pytest.mark.parametrize("seed", SEEDS[1:])
def test_spark_agrees_with_the_oracle_on_many_worlds(tmp_path, monkeypatch, seed, partitions, adaptive):
    settings = {"spark.sql.shuffle.partitions": str(partitions), "spark.sql.adaptive.enabled": adaptive}
    spark = open_test_session()
    if seed % 2:  # the incremental runs use these settings too
        fix(spark, monkeypatch, {**LARGE, **settings, **COMPILED})
    check(spark, tmp_path, seed, monkeypatch, {**LARGE, **settings, **COMPILED})
