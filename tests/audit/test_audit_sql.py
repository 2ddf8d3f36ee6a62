"""The page of SQL questions: every one of them gives the same rows in DuckDB and in Spark SQL."""

from __future__ import annotations

import re
from pathlib import Path

import duckdb
import pytest

from audit.audit_worlds import SETTINGS, whole_world, write_lake
from dovetail.audit.jobs.run import Audit
from dovetail.audit.store import Store

pytestmark = pytest.mark.timeout(600)

PAGE = (Path(__file__).parents[2] / "docs/how-to/audit-with-sql.md").read_text()
BLOCKS = re.findall(r"^```sql *(\w*)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
VIEWS = {kind: re.findall(r"VIEW (\w+) AS", text) for kind, text in BLOCKS if kind}
QUESTIONS = [text.strip().removesuffix(";") for kind, text in BLOCKS if not kind]


@pytest.fixture(scope="module")
def engines(spark, tmp_path_factory):
    root = tmp_path_factory.mktemp("sql")
    lake = write_lake(root, whole_world(3, 8))
    Audit(spark=spark, lake=lake, store=Store.open(root / "out"), settings=SETTINGS).run()
    duck = duckdb.connect()
    for kind, text in BLOCKS:
        for statement in text.replace("OUT", str(root / "out")).split(";") if kind else ():
            if statement.strip():
                duck.execute(statement) if kind == "duckdb" else spark.sql(statement)
    yield duck, spark
    for view in VIEWS["spark"]:
        spark.catalog.dropTempView(view)
    duck.close()


def test_the_page_has_views_for_both_and_questions():
    assert [kind for kind, _ in BLOCKS if kind] == ["duckdb", "spark"]
    assert VIEWS["duckdb"] == VIEWS["spark"]
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
