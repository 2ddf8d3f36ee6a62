"""Every clause on the protocol pages says where it is implemented, and names a test that exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEADS = ("| clause |", "| rule |", "| layer |")
FILES = {path.stem: path.read_text() for path in ROOT.glob("tests/*/*.py")}
WRITTEN = {name for text in FILES.values() for name in re.findall(r"^(?:async )?def (test_\w+)", text, re.MULTILINE)}
CLAUSES = 112
"""Number of clauses in the three documents; the pages list rules of the companion documents too."""


def clauses(fabric: str) -> list[list[str]]:
    """The rows of the clause tables, cell by cell."""
    rows: list[list[str]] = []
    is_listed = False
    for line in (ROOT / "docs" / "protocols" / f"{fabric}.md").read_text().splitlines():
        if not line.startswith("|"):
            is_listed = False
        elif line.startswith(HEADS):
            is_listed = True
        elif is_listed and not line.startswith("|---"):
            rows.append([cell.strip() for cell in line.strip("|").split(" | ")])
    return rows


def _exists(fabric: str, name: str) -> bool:
    return name in WRITTEN or name in FILES or f"test_{fabric}_{name}" in FILES


def _modules(row: list[str]) -> list[str]:
    return re.findall(r"`((?:\w+/)?\w+\.py)`", " | ".join(row))


@pytest.mark.parametrize("fabric", ["pcp", "won", "swarm"])
def test_every_clause_names_a_test_that_exists(fabric):
    names = {row[0]: re.findall(r"`(test_\w+)`", " | ".join(row[1:])) for row in clauses(fabric)}
    assert [clause for clause, tests in names.items() if not WRITTEN.intersection(tests)] == []


@pytest.mark.parametrize("fabric", ["pcp", "won", "swarm"])
def test_every_clause_names_the_modules_that_obey_it(fabric):
    sources = ROOT / "src" / "dovetail"
    rows = {row[0]: _modules(row) for row in clauses(fabric)}
    assert [clause for clause, modules in rows.items() if not modules] == []
    named = {name for modules in rows.values() for name in modules}
    assert {name for name in named if not ((sources / fabric / name).is_file() or (sources / name).is_file())} == set()


@pytest.mark.parametrize("fabric", ["pcp", "won", "swarm"])
def test_no_named_test_is_missing(fabric):
    page = (ROOT / "docs" / "protocols" / f"{fabric}.md").read_text()
    named = set(re.findall(r"`(test_\w+[a-z0-9])`", page))
    assert len(named) > 40
    assert {name for name in named if not _exists(fabric, name)} == set()


def test_all_clauses_are_listed_and_none_deviates_but_the_envelope_of_uep_13():
    rows = [row for fabric in ("pcp", "won", "swarm") for row in clauses(fabric)]
    assert len(rows) >= CLAUSES
    assert [row[0] for row in rows if any("deviat" in cell or cell.startswith("not done") for cell in row)] == []
    assert "the one documented deviation" in (ROOT / "docs" / "protocols" / "swarm.md").read_text()
