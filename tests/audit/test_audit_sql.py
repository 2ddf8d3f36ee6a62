"""The page of SQL queries: each gives the same rows in DuckDB and in Spark SQL, opened as `--sql` prints."""

from __future__ import annotations

import re
from functools import reduce
from pathlib import Path

import pytest
from pyspark.sql import DataFrame

from audit.audit_worlds import BROKER, SECOND, SETTINGS, T0_US, quiet_pcp, whole_world, write_lake
from dovetail.audit import engines as recipe
from dovetail.audit.run import Audit
from dovetail.audit.tables import open_tables
from dovetail.cli.main import main

pytestmark = pytest.mark.timeout(600)

PAGE = (Path(__file__).parents[2] / "docs/how-to/audit-with-sql.md").read_text()
QUESTIONS = [
    text.strip().removesuffix(";") for text in re.findall(r"^```sql\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
]


@pytest.fixture(scope="module")
def tables(spark, tmp_path_factory):
    """Two runs, of which the first is queried: everything below must read its versions."""
    root = tmp_path_factory.mktemp("sql")
    lake = write_lake(root, whole_world(3, 8))
    audit = Audit(spark=spark, lake=lake, tables=root / "out", settings=SETTINGS)
    audit.run()
    write_lake(root, {BROKER: quiet_pcp(2, T0_US + 1000 * SECOND, 900)})
    audit.whole_below = 0
    audit.run()
    assert open_tables(root / "out").run.number == 2
    return open_tables(root / "out", 1)


@pytest.fixture(scope="module")
def engines(spark, tables):
    given = {}
    exec(recipe.duckdb(tables), given)  # the text that users paste
    for statement in recipe.spark(tables).split(";"):
        if statement.strip():
            spark.sql(statement)
    yield given["db"], spark
    for name in tables.names:
        spark.catalog.dropTempView(name)
    given["db"].close()


def test_every_engine_has_the_rows_of_the_run_that_was_named(engines, tables):
    duck, spark = engines
    given = {}
    exec(recipe.polars(tables), given)
    counts = {name: tables.count(name) for name in tables.names if name != "runs"}
    asked = " UNION ALL ".join(f"SELECT '{name}' AS name, count(*) AS rows FROM {name}" for name in counts)
    assert dict(duck.sql(asked).fetchall()) == counts
    assert dict(map(tuple, spark.sql(asked).collect())) == counts
    assert {name: given["tables"][name].collect().height for name in counts} == counts
    frames = [
        recipe.spark_frame(spark, tables, name).selectExpr(f"'{name}' AS name", "count(*) AS rows") for name in counts
    ]
    assert dict(map(tuple, reduce(DataFrame.unionAll, frames).collect())) == counts
    assert tables.count("hops") < open_tables(tables.root).count("hops")
    assert f"FOR VERSION AS OF {tables.run.versions['hops']}" in recipe.trino(tables)


def test_the_command_prints_all_of_it(tables, capsys):
    assert main(["audit", "tables", "--tables", tables.root, "--run", "1", "--sql"]) == 0
    printed = capsys.readouterr().out
    for part in (recipe.duckdb, recipe.polars, recipe.spark, recipe.trino):
        assert part(tables) in printed


def test_the_page_has_questions():
    assert len(QUESTIONS) > 10


@pytest.mark.parametrize("question", QUESTIONS)
def test_both_give_the_same_answer(engines, question):
    duck, spark = engines
    one = duck.sql(question).to_arrow_table()
    other = spark.sql(question).toArrow()
    assert one.column_names == other.column_names
    rows, other_rows = ([tuple(row.values()) for row in table.to_pylist()] for table in (one, other))
    assert rows == other_rows
    assert rows, "a question that finds nothing shows nothing"
