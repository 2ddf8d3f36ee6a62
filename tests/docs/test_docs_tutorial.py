"""The tutorial over three fabrics: runs every command of the page, in order, in a new directory; checks the output.

The page becomes one shell script. Programs for another terminal run in the background, and the next command runs when
they are ready, as for a person. Ports are replaced by free ones.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from system.up_site import free_port

pytestmark = [pytest.mark.system, pytest.mark.timeout(400)]
ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "tutorial" / "three-fabrics.md"
TCP, UDP = ("8142", "8443", "8444"), ("4711", "4712", "4713")
READY = {"up": "processes run;", "pcp": "Ctrl-C ends it"}
"""What a program in another terminal prints before the reader continues."""
_STOP = "## 6. Seal"
_LINE = re.compile(r"^    (\S.*)$|^(## .*)$", re.MULTILINE)
_FILE = re.compile(r"```toml\n(.*?)```", re.DOTALL)
_OUTPUT = re.compile(r"```text\n(.*?)```", re.DOTALL)


def with_free_ports(text: str) -> str:
    kinds = dict.fromkeys(TCP, socket.SOCK_STREAM) | dict.fromkeys(UDP, socket.SOCK_DGRAM)
    ports = {port: str(free_port(kind)) for port, kind in kinds.items()}
    return re.sub("|".join(ports), lambda match: ports[match[0]], text)


def script_of(page: str) -> str:
    """The page as a script for bash."""
    lines = ["set -em"]
    for command, heading in _LINE.findall(page):
        if heading == _STOP:
            lines += ["kill -INT $up", "wait $up"]
        elif command.endswith(" terminal"):
            name = command.split()[1]
            lines += [f"{command.partition('    #')[0]} > {name}.log 2>&1 &", f"{name}=$!"]
            lines += [f"until grep -q '{READY[name]}' {name}.log; do kill -0 ${name}; sleep 0.1; done"]
        elif command.endswith("# exits 3"):
            lines.append(f"! {command}")
        elif command:
            lines.append(command)
    return "\n".join(lines)


@pytest.fixture
def directory():
    """A directory with a short path: the path of a peer's control socket is limited."""
    with tempfile.TemporaryDirectory(prefix="tut") as name:
        yield Path(name)


def test_the_tutorial_runs_as_written(directory):
    page = with_free_ports(PAGE.read_text())
    (directory / "bin").mkdir()
    program = directory / "bin" / "dovetail"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m dovetail "$@"\n')
    program.chmod(0o755)
    (site,) = _FILE.findall(page)
    (directory / "site.toml").write_text(site)
    place = directory / "harbour"
    script = script_of(page).replace("cd harbour", "cd harbour; mv ../site.toml .", 1)
    path = f"{program.parent}{os.pathsep}{os.environ['PATH']}"
    process = subprocess.Popen(
        ["bash", "-c", script],
        cwd=directory,
        env=os.environ | {"PATH": path, "PYTHONPATH": str(ROOT / "src")},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        said, _ = process.communicate(timeout=360)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.stdout.close()
    assert process.returncode == 0, said
    printed = said + "".join(log.read_text() for log in place.glob("*.log"))
    for output in _OUTPUT.findall(page):
        for line in output.splitlines():
            pattern = ".*".join(map(re.escape, line.split("...")))
            assert re.search(f"^{pattern}$", printed, re.MULTILINE), f"{line}\nis not in:\n{printed}"
    assert (place / "report.html").stat().st_size > 100_000
    assert (place / "elsewhere" / "gravel.receipt").stat().st_size < 30_000
