"""The swarm's examples run and print what they say."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

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


def test_decode():
    assert run("swarm_decode.py") == "6f14d34754dbc45d 1700000001000 ttl 60: b'hello swarm'\n"
