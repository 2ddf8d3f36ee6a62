"""The audit on a real standalone cluster of two workers, of which one is killed, and under plain spark-submit."""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pyspark
import pytest

from audit.audit_worlds import open_test_session, pcp_world, write_lake
from dovetail.audit import schemas
from dovetail.audit.java import find_java
from dovetail.audit.run import Audit
from dovetail.audit.session import SMALL_JAVA
from dovetail.audit.settings import load_settings
from dovetail.audit.tables import open_tables

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
    """A process and all that it started."""
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


def rows_of(out: Path) -> dict[str, list[str]]:
    return {
        table.name: sorted(repr(sorted(row.items())) for row in open_tables(out).read(table.name).to_pylist())
        for table in schemas.TABLES
        if table.layer != "log"
    }


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    """A lake, and its tables as a run on this machine alone makes them."""
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
            began = time.monotonic()
            kill(victim)
            assert process.poll() is None, "the audit had ended before the worker died"
            assert process.wait(300) == 0, log.read_text()[-3000:]
            assert time.monotonic() > began
        finally:
            kill(process)
        assert "Asked to launch executor" in (tmp_path / "one.log").read_text()
    assert rows_of(out) == expected


def test_plain_spark_submit_with_the_package_in_an_archive(local, tmp_path):
    lake, expected = local
    archive = tmp_path / "dovetail.zip"
    with zipfile.ZipFile(archive, "w") as package:
        for path in sorted((*SOURCE.rglob("*.py"), *SOURCE.rglob("*.lock"))):
            package.write(path, path.relative_to(SOURCE))
    out, log = tmp_path / "out", tmp_path / "submit.log"
    job = tmp_path / "run.py"
    job.write_bytes((SOURCE / "dovetail/audit/run.py").read_bytes())
    options = ("--master", "local[2]", "--driver-memory", "1g", "--py-files", archive)
    process = start(log, [BIN / "spark-submit", *options, job, lake, "--tables", out])
    assert process.wait(300) == 0, log.read_text()[-3000:]
    assert rows_of(out) == expected
