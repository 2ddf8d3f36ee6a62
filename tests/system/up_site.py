"""A site under `dovetail up` as a process, and what tests need to observe and disturb it."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")}
DOVETAIL = [sys.executable, "-m", "dovetail"]


def free_port(kind: int = socket.SOCK_STREAM) -> int:
    """A currently free port. A site must know its ports before it starts, so port 0 does not work here."""
    with socket.socket(socket.AF_INET, kind) as trial:
        trial.bind(("127.0.0.1", 0))
        return trial.getsockname()[1]


def dovetail(*arguments: object, cwd: Path, timeout_s: float = 60, **more) -> subprocess.CompletedProcess[str]:
    command = [*DOVETAIL, *map(str, arguments)]
    return subprocess.run(
        command, cwd=cwd, env=more.pop("env", ENVIRONMENT), text=True, capture_output=True, timeout=timeout_s, **more
    )


class Up:
    """A running `dovetail up`; its lines are read as they arrive."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        for line in self.process.stderr:
            self.lines.append(line.rstrip("\n"))

    def find(self, pattern: str) -> list[re.Match[str]]:
        return [match for line in list(self.lines) if (match := re.search(pattern, line))]

    def await_line(self, pattern: str, count: int = 1, timeout_s: float = 60) -> re.Match[str]:
        """The match of the `count`-th line with the pattern; fails the test if it does not appear."""
        deadline = time.monotonic() + timeout_s
        while len(found := self.find(pattern)) < count and time.monotonic() < deadline and self.process.poll() is None:
            time.sleep(0.05)
        assert len(found) >= count, f"no {pattern!r} in:\n" + "\n".join(self.lines)
        return found[count - 1]

    def pid_of(self, name: str) -> int:
        return int(self.find(rf" {re.escape(name)}: starting: process (\d+)$")[-1][1])

    def stop(self, timeout_s: float = 60) -> int:
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(timeout_s)
        self._reader.join(60)
        return code


@contextmanager
def running(directory: Path, config: str, *arguments: str) -> Iterator[Up]:
    """Run `up` on a configuration; whatever happens, nothing stays behind."""
    process = subprocess.Popen(
        [*DOVETAIL, "up", config, *arguments],
        cwd=directory,
        env=ENVIRONMENT,
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    up = Up(process)
    try:
        yield up
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()  # its processes see their pipe close, and end
                process.wait()
        up._reader.join(60)
        process.stderr.close()


def until(condition: Callable[[], object], timeout_s: float = 60) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not come in time"
        time.sleep(0.05)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def json_lines(text: str) -> list[dict]:
    return [json.loads(line) for line in text.splitlines()]
