"""`pip install dovetail` alone: servers, clients, journals and receipts work; the rest says what to install."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dovetail.model.errors import EXTRAS

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]
ROOT = Path(__file__).parents[2]
BLOCK = f"""
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {sorted(EXTRAS)!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Absent())
from dovetail.cli.main import main
sys.exit(main())
"""


@pytest.fixture
def environment(tmp_path):
    return os.environ | {"PYTHONPATH": str(ROOT / "src"), "DOVETAIL_CONFIG_DIR": str(tmp_path / "config")}


def check_core(command, cwd, environment):
    """Servers, clients, journals and receipts, with this way of running `dovetail`."""

    def run(*words):
        return subprocess.run([*command, *words], cwd=cwd, env=environment, capture_output=True, text=True)

    dev = subprocess.Popen(
        [*command, "dev", "--json", "--port", "0"],
        cwd=cwd,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        json.loads(dev.stdout.readline())
        sent = run("pcp", "send", "pcp://echo/agent", '"hello"', "--reply", "--json")
        assert (sent.returncode, sent.stderr) == (0, "")
        address = json.loads(sent.stdout)["address"]
        shown = run("receipt", "show", address[:12], "-o", "hello.receipt")
        assert (shown.returncode, "proven:" in shown.stdout) == (0, True), shown.stderr
    finally:
        dev.send_signal(signal.SIGINT)
        dev.communicate(timeout=60)
    assert run("journal", "verify", "dovetail-dev/broker/journal.db").returncode == 0
    assert run("journal", "seal", "dovetail-dev/broker/journal.db", "--lake", "lake").returncode == 0
    verified = run("receipt", "verify", "hello.receipt", "--trust", "dovetail-dev/broker")
    assert verified.returncode == 0, verified.stderr
    return run


def test_what_needs_an_extra_says_which(tmp_path, environment):
    run = check_core([sys.executable, "-c", BLOCK], tmp_path, environment)
    for words in (("audit", "run", "lake", "--tables", "tables"), ("demo", "--out", "demo-out")):
        ran = run(*words)
        assert (ran.returncode, ran.stdout, ran.stderr.count("\n")) == (1, "", 1), ran.stderr
        assert "is not installed; get it with: pip install 'dovetail[audit]'" in ran.stderr


def test_a_wheel_in_an_empty_environment(tmp_path, environment):
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    built = subprocess.run(
        [*pip, "wheel", str(ROOT), "--no-deps", "--no-build-isolation", "-w", str(tmp_path)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    if built.returncode:
        pytest.skip("the package index is out of reach, and the build backend is not installed")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "venv")], check=True)
    python = str(tmp_path / "venv" / "bin" / "python")
    wheel = next(tmp_path.glob("dovetail-*.whl"))
    installed = subprocess.run(
        [*pip, "--python", python, "install", str(wheel)], capture_output=True, text=True, cwd=tmp_path
    )
    if installed.returncode:
        pytest.skip("the package index is out of reach")
    del environment["PYTHONPATH"]
    run = check_core([str(tmp_path / "venv" / "bin" / "dovetail")], tmp_path, environment)
    ran = run("audit", "run", "lake", "--tables", "tables")
    assert (ran.returncode, "pip install 'dovetail[audit]'" in ran.stderr) == (1, True)
