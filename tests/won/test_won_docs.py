"""Everything named on the pages about won exists, and the example does what it says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "protocols" / "won.md").read_text()


def test_every_file_named_on_the_protocol_page_exists():
    for name in re.findall(r"`(tests/[\w/]+\.py)`", PAGE):
        assert (ROOT / name).exists(), name
    cells = [line.rstrip(" |").rpartition("|")[2] for line in PAGE.splitlines() if line.startswith("| ")]
    names = {name for cell in cells for name in re.findall(r"`([a-z_]+)`", cell) if not name.startswith("test_")}
    assert len(names) > 8
    assert [name for name in names if not (ROOT / "tests" / "won" / f"test_won_{name}.py").exists()] == []


@pytest.mark.system
def test_example_names_the_altered_message():
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "won_check_log.py"],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
    )
    first, second = done.stdout.splitlines()
    assert re.fullmatch(r"\d+ messages and responses, 0 findings, altered: \[\]", first)
    assert re.fullmatch(r"altered: \['wm:/Qm\w+'\]", second)
