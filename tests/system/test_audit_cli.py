"""The audit as users run it: real processes, killed midway, followed while the lake grows."""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from audit.audit_worlds import (
    ALICE,
    BROKER,
    NODE_A,
    NODE_B,
    SECOND,
    T0_US,
    append_and_seal,
    pcp_world,
    quiet_pcp,
    see,
    won_response,
    won_text,
    won_world,
    write_lake,
)
from dovetail.audit.session import SMALL_JAVA
from dovetail.audit.tables import open_tables, read_runs
from dovetail.model.hop import Stage
from lake.lakes import files_in, manifests_of
from oracle.audit_answers import ask_oracle, ask_tables

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

SMALL = ("--master", "local[2]", "--driver-memory", "1g")
SHORT = ("--conf", f"spark.driver.extraJavaOptions={SMALL_JAVA}")
"""A follower cannot know that it will end soon."""


def start(*arguments, **options) -> subprocess.Popen:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    return subprocess.Popen(
        [sys.executable, "-m", "dovetail", "audit", *map(str, arguments)],
        text=True,
        env=environment,
        start_new_session=True,
        **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options,
    )


def run(*arguments) -> str:
    process = start(*arguments)
    output, errors = process.communicate()
    assert process.returncode == 0, errors[-2000:]
    return output


def kill(process: subprocess.Popen) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def wait_for(condition, process: subprocess.Popen, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.communicate()[1][-2000:]
        assert time.monotonic() < deadline
        time.sleep(0.2)


def processes_of(session: int) -> list[str]:
    """The processes of a session: an orphan has another parent, but stays in it."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            status = (path / "stat").read_text().rpartition(")")[2].split()
            if int(status[3]) == session and status[0] != "Z":
                found.append((path / "cmdline").read_text().replace("\0", " "))
    return found


def test_an_interrupt_while_java_starts_leaves_nothing_behind(tmp_path):
    lake = write_lake(tmp_path, {BROKER: quiet_pcp(1)})
    process = start("run", lake, "--tables", tmp_path / "out", *SMALL)
    try:
        wait_for(lambda: any("SparkSubmit" in command for command in processes_of(process.pid)), process, 60)
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=60)
        assert (process.returncode, output, errors) == (130, "", "\n")
        while processes_of(process.pid):  # one that stays meets the test's time limit
            time.sleep(0.1)
    finally:
        kill(process)


@pytest.mark.soak  # test_audit_kills does it in every kind of place
def test_a_run_that_is_killed_and_run_again_gives_the_same_tables(tmp_path):
    rng = random.Random(1)
    lake = write_lake(tmp_path, pcp_world(rng, 20))
    out = tmp_path / "out"
    process = start("run", lake, "--tables", out, *SMALL)
    wait_for(lambda: list((out / "hops").glob("*.parquet")), process, 240)
    kill(process)
    assert read_runs(out) == []
    again = json.loads(run("run", lake, "--tables", out, *SMALL, "--json"))
    assert ask_tables(out) == ask_oracle(tmp_path)
    assert [server["verdict"] for server in again["servers"]] == ["proven"]
    look_without_java(out, again)


def look_without_java(out: Path, summary) -> None:
    tables = {
        row["table"]: row["rows"] for row in map(json.loads, run("tables", "--tables", out, "--json").splitlines())
    }
    assert tables["hops"] == summary["hops"]
    shown = [json.loads(line) for line in run("show", "hops", "--tables", out, "--limit", "0", "--json").splitlines()]
    assert len(shown) == summary["hops"]
    address = shown[0]["message"]
    trace = json.loads(run("why", address[:12], "--tables", out, "--json"))
    held = sorted((row["seq"], row["stage"]) for row in shown if row["message"] == address)
    assert [(hop["seq"], hop["stage"]) for hop in trace["hops"]] == held
    assert address in run("why", address[:12], "--tables", out)
    assert "deliveries" in run("explain")


def test_following_a_quiet_lake_tells_what_time_and_hands_do_and_stops_quietly(tmp_path):
    """Nothing is sealed after the start: a chain becomes overdue, a file is removed; then it is stopped in a batch."""
    lake = write_lake(tmp_path, unanswered(int(time.time() * SECOND)))
    out, errors = tmp_path / "out", tmp_path / "errors"
    with listening() as (url, posted), errors.open("w") as file:
        options = ("--every", "1", "--loss-timeout", "2", "--sealing", "1", "--webhook", url, "--json")
        process = start("follow", lake, "--tables", out, *options, *SMALL, *SHORT, stderr=file)
        try:
            told = json.loads(process.stdout.readline())
            assert (told["check"], told["fabric"]) == ("chain.incomplete", "won")
            removed = max(lake.glob("fabric=*/*/*.parquet"))
            removed.rename(tmp_path / "removed")
            broken = json.loads(process.stdout.readline())
            assert (broken["check"], broken["server"]) == ("integrity.missing_file", NODE_A)
            # a server's manifest without its files
            bring_tampered(tmp_path, lake)
            third = json.loads(process.stdout.readline())
            assert (third["check"], third["server"]) == ("integrity.missing_file", "pcp://third/server")
            append_and_seal(tmp_path, lake, "pcp://fourth/server", quiet_pcp(2))
            wait_for(lambda: runs_in(out / "hops") == 2, process, 120)
            noise = len(errors.read_text())
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
        finally:
            kill(process)
    assert errors.read_text()[noise:] == ""
    assert posted[:3] == [told, broken, third]
    assert set(newest_ingest(out)) == {"pcp://third/server"}, "it was to be stopped in the middle"


def unanswered(start_us: int):
    """One node, one atom, one message that is sent on and never answered."""
    world = won_world(random.Random(1), 0, start_us)
    m = won_text("hello", start_us // 1000)
    s1 = won_response(m, NODE_A, start_us // 1000 + 1, first=True)
    world[NODE_A] += [
        see(start_us + 20, Stage.ACCEPTED, m.raw, ALICE, address=m.address),
        see(start_us + 30, Stage.CREATED, s1.raw, address=s1.address),
        see(start_us + 40, Stage.FORWARDED, b"", NODE_B, address=m.address, keep=False),
    ]
    return {NODE_A: world[NODE_A]}


@contextlib.contextmanager
def listening():
    """A webhook on loopback that fails the first time; yields its URL and what it accepted."""
    taken = []
    failures = [503]

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if not failures:
                taken.append(body)
            self.send_response(failures.pop() if failures else 204)
            self.end_headers()

        def log_message(self, *args):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/", taken
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def bring_tampered(tmp_path: Path, lake: Path) -> None:
    """Add a third server's manifest to the lake, without the files it announces."""
    aside = tmp_path / "aside"
    aside.mkdir()
    other = write_lake(aside, {"pcp://third/server": quiet_pcp(2)})
    (manifests,) = (other / "_manifests").iterdir()
    manifests.rename(lake / "_manifests" / manifests.name)


@pytest.mark.parametrize("options", [(), pytest.param(SMALL, marks=pytest.mark.soak)], ids=["processes", "spark"])
def test_a_compaction_that_is_killed_and_run_again(tmp_path, options):
    lake = write_lake(tmp_path, *({BROKER: quiet_pcp(5, T0_US + part * 600 * SECOND)} for part in range(2)))
    hops, before = count_hops(lake), files_in(lake)
    process = start("compact", lake, "--before", "2025-11-20", *options)
    wait_for(lambda: files_in(lake) > before or process.poll() is not None, process, 240)
    process.kill()
    while options == () and processes_of(process.pid):
        time.sleep(0.1)  # its workers end by themselves
    kill(process)
    assert count_hops(lake) == hops
    summary = json.loads(run("compact", lake, "--before", "2025-11-20", "--grace", "0", "--json", *options))
    assert summary["left_alone"] == []
    assert count_hops(lake) == hops
    assert len(manifests_of(lake)) == 1


def test_compactions_that_cannot_be_meant(tmp_path):
    lake = write_lake(tmp_path, {BROKER: quiet_pcp(1)})
    for arguments, text in (
        (("--before", "2999-01-01"), "is in the future"),
        (("--before", "soon"), "takes a date"),
        (("--before", "2025-11-20", "--driver-memory", "1g"), "name its --master"),
    ):
        refused = start("compact", lake, *arguments)
        assert text in refused.communicate()[1]
        assert refused.returncode == 2


@pytest.mark.soak
def test_a_follower_says_nothing_about_a_compaction_beside_it(tmp_path):
    lake = write_lake(tmp_path, *({BROKER: quiet_pcp(5, T0_US + part * 600 * SECOND)} for part in range(2)))
    out = tmp_path / "out"
    with (tmp_path / "told").open("w") as told:
        process = start("follow", lake, "--tables", out, "--every", "0.5", *SMALL, *SHORT, stdout=told)
        try:
            wait_for(lambda: len(read_runs(out)) == 1, process, 240)
            run("compact", lake, "--before", "2025-11-20")
            wait_for(lambda: len(read_runs(out)) == 2, process, 240)
            append_and_seal(tmp_path, lake, BROKER, quiet_pcp(1, T0_US + 86_400 * SECOND, 50))
            wait_for(lambda: len(read_runs(out)) == 3, process, 240)
        finally:
            kill(process)
    assert (tmp_path / "told").read_text() == ""
    assert not (out / "_alerts").exists(), "nothing was ever told"


def runs_in(table: Path) -> int:
    """How many runs have appended to a table, including unfinished ones."""
    return len(DeltaTable(table).to_pyarrow_table(columns=["run"])["run"].unique())


def newest_ingest(out: Path) -> list[str]:
    """The servers whose manifests the newest run read."""
    tables = open_tables(out)
    rows = tables.read("ingest", ("run", "server")).to_pylist()
    return [row["server"] for row in rows if row["run"] == tables.run.number]


def count_hops(lake: Path) -> int:
    files = [file for manifest in manifests_of(lake) for file in manifest.files]
    return sum(pq.ParquetFile(lake / file.path).metadata.num_rows for file in files)
