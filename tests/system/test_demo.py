"""The whole demo at a small scale: servers, faults, tampering, Spark, comparison, and the commands it suggests."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

import dovetail
from docs.shown import assert_printed
from report.agreement import assert_pages_agree

pytestmark = [pytest.mark.system, pytest.mark.timeout(900)]
README = Path(__file__).parents[2] / "README.md"
ENVIRONMENT = os.environ | {"PYTHONPATH": str(Path(dovetail.__file__).parents[1])}


def run(*arguments: str, timeout_s: float = 600) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "dovetail", *arguments]
    return subprocess.run(command, env=ENVIRONMENT, text=True, capture_output=True, timeout=timeout_s)


def assert_next_steps_work(talk: str) -> None:
    program = [sys.executable, "-m", "dovetail"]
    steps = [shlex.split(line) for line in talk.splitlines() if line.startswith(f"  {sys.executable}")]
    assert [step[3:5] for step in steps][:-1] == [
        ["audit", "why"],
        ["audit", "show"],
        ["receipt", "build"],
        ["receipt", "verify"],
        ["receipt", "fork"],
        ["journal", "verify"],
    ]
    for step in steps[:-1]:
        assert step[:3] == program
        ran = run(*step[3:], timeout_s=120)
        assert ran.returncode == 0, f"{shlex.join(step)}: {ran.stderr}"
    assert steps[-1][3] == "dashboard"
    assert_dashboard_answers([*steps[-1], "--port", "0"])


def assert_dashboard_answers(command: list[str]) -> None:
    process = subprocess.Popen(command, env=ENVIRONMENT, text=True, stderr=subprocess.PIPE)
    try:
        url = next(word for line in process.stderr for word in line.split() if word.startswith("http://"))
        with urllib.request.urlopen(url, timeout=30) as page:
            assert page.status == 200
    finally:
        process.send_signal(signal.SIGINT)
        process.stderr.close()
        process.wait(30)


def test_everything_injected_is_found_and_the_suggested_commands_work(tmp_path):
    out = tmp_path / "demo"
    ran = run("demo", "--out", str(out), "--scale", "0.2", "--seed", "7")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    injected = json.loads((out / "faults.json").read_bytes())["faults"]
    lines = ran.stdout.splitlines()
    assert lines[-1] == f"found {len(injected)} of {len(injected)}, 0 false alarms"
    assert "NOT FOUND" not in ran.stdout
    for fault in injected:
        assert any(line.startswith(fault["kind"]) for line in lines), fault
    assert len(injected) == 19
    assert "Traceback" not in ran.stderr
    assert {path.name for path in out.iterdir()} >= {"lake", "tables", "journals", "trust", "swarm.toml"}
    assert not list(out.rglob("*.skey")), "a private key was left behind"
    assert_next_steps_work(ran.stderr)
    assert_pages_agree(out / "tables")
    shown = re.search(r"The demo ends with\n\n((?:    .+\n)+)", README.read_text())[1]
    lines = [" ".join(line.split()) for line in shown.splitlines() if line.strip() != "..."]
    assert_printed(lines, "\n".join(" ".join(line.split()) for line in ran.stdout.splitlines()))


def children_of(process: int) -> list[int]:
    listed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(process)], text=True, capture_output=True, check=False)
    return [int(word) for word in listed.stdout.split()]


def test_ctrl_c_leaves_no_process_and_no_file(tmp_path):
    out = tmp_path / "demo"
    command = [sys.executable, "-m", "dovetail", "demo", "--out", str(out), "--scale", "0.2"]
    process = subprocess.Popen(command, env=ENVIRONMENT, text=True, stderr=subprocess.PIPE)
    servers: list[int] = []
    for line in process.stderr:
        if "traffic and faults" in line:
            servers = children_of(process.pid)
            time.sleep(1)
            break
    assert len(servers) == 4
    process.send_signal(signal.SIGINT)
    rest = process.stderr.read()
    assert process.wait(60) == 130, rest
    process.stderr.close()
    assert "Traceback" not in rest
    assert not out.exists()
    assert not [pid for pid in servers if Path(f"/proc/{pid}").exists()]
