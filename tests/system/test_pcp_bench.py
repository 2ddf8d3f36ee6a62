"""The benchmark ends, loses none of our messages, and reports it if a peer loses or fails."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.pcp import Measured, describe
from benchmarks.pcp_servers import BenchmarkFailed, Load, Server, compile_load

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]
ROOT = Path(__file__).parents[2]
needs_gcc = pytest.mark.skipif(shutil.which("gcc") is None, reason="the load generator is compiled with gcc")


def test_a_row_names_what_was_lost_and_what_failed():
    ours, peer, gone = Measured(), Measured(), Measured()
    ours.costs_us, ours.main_thread_us, ours.rates = [2.0, 9.0, 4.0], [1.0, 1.0, 1.0], [10.0, 10.0, 10.0]
    peer.costs_us, peer.rates, peer.lost = [8.0], [5.0], 7
    gone.failure = "nats: no answer in 12 s"
    assert describe("b4", {"dovetail": ours, "mosquitto": peer, "nats": gone}) == {
        "workload": "b4",
        "dovetail us": 4.0,
        "dovetail messages/s": 10,
        "without journal threads us": 1.0,
        "mosquitto us": 8.0,
        "mosquitto messages/s": 5,
        "of mosquitto": 0.5,
        "rate of mosquitto": 2.0,
        "reach mosquitto": 0.35,
        "mosquitto lost": 7,
        "nats failed": "nats: no answer in 12 s",
    }


def test_a_row_has_the_ratio_of_every_round():
    ours, peer = Measured(), Measured()
    ours.costs_us, ours.main_thread_us, ours.rates = [9.0, 2.0, 4.0], [1.0, 1.0, 1.0], [10.0, 10.0, 10.0]
    peer.costs_us, peer.rates = [6.0, 8.0, 8.0], [5.0, 5.0, 5.0]
    row = describe("b4", {"dovetail": ours, "mosquitto": peer})
    assert (row["of mosquitto"], row["of mosquitto, by round"]) == (0.5, "0.25 0.5 1.5")


@needs_gcc
def test_a_server_that_does_not_speak_websocket_is_named(tmp_path):
    process = subprocess.Popen([sys.executable, "-m", "http.server", "0", "--bind", "127.0.0.1"], **quiet())
    try:
        port = int(process.stdout.readline().split(b"port ")[1].split()[0])
        with pytest.raises(BenchmarkFailed, match=r"other: pcp_load: upgrade"):
            Load(compile_load(tmp_path), Server("other", "pcp", port, process), "pairs", 1, 1, 480)
    finally:
        process.kill()
        process.communicate()


def quiet() -> dict[str, object]:
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    return {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "env": environment}


@needs_gcc
@pytest.mark.soak
def test_the_benchmark_ends_and_loses_nothing_of_ours():
    command = [sys.executable, "-m", "benchmarks.pcp", "--json", "--rounds", "1", "--seconds", "0.5"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT)))}
    done = subprocess.run(
        [*command, "--workloads", "a32,b4", "--connections", "500"],
        env=environment,
        text=True,
        capture_output=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["workload"] for row in rows][:4] == ["a32", "b4", "a32", "b4"]
    for own, row in zip(("dovetail", "dovetail", "dovetail full", "dovetail full"), rows[:4], strict=True):
        assert row[f"{own} us"] > 0
        assert not {f"{own} lost", f"{own} failed"} & set(row)
    assert 0 < rows[4]["KiB a connection"] < 30
