"""Runs command lines in real processes at the cost of a fork: everything is imported once, before the first one.

A separate program: it reads one JSON object per line, a `Case`, and answers with one, an `Outcome`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import gc
import importlib
import inspect
import io
import json
import os
import pty
import resource
import select
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
from pathlib import Path
from typing import Any, Literal

_WAIT_S = 0.01
_LATE_S = 2.0
"""How long a process may take to end after its parent."""


@dataclasses.dataclass(frozen=True)
class Case:
    """One command line, and the conditions it runs in."""

    words: list[str]
    cwd: str
    environment: dict[str, str] = dataclasses.field(default_factory=dict)
    stdin: Literal["empty", "closed"] = "empty"
    stdout: Literal["file", "full", "broken", "terminal", "closed"] = "file"
    columns: int = 80
    interrupt: int | None = None
    """Ctrl-C at this call of a dovetail function, counted from 1; 0 only counts them."""
    interrupt_when: str | None = None
    """Ctrl-C as soon as this is printed, on stdout or stderr."""
    absent: list[str] = dataclasses.field(default_factory=list)
    """Packages that are not installed."""
    max_file_bytes: int | None = None
    timeout: float = 60.0


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What it did."""

    code: int | None
    """None if it did not end in time and was killed."""
    out: str
    err: str
    calls: int
    """Calls of dovetail functions in the main thread, if they were counted."""
    survivors: list[str]
    """Processes that it started and that outlived it."""


class Zygote:
    """The test's end of it."""

    def __init__(self, source: Path, *extras: str) -> None:
        """`extras` are further modules to import."""
        self._process = subprocess.Popen(
            [sys.executable, __file__, *extras],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": str(source)},
        )

    def run(self, case: Case) -> Outcome:
        """Run one command line."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(dataclasses.asdict(case)) + "\n")
        process.stdin.flush()
        return Outcome(**json.loads(process.stdout.readline()))

    def close(self) -> None:
        """End it."""
        self._process.communicate()


class Absent:
    """A finder of modules that does not find these packages, and otherwise what another one finds."""

    def __init__(self, finder: Any, names: list[str]) -> None:
        self._finder = finder
        self._names = set(names)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Called by every import."""
        return None if name.partition(".")[0] in self._names else self._finder.find_spec(name, path, target)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._finder, name)


class Calls:
    """Counts calls of functions of dovetail, and interrupts at one of them.

    The finder of modules that were moved does not count: native code of others imports, and takes what comes for a no.
    Nor do generators, which are also called to be thrown away, where Python can only tell and go on.
    """

    def __init__(self, at: int, counted: Path) -> None:
        self._at, self._count, self._counted = at, 0, counted
        self._home = str(Path(importlib.import_module("dovetail").__file__ or "").parent)

    def __call__(self, frame: Any, event: str, argument: object) -> None:
        code = frame.f_code
        if event != "call" or code.co_flags & inspect.CO_GENERATOR or not code.co_filename.startswith(self._home):
            return
        if not code.co_filename.endswith("_moved.py"):
            self._count += 1
            if self._count == self._at:
                sys.setprofile(None)
                signal.raise_signal(signal.SIGINT)

    def end(self) -> None:
        """Write the count to the file."""
        sys.setprofile(None)
        self._counted.write_text(str(self._count))


def load_all() -> None:
    """Import the whole command line, and heavy packages."""
    from dovetail.cli.main import NOUNS, main

    for noun in NOUNS:
        importlib.import_module(f"dovetail.cli.{noun.name}")
    for name in ("api.local", "api.audit", "api.receipts", "runtime.pcp_serve", "runtime.won_server", "site.servers"):
        importlib.import_module(f"dovetail.{name}")
    for name in sys.argv[1:]:
        importlib.import_module(name)
    with contextlib.redirect_stdout(io.StringIO()):
        main(["version"])  # imports what running a command imports
    gc.collect()
    gc.freeze()  # else every child would write to all of it when it ends


def become(case: Case, target: int, err: int) -> None:
    """In the child: set up the streams and limits of this case."""
    os.setsid()
    os.chdir(case.cwd)
    os.environ.pop("COLUMNS", None)
    os.environ.update(case.environment)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(target, 1)
    os.dup2(err, 2)
    sys.stdin, sys.stdout, sys.stderr = (open(fd, mode, closefd=False) for fd, mode in ((0, "r"), (1, "w"), (2, "w")))  # noqa: SIM115
    if case.stdin == "closed":  # as in Python without one
        os.close(0)
        sys.stdin = None  # type: ignore[assignment]
    if case.stdout == "closed":
        os.close(1)
        sys.stdout = None  # type: ignore[assignment]
    if case.max_file_bytes is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (case.max_file_bytes,) * 2)
    if case.absent:
        sys.meta_path[:] = [Absent(finder, case.absent) for finder in sys.meta_path]  # type: ignore[list-item]


def run_child(case: Case, target: int, err: int, counted: Path) -> int:
    """In the child: the command."""
    from dovetail.__main__ import main

    become(case, target, err)
    sys.argv = ["dovetail", *case.words]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if case.interrupt is None:
        return main()
    calls = Calls(case.interrupt, counted)
    sys.setprofile(calls)
    try:
        return main()
    finally:
        calls.end()


def of_session(leader: int) -> list[str]:
    """The processes of a session, by their command lines."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            if int(fields[3]) == leader and fields[0] != "Z" and int(entry.name) != leader:
                found.append((entry / "cmdline").read_text().replace("\0", " "))
    return found


def watch(pid: int, case: Case, master: int | None, files: list[Path]) -> tuple[int | None, bytes]:
    """Wait for the child; its terminal output is read as it arrives."""
    shown = b""
    until = time.monotonic() + case.timeout
    wanted = case.interrupt_when
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if master is not None:
            while select.select([master], [], [], 0)[0]:
                try:
                    shown += os.read(master, 65536)
                except OSError:
                    break
        if done:
            return os.waitstatus_to_exitcode(status), shown
        printed = shown + b"".join(file.read_bytes() for file in files if file.exists())
        if wanted is not None and wanted.encode() in printed:
            os.kill(pid, signal.SIGINT)
            wanted = None
        if time.monotonic() > until:
            os.killpg(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return None, shown
        time.sleep(_WAIT_S)


def run(case: Case, directory: Path) -> Outcome | int:
    """In the parent: the outcome; in the child: its exit code."""
    out, err, counted = (directory / name for name in ("out", "err", "calls"))
    for file in (out, err, counted):
        file.unlink(missing_ok=True)
    master: int | None = None
    if case.stdout == "full":
        target = os.open("/dev/full", os.O_WRONLY)
    elif case.stdout == "broken":
        reader, target = os.pipe()
        os.close(reader)
    elif case.stdout == "terminal":
        master, target = pty.openpty()
        fcntl.ioctl(target, termios.TIOCSWINSZ, struct.pack("HHHH", 24, case.columns, 0, 0))
    else:
        target = os.open(out, os.O_WRONLY | os.O_CREAT)
    error = os.open(err, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    pid = os.fork()
    if not pid:
        return run_child(case, target, error, counted)
    os.close(target)
    os.close(error)
    code, shown = watch(pid, case, master, [out, err])
    if master is not None:
        os.close(master)
    late = time.monotonic() + _LATE_S
    while (survivors := of_session(pid)) and time.monotonic() < late:
        time.sleep(_WAIT_S)
    if survivors:
        os.killpg(pid, signal.SIGKILL)
    printed = shown or (out.read_bytes() if out.exists() else b"")
    return Outcome(
        code,
        printed.decode(errors="replace"),
        err.read_text(errors="replace"),
        int(counted.read_text()) if counted.exists() else 0,
        survivors,
    )


def serve() -> None:
    """Answer until stdin ends."""
    load_all()
    directory = Path(tempfile.mkdtemp(prefix="zygote-"))
    for line in iter(sys.stdin.readline, ""):
        done = run(Case(**json.loads(line)), directory)
        if isinstance(done, int):
            sys.exit(done)  # in the child, through normal interpreter shutdown
        sys.stdout.write(json.dumps(dataclasses.asdict(done)) + "\n")
        sys.stdout.flush()
    for file in directory.iterdir():
        file.unlink()
    directory.rmdir()


if __name__ == "__main__":
    serve()
