"""The audit on a real standalone cluster of two workers, of which one is killed, also with lake and tables in an object
store; two audits at once there; executors that do not have our package; and spark-submit.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

import pyspark
import pytest

from audit.audit_worlds import open_test_session, pcp_world, write_lake
from dovetail.audit import jars, schemas
from dovetail.audit.java import find_java
from dovetail.audit.run import Audit
from dovetail.audit.session import SMALL_JAVA
from dovetail.audit.settings import load_settings
from dovetail.audit.tables import open_tables, read_runs
from dovetail.lake.location import open_store
from dovetail.lake.store import LocalStore
from lake.s3_servers import BUCKET, fresh_store, run_versitygw, use

pytestmark = [pytest.mark.system, pytest.mark.soak, pytest.mark.timeout(600)]

SOURCE = Path(__file__).parents[2] / "src"
BIN = Path(pyspark.__file__).parent / "bin"
MASTER = "org.apache.spark.deploy.master.Master"
WORKER = "org.apache.spark.deploy.worker.Worker"
LOOPBACK = ("--conf", "spark.driver.host=127.0.0.1", "--conf", "spark.driver.bindAddress=127.0.0.1")
QUICK = tuple(
    word for process in ("driver", "executor") for word in ("--conf", f"spark.{process}.extraJavaOptions={SMALL_JAVA}")
)


def environment(**more: str) -> dict[str, str]:
    java, _ = find_java()
    assert java is not None
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "SPARK_HOME")}
    return {**clean, **java.environment(), "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1", **more}


def start(log: Path, command: list[object], **variables: str) -> subprocess.Popen:
    with log.open("wb") as file:
        return subprocess.Popen(
            [str(word) for word in command],
            stdout=file,
            stderr=subprocess.STDOUT,
            env=environment(**variables),
            cwd=log.parent,
            start_new_session=True,
        )


def kill(process: subprocess.Popen) -> None:
    """Kill a process and everything it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def wait_for(condition, process: subprocess.Popen, log: Path, seconds: float = 240):
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert process.poll() is None, log.read_text()[-3000:]
        assert time.monotonic() < deadline, log.read_text()[-3000:]
        time.sleep(0.05)
    return found


@contextlib.contextmanager
def cluster(root: Path):
    """A master and two workers of one core each; yields the master's URL and the workers."""
    logs = [root / name for name in ("master.log", "one.log", "two.log")]
    here = ("--host", "127.0.0.1", "--port", 0, "--webui-port", 0)
    running = [start(logs[0], [BIN / "spark-class", MASTER, *here], SPARK_DAEMON_JAVA_OPTS=SMALL_JAVA)]
    try:
        pattern = re.compile(r"Starting Spark master at (spark://127\.0\.0\.1:\d+)")
        url = wait_for(lambda: pattern.search(logs[0].read_text()), running[0], logs[0])[1]
        for log in logs[1:]:
            more = ("--cores", 1, "--memory", "1g", "--work-dir", root / f"{log.stem}-work")
            running.append(
                start(log, [BIN / "spark-class", WORKER, *here, *more, url], SPARK_DAEMON_JAVA_OPTS=SMALL_JAVA)
            )
        for process, log in zip(running[1:], logs[1:], strict=True):
            wait_for(lambda log=log: "Successfully registered with master" in log.read_text(), process, log)
        yield url, running[1:]
    finally:
        for process in reversed(running):
            kill(process)


def rows_of(out: Path | str) -> dict[str, list[str]]:
    return {
        table.name: sorted(repr(sorted(row.items())) for row in open_tables(out).read(table.name).to_pylist())
        for table in schemas.TABLES
        if table.layer != "log"
    }


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    """A lake, and its tables as built by a run on this machine alone."""
    root = tmp_path_factory.mktemp("cluster")
    rng = random.Random(2)
    lake = write_lake(root, *(pcp_world(rng, 6, 1 + 10 * part, 1_763_236_800_000_000 + part) for part in range(2)))
    out = root / "local"
    Audit(spark=open_test_session(), lake=lake, tables=out, settings=load_settings([], [])).run()
    return lake, rows_of(out)


def test_a_worker_that_dies_in_the_middle_changes_nothing(local, tmp_path):
    lake, expected = local
    out, log = tmp_path / "out", tmp_path / "run.log"
    with cluster(tmp_path) as (url, workers):
        command = [sys.executable, "-m", "dovetail", "audit", "run", lake, "--tables", out, "--master", url, *LOOPBACK]
        memory = ("--driver-memory", "1g", "--conf", "spark.executor.memory=512m")
        process = start(log, [*command, *memory, *QUICK], PYTHONPATH=str(SOURCE))
        try:
            wait_for((out / "hops" / "_delta_log").exists, process, log)
            victim = workers[0]
            kill(victim)
            assert process.poll() is None, "the audit had ended before the worker died"
            assert process.wait(300) == 0, log.read_text()[-3000:]
        finally:
            kill(process)
        assert "Asked to launch executor" in (tmp_path / "one.log").read_text()
    assert rows_of(out) == expected


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """A real object store, with a copy of the lake in it."""
    if jars.missing(jars.S3_LOCK):
        pytest.skip("what Spark needs for object stores is not there: python -m dovetail.audit.jars --s3")
    with run_versitygw(tmp_path_factory.mktemp("versitygw")) as server, use(server):
        yield server


def copy_lake(lake: Path, name: str) -> str:
    to = fresh_store(name)
    for entry in LocalStore(lake).list():
        assert to.create(entry.key, (lake / entry.key).read_bytes())
    return str(to)


def test_a_worker_that_dies_with_lake_and_tables_in_an_object_store(local, store, tmp_path):
    lake, expected = local
    place, out, log = copy_lake(lake, "lake"), f"s3://{BUCKET}/out", tmp_path / "run.log"
    with cluster(tmp_path) as (url, workers):
        command = [sys.executable, "-m", "dovetail", "audit", "run", place, "--tables", out, "--master", url, *LOOPBACK]
        memory = ("--driver-memory", "1g", "--conf", "spark.executor.memory=512m")
        process = start(log, [*command, *memory, *QUICK], PYTHONPATH=str(SOURCE))
        try:
            wait_for(lambda: list(open_store(out).list("hops/_delta_log/")), process, log)
            kill(workers[0])
            assert process.poll() is None, "the audit had ended before the worker died"
            assert process.wait(300) == 0, log.read_text()[-3000:]
        finally:
            kill(process)
    assert rows_of(out) == expected


def test_two_audits_at_once_of_one_object_store(local, store, tmp_path):
    lake, expected = local
    place, out = copy_lake(lake, "twice"), f"s3://{BUCKET}/both"
    command = [sys.executable, "-m", "dovetail", "audit", "run", place, "--tables", out, "--driver-memory", "1g"]
    logs = [tmp_path / f"{number}.log" for number in range(2)]
    running = [start(log, [*command, "--wait", "300"], PYTHONPATH=str(SOURCE)) for log in logs]
    try:
        for process, log in zip(running, logs, strict=True):
            assert process.wait(500) == 0, log.read_text()[-3000:]
    finally:
        for process in running:
            kill(process)
    assert rows_of(out) == expected
    assert [run.number for run in read_runs(out)] == [1], "who came second had nothing to do"


@pytest.fixture
def bare_python(tmp_path) -> Path:
    """A Python that has what we depend on, and not our package."""
    packages = tmp_path / "packages"
    packages.mkdir()
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if "dovetail" not in path.name and path.suffix != ".pth":
            (packages / path.name).symlink_to(path)
    python = tmp_path / "bare-python"
    base = Path(sys.base_prefix) / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}"
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{packages}:$PYTHONPATH" exec {base} -s "$@"\n')
    python.chmod(0o755)
    found = subprocess.run([python, "-c", "import pyarrow, pyspark; import dovetail"], capture_output=True, text=True)
    assert "No module named 'dovetail'" in found.stderr
    return python


WHERE = """
import pathlib, sys
from dovetail.audit.session import SessionOptions, open_session
conf = dict(item.split("=", 1) for item in sys.argv[4:])
spark = open_session(SessionOptions(master=sys.argv[1], conf=conf))
def look(_):
    import dovetail.audit.jars as jars
    return str(pathlib.Path(jars.__file__).absolute()), sys.executable
found = spark.sparkContext.parallelize(range(2), 2).map(look).collect()
pathlib.Path(sys.argv[3]).write_text("\\n".join(sorted({" ".join(each) for each in found})))
from dovetail.audit.run import Audit
from dovetail.audit.settings import load_settings
lake, out = sys.argv[2].split(",")
Audit(spark=spark, lake=lake, tables=out, settings=load_settings([], [])).run()
"""


def test_executors_need_only_what_we_depend_on(local, bare_python, tmp_path):
    lake, expected = local
    out, log, where = tmp_path / "out", tmp_path / "run.log", tmp_path / "where"
    conf = [word for word in (*LOOPBACK, *QUICK) if word != "--conf"]
    with cluster(tmp_path) as (url, _):
        script = tmp_path / "script.py"
        script.write_text(WHERE)
        command = [sys.executable, script, url, f"{lake},{out}", where, *conf, "spark.executor.memory=512m"]
        process = start(log, command, PYTHONPATH=str(SOURCE), PYSPARK_PYTHON=str(bare_python))
        try:
            assert process.wait(300) == 0, log.read_text()[-3000:]
        finally:
            kill(process)
    for line in where.read_text().splitlines():
        file, python = line.split()
        assert file.endswith("/dovetail.zip/dovetail/audit/jars.py"), "it comes from the archive that the driver sent"
        assert any(file.startswith(str(tmp_path / f"{worker}-work")) for worker in ("one", "two"))
        assert Path(python).is_relative_to(sys.base_prefix)
    assert rows_of(out) == expected


def test_spark_submit_with_our_package_on_executors_that_do_not_have_it(local, bare_python, tmp_path):
    lake, expected = local
    out, log = tmp_path / "out", tmp_path / "submit.log"
    made = subprocess.run(
        [sys.executable, "-m", "dovetail", "audit", "package", tmp_path / "package"],
        capture_output=True,
        text=True,
        check=True,
        env=environment(PYTHONPATH=str(SOURCE)),
    )
    archive, job, _ = made.stdout.split()
    with cluster(tmp_path) as (url, _):
        memory = ("--driver-memory", "1g", "--executor-memory", "512m")
        archives = ("--py-files", archive, "--jars", ",".join(map(str, jars.paths())))
        command = [BIN / "spark-submit", "--master", url, *memory, *LOOPBACK, *QUICK, *archives]
        pythons = {"PYSPARK_PYTHON": str(bare_python), "PYSPARK_DRIVER_PYTHON": sys.executable}
        process = start(log, [*command, job, lake, "--tables", out], **pythons)
        try:
            assert process.wait(300) == 0, log.read_text()[-3000:]
        finally:
            kill(process)
    assert rows_of(out) == expected
