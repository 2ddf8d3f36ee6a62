import importlib.util
import re
import sys
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
    """Runs Python code as if it were a tool, with the pattern of one of the real parts."""

    def run_code(name: str, code: str):
        pattern = next(part.result for part in check.PARTS if part.name == name)
        return check.run(check.Part(name=name, command=("timeit", "-n1", "-r1", code), result=pattern))

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
        ("tests", "209 passed in 3.87s", "209 passed"),
        ("tests", "209 passed in 101.87s (0:01:41)", "209 passed"),
    ],
)
def test_a_part_that_passed_is_told_in_the_words_of_the_tool(run, capfdbinary, name, printed, summary):
    outcome = run(name, f"print({printed!r})")
    assert outcome.passed
    assert re.fullmatch(re.escape(summary) + r" \(\d+\.\d s\)", outcome.summary)


@pytest.mark.parametrize(
    ("name", "printed", "summary"),
    [
        ("lint", "Found 2 errors.", "Found 2 errors."),
        ("types", "Found 1 error in 1 file (checked 3 source files)", "Found 1 error in 1 file"),
        ("tests", "1 failed, 2 passed in 1.0s", "1 failed, 2 passed"),
        ("tests", "segmentation fault", "said nothing of its result, exit 3"),
    ],
)
def test_a_part_that_failed(run, capfdbinary, name, printed, summary):
    outcome = run(name, f"print({printed!r}, flush=True); import os; os._exit(3)")
    assert not outcome.passed
    assert outcome.summary.startswith(summary)


def test_a_tool_that_says_nothing_has_not_passed(run, capfdbinary):
    assert not run("tests", "pass").passed
