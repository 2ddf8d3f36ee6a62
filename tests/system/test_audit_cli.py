"""The audit as people run it: real processes, killed in the middle, followed while the lake grows."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dovetail.hop import Stage
from pipeline.audit_worlds import BROKER, T0_US, A, B, pcp_frame, pcp_world, see, write_lake

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

MINUTE_US = 60_000_000
RUNNER = "import sys, typer; from dovetail.cli.audit import app; app(sys.argv[1:], standalone_mode=True)"


def start(*arguments, **options) -> subprocess.Popen:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    return subprocess.Popen(
        [sys.executable, "-c", RUNNER, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
        **options,
    )


def run(*arguments) -> str:
    process = start(*arguments)
    output, errors = process.communicate()
    assert process.returncode == 0, errors[-2000:]
    return output


def kill(process: subprocess.Popen) -> None:
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def wait_for(condition, process: subprocess.Popen, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.communicate()[1][-2000:]
        assert time.monotonic() < deadline
        time.sleep(0.2)


def test_a_run_that_is_killed_and_run_again_gives_the_same_tables(tmp_path):
    rng = random.Random(1)
    lake = write_lake(tmp_path, pcp_world(rng, 20))
    out = tmp_path / "out"
    process = start("run", lake, "--out", out, "--master", "local[2]", "--driver-memory", "1g")
    wait_for((out / "hops").exists, process, 240)
    kill(process)
    assert not (out / "_state" / "run.json").exists()
    again = json.loads(run("run", lake, "--out", out, "--master", "local[2]", "--driver-memory", "1g", "--json"))
    whole = json.loads(
        run("run", lake, "--out", tmp_path / "whole", "--master", "local[2]", "--driver-memory", "1g", "--json")
    )
    assert again == whole
    assert [server["verdict"] for server in again["servers"]] == ["proven"]
    look_without_java(out, again)


def look_without_java(out: Path, summary) -> None:
    tables = {row["table"]: row["rows"] for row in map(json.loads, run("tables", "--out", out, "--json").splitlines())}
    assert tables["hops"] == summary["hops"]
    shown = [json.loads(line) for line in run("show", "hops", "--out", out, "--limit", "0", "--json").splitlines()]
    assert len(shown) == summary["hops"]
    address = shown[0]["message"]
    story = json.loads(run("why", address[:12], "--out", out, "--json"))
    assert [hop["stage"] for hop in story["hops"]] == [row["stage"] for row in shown if row["message"] == address]
    assert address in run("why", address[:12], "--out", out)
    assert "deliveries" in run("explain")


def test_following_prints_a_new_finding_once(tmp_path):
    lake = write_lake(tmp_path, {BROKER: quiet_traffic(6)})
    out = tmp_path / "out"
    process = start(
        "follow", lake, "--out", out, "--every", "1", "--master", "local[2]", "--driver-memory", "1g", "--json"
    )
    try:
        wait_for((out / "_state" / "alerts.json").exists, process, 240)
        assert json.loads((out / "_state" / "alerts.json").read_bytes()) == []
        bring_tampered(tmp_path, lake)
        line = process.stdout.readline()
    finally:
        kill(process)
    finding = json.loads(line)
    assert (finding["check"], finding["server"]) == ("integrity.missing_file", "pcp://third/server")


def quiet_traffic(count: int):
    """Messages that all arrive."""
    seen = []
    for number in range(count):
        raw = pcp_frame(number + 1, [B])
        at = T0_US + number * MINUTE_US
        seen += [see(at, Stage.ACCEPTED, raw, A), see(at + 100, Stage.DELIVERED, raw, B)]
    return seen


def bring_tampered(tmp_path: Path, lake: Path) -> None:
    """A third server's manifest comes into the lake, without the files it announces."""
    aside = tmp_path / "aside"
    aside.mkdir()
    other = write_lake(aside, {"pcp://third/server": quiet_traffic(2)})
    (manifests,) = (other / "_manifests").iterdir()
    manifests.rename(lake / "_manifests" / manifests.name)
