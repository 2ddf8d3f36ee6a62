"""A receipt and the trusted keys in an empty directory, another process, no network: it must verify there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import dovetail
from dovetail.fabrics import address_text
from dovetail.journal.reader import JournalReader
from dovetail.model.address import Address
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


ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(dovetail.__file__).parent.parent)}


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    """`dovetail ARGUMENTS` in a separate process."""
    command = [sys.executable, "-m", "dovetail", *map(str, arguments)]
    return subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False)


def verify_alone(folder: Path) -> subprocess.CompletedProcess[str]:
    """`receipt verify` in a directory, without network and without loading anything that receipts do not need."""
    command = [sys.executable, "-c", _COMMAND, "verify", "receipt.json", "--trust", "keys"]
    return subprocess.run(command, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("fabric", samples.CASES)
def test_a_receipt_verifies_alone(tmp_path, fabric):
    data = samples.CASES[fabric](tmp_path / "servers").build()
    empty = tmp_path / "elsewhere"
    empty.mkdir()
    (empty / "receipt.json").write_bytes(data)
    (empty / "keys").write_text("".join(f"{verifier.text()}\n" for verifier in samples.verifiers()))
    shutil.rmtree(tmp_path / "servers")
    done = verify_alone(empty)
    assert (done.returncode, done.stderr) == (0, "")
    assert "commits to this" in done.stdout
    (empty / "receipt.json").write_bytes(data.replace(b"accepted", b"rejected"))
    done = verify_alone(empty)
    assert done.returncode == 3
    assert "not valid: " in done.stderr


def busiest_message(journals: list[Path]) -> tuple[Address, set[str]]:
    """The message seen by the most servers in the most hops, and those servers."""
    hops: dict[Address, list[str]] = {}
    for path in journals:
        with JournalReader.open(path) as reader:
            for hop in reader.hops(0, reader.latest_checkpoint().size):
                hops.setdefault(hop.message, []).append(hop.server)
    address = max(hops, key=lambda each: (len(set(hops[each])), len(hops[each]), each))
    return address, set(hops[address])


@pytest.mark.parametrize(("fabric", "servers"), [("pcp", "broker"), ("won", "node-*"), ("swarm", "peer-*")])
def test_a_message_of_a_whole_world_is_proven_elsewhere(tmp_path, fabric, servers):
    world, empty = tmp_path / "world", tmp_path / "elsewhere"
    empty.mkdir()
    ran = run("sim", "run", "--scenario", fabric, "--seed", 3, "--duration", 3, "--out", world)
    assert ran.returncode == 0, ran.stderr
    journals = sorted(world.glob(f"{servers}.journal"))
    address, holders = busiest_message(journals)
    named = [part for path in journals for part in ("--journal", path)]
    built = run("receipt", "build", address_text(address, fabric)[:16], *named, "-o", empty / "receipt.json")
    assert built.returncode == 0, built.stderr
    keys = []
    for path in journals:
        with JournalReader.open(path) as reader:
            keys.append(reader.identity.verifier)
    (empty / "keys").write_text("".join(f"{key.text()}\n" for key in keys))
    shutil.rmtree(world)
    done = verify_alone(empty)
    assert (done.returncode, done.stderr) == (0, "")
    for server in holders:
        assert f"  {server} commits to this: its signed journal of " in done.stdout
    # one of the keys is no longer trusted
    trusted = "".join(f"{key.text()}\n" for key in keys if key.name != min(holders))
    (empty / "keys").write_text(trusted or "# none\n")
    assert verify_alone(empty).returncode == (3 if trusted else 1), "not valid; without any key, not checked"
