import importlib.util
import io
import re
import signal
import sys
from dataclasses import replace
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def check():
    spec = importlib.util.spec_from_file_location("tools_check", ROOT / "tools" / "check.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def run(check):
    """Runs Python code as if it were a tool, with the pattern of one of the real steps."""

    def run_code(name: str, code: str):
        pattern = next(part.result for part in check.PARTS if part.name == name)
        part = check.Part(name=name, command=("timeit", "-n1", "-r1", code), result=pattern)
        return check.run(part, io.BytesIO())

    return run_code


REPORT = """
SKIPPED [2] tests/a.py:3: no chromium here
SKIPPED [1] tests/b.py:9: no chromium here
SKIPPED [1] tests/b.py: needs 8 cores
= 1 failed, 12 passed, 4 skipped, 3 deselected in 4.52s =
"""


def test_what_was_left_out_is_told_with_the_reason(check):
    (summary,) = check._CLOSING.findall(REPORT)
    assert summary == "1 failed, 12 passed, 4 skipped, 3 deselected"
    assert check.left_out(summary, REPORT) == [
        "3 soak tests, which take long: make soak",
        "3 skipped: no chromium here",
        "1 skipped: needs 8 cores",
    ]


@pytest.mark.parametrize(
    ("name", "printed", "summary"),
    [
        ("lint", "All checks passed!", "All checks passed!"),
        ("format", "36 files already formatted", "36 files already formatted"),
        ("types", "Success: no issues found in 22 source files", "no issues found in 22 source files"),
        ("rustfmt", "Spent 0.1 secs in the formatting phase", "Spent 0.1 secs in the formatting phase"),
        ("clippy", "    Finished `release` profile [optimized]", "Finished `release` profile [optimized]"),
        ("tests", "209 passed in 3.87s", "209 passed"),
        ("tests", "209 passed in 101.87s (0:01:41)", "209 passed"),
    ],
)
def test_a_part_that_passed_is_told_in_the_words_of_the_tool(run, name, printed, summary):
    outcome = run(name, f"print({printed!r})")
    assert outcome.passed
    assert re.fullmatch(re.escape(summary) + r" \(\d+\.\d s\)", outcome.summary)


@pytest.mark.parametrize(
    ("name", "printed", "summary"),
    [
        ("lint", "Found 2 errors.", "Found 2 errors."),
        ("types", "Found 1 error in 1 file (checked 3 source files)", "Found 1 error in 1 file"),
        ("rustfmt", "Spent 0.1 secs\nDiff in /native/src/lib.rs:8:", "Diff in /native/src/lib.rs:8:"),
        ("clippy", "error: could not compile `dovetail-fast`", "error: could not compile `dovetail-fast`"),
        ("tests", "1 failed, 2 passed in 1.0s", "1 failed, 2 passed"),
        ("tests", "segmentation fault", "said nothing of its result, exit 3"),
    ],
)
def test_a_part_that_failed(run, name, printed, summary):
    outcome = run(name, f"print({printed!r}, flush=True); import os; os._exit(3)")
    assert not outcome.passed
    assert outcome.summary.startswith(summary)


def test_a_tool_that_says_nothing_has_not_passed(run):
    assert not run("tests", "pass").passed


def test_what_runs_beside_is_shown_after_the_rest_and_told_in_its_place(check, monkeypatch, capfd, tmp_path):
    """Each of two parts waits for the other to start."""
    code = """
from pathlib import Path; from time import sleep
Path({own!r}).touch()
for _ in range(600):
    if Path({other!r}).exists(): print("All checks passed!"); break
    sleep(0.05)
"""
    beside, before = str(tmp_path / "beside"), str(tmp_path / "before")
    parts = [
        check.Part(
            name=Path(own).name,
            command=("timeit", "-n1", "-r1", code.format(own=own, other=other)),
            result=check.PARTS[0].result,
            is_beside=own == beside,
        )
        for own, other in ((beside, before), (before, beside))
    ]
    monkeypatch.setattr(check, "PARTS", parts)
    assert check.main([]) == 0
    said = capfd.readouterr().out
    assert said.index(f"Path({before!r}).touch()") < said.index(f"Path({beside!r}).touch()")
    assert [line.split()[:2] for line in said.splitlines()[-2:]] == [["passed", "beside"], ["passed", "before"]]


def test_what_it_starts_can_be_interrupted_also_if_it_was_started_in_the_background(check, monkeypatch, capfdbinary):
    code = "import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler, 'in 1.00s')"
    part = check.Part(name="tests", command=("timeit", "-n1", "-r1", code), result=re.compile(r"(True|False) in"))
    monkeypatch.setattr(check, "PARTS", (part,))
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert check.main([]) == 0
    finally:
        signal.signal(signal.SIGINT, before)
    assert b"passed  tests   True" in capfdbinary.readouterr().out


def test_a_part_runs_in_its_environment(check, monkeypatch, capfdbinary):
    (python,) = (part for part in check.PARTS if part.name == "python")
    code = "from dovetail import fast; print(fast.IMPLEMENTATION, 'in 1.00s')"
    part = replace(python, command=("timeit", "-n1", "-r1", code), result=re.compile(r"(native|python) in"))
    monkeypatch.setattr(check, "PARTS", (part,))
    assert check.main([]) == 0
    assert b"passed  python  python" in capfdbinary.readouterr().out


def test_the_native_code_is_checked_where_cargo_and_what_it_needs_are_there(check, monkeypatch, tmp_path):
    (part,) = (part for part in check.PARTS if part.name == "rustfmt")
    for name in ("cargo", "cargo-fmt"):
        (tmp_path / name).write_text("#!/bin/sh\necho Spent $PWD $*\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(check.importlib.util, "find_spec", lambda name: object())
    assert check.run(part, io.BytesIO()).summary.startswith(f"Spent {ROOT / 'native'} fmt --check -- --verbose")
    monkeypatch.setattr(check.importlib.util, "find_spec", lambda name: None)
    assert check.run(part, io.BytesIO()).left_out == ("native/ is not built",)
    (tmp_path / "cargo-fmt").unlink()
    assert check.run(part, io.BytesIO()).left_out == ("cargo-fmt is not installed",)
