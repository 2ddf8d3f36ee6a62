"""kill -9 of the audit's driver, or of its Java process, which is the executor, between and inside commits.

The next run gives the same result as one that was never killed.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from audit.audit_worlds import SECOND, SETTINGS, T0_US, World, pcp_world, whole_world, write_lake
from dovetail.audit.run import Audit
from dovetail.audit.tables import read_runs
from oracle.audit_answers import ask_oracle, ask_tables

pytestmark = [pytest.mark.system, pytest.mark.timeout(3600)]

TESTS = Path(__file__).parents[1]
PROGRAM = """
import os, sys
from pathlib import Path
from audit.audit_worlds import SETTINGS, open_test_session
from dovetail.audit.lease import Lease
from dovetail.audit.run import Audit

root, victim, left = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
if "PYSPARK_GATEWAY_PORT" in os.environ:
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    gateway = launch_gateway()  # to the Java process that runs
    java = gateway.jvm.JavaSparkContext(gateway.jvm.org.apache.spark.SparkContext.getOrCreate())
    SparkSession(SparkContext(gateway=gateway, jsc=java, conf=SparkConf(_jconf=java.getConf())))
spark = open_test_session()
check = Lease.check

def die(self):
    global left
    left -= 1
    if left == 0 and victim == "driver":
        os.kill(os.getpid(), 9)
    if left == 0 and victim == "java":
        os.kill(spark.sparkContext._gateway.proc.pid, 9)
    check(self)

Lease.check = die  # asked for before every commit
Audit(spark=spark, lake=root / "lake", tables=root / "out", settings=SETTINGS, whole_below=0).run()
"""


def data_files(out: Path) -> set[str]:
    """Existing data files of tables, including those that no commit names yet."""
    with contextlib.suppress(FileNotFoundError):
        return {path.name for path in out.glob("*/*.parquet")}
    return set()


def run(spark, root: Path, victim: str, number: int) -> int:
    """Run an audit in a process of its own; returns its exit code.

    Driver or Java is killed before the commit of this number; `inside` kills both once this many data files are new.
    A driver that is killed alone uses the tests' Java process, which outlives it: between commits Java does nothing.
    """
    before = data_files(root / "out")
    environment = {**os.environ, "PYTHONPATH": f"{TESTS.parent / 'src'}:{TESTS}"}
    if victim == "driver":
        bridge = spark.sparkContext._gateway.gateway_parameters
        environment |= {"PYSPARK_GATEWAY_PORT": str(bridge.port), "PYSPARK_GATEWAY_SECRET": bridge.auth_token}
    command = [sys.executable, "-c", PROGRAM, str(root), victim, str(number)]
    with subprocess.Popen(command, env=environment, start_new_session=True, stderr=subprocess.DEVNULL) as process:
        while victim == "inside" and process.poll() is None:
            if len(data_files(root / "out") - before) >= number:
                os.killpg(process.pid, signal.SIGKILL)
                break
            time.sleep(0.002)
        code = process.wait()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # Java briefly outlives a killed driver
    return code


def kill_often(spark, root: Path, worlds: list[World], kills: list[tuple[str, int]]) -> None:
    """A full audit of the first world, an incremental one of the second; each is killed repeatedly."""
    for part, world in enumerate(worlds):
        write_lake(root, world)
        for victim, number in kills[part::2]:
            code = run(spark, root, victim, number)
            assert code > 0 if victim == "java" else code == -signal.SIGKILL, (victim, number)
            assert len(read_runs(root / "out")) == part, "a run that was killed is not there"
        Audit(spark=spark, lake=root / "lake", tables=root / "out", settings=SETTINGS, whole_below=0).run()
    assert ask_tables(root / "out") == ask_oracle(root)


def test_five_kills_change_nothing(spark, tmp_path):
    rng = random.Random(1)
    worlds = [pcp_world(rng, 6, 1 + 100 * part, T0_US + part * 100 * SECOND) for part in range(2)]
    kill_often(spark, tmp_path, worlds, [("driver", 2), ("inside", 3), ("inside", 9), ("java", 4), ("driver", 17)])


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_a_hundred_kills_change_nothing(spark, tmp_path):
    rng = random.Random(1)
    most = {"driver": 17, "java": 8, "inside": 8}
    worlds = [whole_world(3, 6, T0_US + part * 100 * SECOND) for part in range(2)]
    victims = [rng.choice(sorted(most)) for _ in range(100)]
    kill_often(spark, tmp_path, worlds, [(victim, rng.randint(1, most[victim])) for victim in victims])
