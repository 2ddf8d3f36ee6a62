"""Run the checks of `make test`; print at the end what passed, what was skipped and why.

The results are read from the output of the tools, which is shown as it comes. The type checker runs in parallel with
the tests, which often wait; its output is shown after theirs.
"""

from __future__ import annotations

import importlib.util
import io
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

ROOT = Path(__file__).resolve().parent.parent
_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_CLOSING = re.compile(r"^=*\s*((?:\d+ [a-z]+(?:, )?)+) in [\d.]+s", re.MULTILINE)
_SKIPPED = re.compile(r"^SKIPPED \[(\d+)\] [^ ]+ (.*)$", re.MULTILINE)
_READ_BYTES = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One tool, and the pattern of the line with its result."""

    name: str
    command: tuple[str, ...]
    result: re.Pattern[str]
    is_beside: bool = False
    """Whether it runs in parallel with the others."""
    environment: tuple[tuple[str, str], ...] = ()
    tells_left_out: bool = False
    is_cargo: bool = False
    """Whether it is a command of cargo, for `native/`; skipped if cargo lacks it or set-up did not build that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of one part."""

    name: str
    passed: bool
    summary: str
    left_out: tuple[str, ...]


_JOURNAL = ("addresses", "catalogue", "layout", "verify", "writer")
IN_PYTHON = (*(f"tests/journal/test_{name}.py" for name in _JOURNAL), "tests/tlog", "tests/model", "tests/pcp")
PARTS = (
    Part(name="lint", command=("ruff", "check", "."), result=re.compile(r"(All checks passed!|Found \d+ errors?.*)")),
    Part(
        name="format",
        command=("ruff", "format", "--check", "."),
        result=re.compile(r"^(\d+ files? .*)$", re.MULTILINE),
    ),
    Part(
        name="types",
        command=("mypy",),
        result=re.compile(r"(no issues found in .*|Found \d+ errors? .*)"),
        is_beside=True,
    ),
    Part(
        name="rustfmt",
        command=("fmt", "--check", "--", "--verbose"),
        result=re.compile(r"^(Diff in .*|Spent .*)$", re.MULTILINE),
        is_cargo=True,
    ),
    Part(
        name="clippy",
        command=("clippy", "--release", "--locked", "--target-dir", "../build/native", "--", "-D", "warnings"),
        result=re.compile(r"^ *(error: could not .*|Finished .*)$", re.MULTILINE),
        is_beside=True,
        environment=(("PYO3_PYTHON", sys.executable),),
        is_cargo=True,
    ),
    # four workers, since the long tests wait more than they work; how files are dealt out: tests/conftest.py
    Part(
        name="tests",
        command=("pytest", "-m", "not soak", "-n", "4", "--dist", "loadfile", "--no-loadscope-reorder"),
        result=_CLOSING,
        tells_left_out=True,
    ),
    # the Python implementations of the native functions; `make test-python` runs all tests with them
    Part(
        name="python",
        command=("pytest", "-m", "not soak and not system and not exhaustive", *IN_PYTHON),
        result=_CLOSING,
        is_beside=True,
        environment=(("DOVETAIL_FAST", "python"),),
    ),
)


def main(names: list[str]) -> int:
    """Run the named parts, or all; 0 if all passed."""
    # A shell that starts this in the background has SIGINT ignored, and programs inherit that: tests send it to some.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    parts = [part for part in PARTS if not names or part.name in names]
    outcomes: dict[str, Outcome] = {}
    with ThreadPoolExecutor() as pool:
        printed = {part: io.BytesIO() for part in parts if part.is_beside}
        beside = {part: pool.submit(run, part, shown) for part, shown in printed.items()}
        outcomes |= {part.name: run(part, sys.stdout.buffer) for part in parts if not part.is_beside}
        for part, future in beside.items():
            outcomes[part.name] = future.result()
            sys.stdout.buffer.write(printed[part].getvalue())
    print()
    for outcome in (outcomes[part.name] for part in parts):
        print(f"{'passed' if outcome.passed else 'FAILED'}  {outcome.name:7} {outcome.summary}")
        for line in outcome.left_out:
            print(f"        {'':7} left out: {line}")
    return 0 if all(outcome.passed for outcome in outcomes.values()) else 1


def run(part: Part, shown: BinaryIO) -> Outcome:
    """Run one part and show its output."""
    if part.is_cargo and (why := why_without(f"cargo-{part.command[0]}")):
        return Outcome(name=part.name, passed=True, summary="nothing done", left_out=(why,))
    shown.write(f"--- {' '.join(part.command)}\n".encode())
    shown.flush()
    started = time.monotonic()
    # The tests start hundreds of programs: without cached bytecode each would compile the package again.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    if sys.stdout.isatty():
        environment["FORCE_COLOR"] = "1"
    environment.update(part.environment)
    printed = bytearray()
    with subprocess.Popen(
        [*(("cargo",) if part.is_cargo else (sys.executable, "-m")), *part.command],
        cwd=ROOT / "native" if part.is_cargo else ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as process:
        assert process.stdout is not None
        while chunk := os.read(process.stdout.fileno(), _READ_BYTES):
            shown.write(chunk)
            shown.flush()
            printed += chunk
    passed = process.returncode == 0
    text = _ANSI.sub("", printed.decode(errors="replace"))
    results = part.result.findall(text)
    summary = results[-1] if results else f"said nothing of its result, exit {process.returncode}"
    return Outcome(
        name=part.name,
        passed=passed and bool(results),
        summary=f"{summary} ({time.monotonic() - started:.1f} s)",
        left_out=tuple(left_out(summary, text)) if part.tells_left_out else (),
    )


def why_without(program: str) -> str | None:
    """Why a command of cargo is unavailable here; None if it is available."""
    if shutil.which(program) is None:
        return f"{program} is not installed"
    # without the module, what it depends on may never have been downloaded
    return None if importlib.util.find_spec("dovetail_fast") else "native/ is not built"


def left_out(summary: str, text: str) -> list[str]:
    """What pytest skipped, and why, from its own report."""
    lines = []
    deselected = re.search(r"(\d+) deselected", summary)
    if deselected:
        lines.append(f"{deselected[1]} soak tests, which take long: make soak")
    reasons: Counter[str] = Counter()
    for count, reason in _SKIPPED.findall(text):
        reasons[reason] += int(count)
    lines.extend(f"{count} skipped: {reason}" for reason, count in reasons.items())
    return lines


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
