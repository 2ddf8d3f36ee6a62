"""The swarm's examples run and print what they say."""

from __future__ import annotations

import datetime as dt
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import dovetail

pytestmark = pytest.mark.system

ROOT = Path(__file__).parents[2]


def run(name: str) -> str:
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, str(ROOT / "examples" / name)]
    return subprocess.run(command, capture_output=True, text=True, check=True, env=environment, timeout=60).stdout


def test_chat():
    lines = run("swarm_chat.py").splitlines()
    assert len(lines) == 9
    for name in ("ann", "ben", "cem"):
        for text in ("good morning", "the bridge is open again", "thank you"):
            assert any(line.startswith(f"{name} received {text!r}") for line in lines)


def test_the_program_of_the_how_to_runs_as_printed(tmp_path):
    """With another peer to talk to, and free ports."""
    page = (ROOT / "docs" / "how-to" / "swarm-application.md").read_text()
    (program,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (tmp_path / "swarm.toml").write_text('name = "page"\nwork = 1000\n')
    with dovetail.sync.SwarmPeer.join(tmp_path / "swarm.toml", tmp_path / "other") as other:
        program = program.replace("127.0.0.1:4711", "127.0.0.1:0").replace("127.0.0.1:4712", other.endpoints[0])
        environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "PYTHONUNBUFFERED": "1"}
        command = [sys.executable, "-c", program]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=tmp_path, env=environment) as process:
            try:
                said = process.stdout.readline()
                heard = other.events(dt.datetime.now(dt.UTC) - dt.timedelta(minutes=1))
                assert said == f"published {next(heard).address}\n"
                other.publish("ahoy")
                assert [process.stdout.readline().rpartition(" ")[2] for _ in range(2)] == ["hello\n", "ahoy\n"]
            finally:
                process.kill()
