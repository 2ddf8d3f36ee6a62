"""What the page about the swarm says exists."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "protocols" / "swarm.md").read_text()
FILES = list(ROOT.glob("tests/*/*.py"))
TESTS = "\n".join(path.read_text() for path in FILES)


def test_every_test_named_on_the_protocol_page_exists():
    names = re.findall(r"`(test_\w+)`", PAGE)
    assert len(names) > 40
    modules = {path.stem for path in FILES}
    assert [name for name in names if f"def {name}(" not in TESTS and name not in modules] == []


def test_every_clause_that_is_done_or_deviates_names_a_test():
    rows = [line.strip("| ").split(" | ") for line in PAGE.splitlines() if line.startswith("| ")]
    judged = [row for row in rows if any(cell.startswith(("done", "deviates")) for cell in row)]
    assert len(judged) > 25
    assert [row[0] for row in judged if "test_" not in row[-1]] == []


def test_every_file_named_on_the_protocol_page_exists():
    names = re.findall(r"`((?:tests|swarm|benchmarks|src)/[\w/]+\.\w+)`", PAGE)
    assert names
    places = [ROOT, ROOT / "src" / "dovetail"]
    assert [name for name in names if not any((place / name).exists() for place in places)] == []
