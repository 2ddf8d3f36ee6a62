"""The audit's tables in an object store: the same commands and the same results as in a directory."""

from __future__ import annotations

import contextlib
import random

import pyarrow as pa
import pytest
from deltalake.exceptions import CommitFailedError

import dovetail
from audit.audit_worlds import SETTINGS, pcp_world, write_lake
from audit.test_audit_runs import read_with_deltalake, write_run
from dovetail.audit import engines, jars
from dovetail.audit.alerts import Alerts
from dovetail.audit.lease import Lease, LeaseLost
from dovetail.audit.run import Audit
from dovetail.audit.runs import writing
from dovetail.audit.schemas import GAPS, SKEW
from dovetail.audit.tables import changed_ns, open_tables
from dovetail.audit.vacuum import vacuum_tables
from dovetail.audit.warehouse import Warehouse
from dovetail.cli.main import main
from dovetail.dashboard.audit import survey
from dovetail.lake.location import open_store
from dovetail.lake.seal import seal_journal
from dovetail.model.errors import ConnectFailed, PipelineError
from lake.s3_proxy import run_proxy
from lake.s3_servers import BUCKET, run_moto_apart, run_versitygw, use
from oracle.audit_answers import ask_oracle, ask_tables

pytestmark = pytest.mark.timeout(600)
KINDS = ["moto", pytest.param("versitygw", marks=pytest.mark.system)]


@pytest.fixture(scope="module", params=KINDS)
def server(request, tmp_path_factory):
    """`deltalake` holds the GIL while it restores a table, so the server cannot be in this process."""
    started = run_moto_apart() if request.param == "moto" else run_versitygw(tmp_path_factory.mktemp("versitygw"))
    with started as running, use(running):
        yield running


def row_of(table) -> pa.Table:
    return pa.Table.from_pylist([dict.fromkeys(table.names) | {"server": "pcp://a/server"}], schema=table.arrow)


def test_runs_are_made_taken_back_and_vacuumed_there(server):
    root = f"s3a://{BUCKET}/runs"  # Spark's name for it works too
    with pytest.raises(OSError, match="holds no audit"):
        changed_ns(root)
    write_run(root, 3)
    write_run(root, 5, is_finished=False)
    assert read_with_deltalake(root) == {3}
    before = changed_ns(root)
    write_run(root, 4)
    assert (open_tables(root).run.number, changed_ns(root) >= before) == (2, True)
    assert read_with_deltalake(root) == {4}
    assert open_tables(root, 1).count("skew") == 3
    assert vacuum_tables(root, keep_runs=1, older_than_h=0).forgotten == [1]
    assert read_with_deltalake(root) == {4}
    with pytest.raises(PipelineError, match="has no run 1"):
        open_tables(root, 1)
    tables = open_tables(root)
    given: dict = {}
    exec(engines.duckdb(tables), given)  # the text that users paste
    assert given["db"].sql("SELECT count(*) FROM skew").fetchall() == [(4,)]
    exec(engines.polars(tables), given)
    assert given["tables"]["gaps"].collect().height == 4
    assert f"delta.`{root}/skew` VERSION AS OF" in engines.spark(tables)


def test_one_writer_at_a_time(server):
    store = open_store(f"s3://{BUCKET}/lease")
    first, second = Lease(store), Lease(store)
    first.take()
    with pytest.raises(PipelineError, match="another audit is writing these tables: process"):
        second.take()
    first.give_back()
    second.take()
    second.check()
    with pytest.raises(LeaseLost):
        first.check()
    second.give_back()


def test_a_writer_that_was_overtaken_without_noticing_adds_nothing(server):
    root = f"s3://{BUCKET}/overtaken"
    write_run(root, 1)
    slow, quick = (Warehouse(None, root) for _ in range(2))
    for warehouse in (slow, quick):
        warehouse.prepare()
    quick.append_arrow("skew", row_of(SKEW))
    with pytest.raises(CommitFailedError):
        slow.append_arrow("skew", row_of(SKEW))
    quick.prepare()
    assert quick.rows("skew") == 2


def test_a_commit_whose_answer_is_lost_is_not_made_twice(server):
    root, lost = f"s3://{BUCKET}/lost", []
    write_run(root, 1)
    warehouse = Warehouse(None, root)
    with run_proxy(server) as proxy:

        def lose(method: str, path: str) -> str:
            if method == "PUT" and "/gaps/_delta_log/" in path and not lost:
                lost.append(path)
                return "lose"
            return "pass"

        proxy.judge = lose
        with contextlib.suppress(CommitFailedError), writing(warehouse):
            warehouse.append_arrow("gaps", row_of(GAPS))
        assert lost
    warehouse.prepare()
    assert warehouse.rows("gaps") == 2
    with writing(Warehouse(None, root)) as previous:
        assert previous.number == 1
    assert read_with_deltalake(root) == {1}


def test_a_store_that_does_not_answer_is_one_line(server, monkeypatch, capsys):
    monkeypatch.setattr("dovetail.lake.object_store._MAX_RETRIES", 0)
    monkeypatch.setattr("dovetail.lake.object_store._clients", {})
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(ConnectFailed):
        changed_ns(f"s3://{BUCKET}/nothing")
    assert main(["audit", "vacuum", "--tables", "s3://no bucket/x"]) != 0
    assert capsys.readouterr().err.count("\n") == 1


def test_archives_that_were_not_fetched_are_named(monkeypatch, tmp_path):
    from dovetail.audit import session

    monkeypatch.setattr(jars, "missing", lambda lock=jars.LOCK: jars.read_lock(lock) if lock == jars.S3_LOCK else [])
    with pytest.raises(PipelineError, match=r"hadoop-aws.* is missing; fetch it with .*jars --s3`"):
        session.settings_of(session.SessionOptions(has_s3=True))
    assert "hadoop-aws" not in session.settings_of(session.SessionOptions())["spark.jars"]


@pytest.fixture(scope="module")
def spark_on(server, spark):
    """The session of all tests, which was started without these variables; s3a keeps its first settings."""
    if jars.missing(jars.S3_LOCK):
        pytest.skip("what Spark needs for object stores is not there: python -m dovetail.audit.jars --s3")
    environ = server.environ
    settings = {
        f"fs.s3a.bucket.{BUCKET}.endpoint": environ["AWS_ENDPOINT_URL"],
        f"fs.s3a.bucket.{BUCKET}.endpoint.region": environ["AWS_REGION"],
        f"fs.s3a.bucket.{BUCKET}.path.style.access": "true",
        f"fs.s3a.bucket.{BUCKET}.access.key": environ["AWS_ACCESS_KEY_ID"],
        f"fs.s3a.bucket.{BUCKET}.secret.key": environ["AWS_SECRET_ACCESS_KEY"],
        "fs.s3a.impl.disable.cache": "true",
    }
    for name, value in settings.items():
        spark.conf.set(name, value)
    yield spark
    for name in settings:
        spark.conf.unset(name)


def test_an_audit_there_and_every_reader_of_it(spark_on, tmp_path, capsys, monkeypatch):
    lake, root = f"s3://{BUCKET}/lake", f"s3://{BUCKET}/tables"
    write_lake(tmp_path, pcp_world(random.Random(2), 4))
    for path in sorted(tmp_path.glob("*.journal")):
        seal_journal(path, open_store(lake))
    summary = Audit(spark=spark_on, lake=lake, tables=root, settings=SETTINGS).run()
    assert ask_tables(root) == ask_oracle(tmp_path)
    message = next(iter(dovetail.open_tables(root)["deliveries"].rows()))["message"]
    for words in (
        ("audit", "tables", "--tables", root),
        ("audit", "show", "deliveries", "--tables", root, "--where", f"message={message[:12]}"),
        ("audit", "why", message, "--tables", root),
        ("report", root, "-o", str(tmp_path / "report.html")),
        ("receipt", "build", message, "--lake", lake, "-o", str(tmp_path / "receipt.json")),
    ):
        assert main(list(words)) == 0, words
    assert message[:12] in capsys.readouterr().out
    assert (tmp_path / "receipt.json").is_file()
    assert (survey(root).problem, survey(root).tables.run.number) == ("", 1)
    told: list = []
    assert Alerts(root, told.append).update() == len(told) > 0
    assert Alerts(root, told.append).update() == 0
    frame = dovetail.open_tables(root)["hops"].spark(spark_on)
    assert frame.count() == summary.hops
    assert not list(tmp_path.glob("s3*"))
    # Spark commits what is larger than one partition
    warehouse = Warehouse(spark_on, root)
    with writing(warehouse) as previous:
        assert previous.number == 1
        warehouse.save("hops", frame.drop("run"))
        assert warehouse.rows("hops") == 2 * summary.hops
        monkeypatch.setattr("dovetail.audit.warehouse.REWRITE_ROWS", -1)
        gone = warehouse.arrow("deliveries", ["fabric", "message"]).slice(0, 1)
        before = warehouse.rows("deliveries")
        warehouse.replace("deliveries", warehouse.read("deliveries").limit(0), gone)
        assert warehouse.rows("deliveries") < before
    assert Audit(spark=spark_on, lake=lake, tables=root, settings=SETTINGS).run() == summary
