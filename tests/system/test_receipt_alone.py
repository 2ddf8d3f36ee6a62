"""A receipt and the trusted keys in an empty directory, another process, no network: it must verify there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import dovetail
from receipt import receipt_samples as samples

pytestmark = pytest.mark.system

_COMMAND = """
import socket, sys
def refuse(*_): raise OSError("no network here")
socket.socket.connect = refuse
from dovetail.cli.main import Noun, load_noun
code = load_noun(Noun("receipt", "")).main(sys.argv[1:], standalone_mode=False) or 0
forbidden = {"sqlite3", "pyarrow", "pyspark"} & set(sys.modules)
sys.exit(f"loaded {forbidden}" if forbidden else code)
"""


@pytest.mark.parametrize("fabric", samples.CASES)
def test_a_receipt_verifies_alone(tmp_path, fabric):
    data = samples.CASES[fabric](tmp_path / "servers").build()
    empty = tmp_path / "elsewhere"
    empty.mkdir()
    (empty / "receipt.json").write_bytes(data)
    (empty / "keys").write_text("".join(f"{verifier.text()}\n" for verifier in samples.verifiers()))
    for path in (tmp_path / "servers").iterdir():
        path.unlink()
    command = [sys.executable, "-c", _COMMAND, "verify", "receipt.json", "--trust", "keys"]
    environment = {**os.environ, "PYTHONPATH": str(Path(dovetail.__file__).parent.parent)}
    done = subprocess.run(command, cwd=empty, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "commits to this" in done.stdout
    (empty / "receipt.json").write_bytes(data.replace(b"accepted", b"rejected"))
    done = subprocess.run(command, cwd=empty, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "not valid: " in done.stderr
