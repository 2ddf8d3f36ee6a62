"""Every clause on the pages of the protocols says what is done and names a test that exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEADS = ("| clause |", "| rule |", "| layer |")
FILES = {path.stem: path.read_text() for path in ROOT.glob("tests/*/*.py")}
WRITTEN = {name for text in FILES.values() for name in re.findall(r"^(?:async )?def (test_\w+)", text, re.MULTILINE)}
CLAUSES = 112
"""So many the three documents have; the pages list rules of the companion documents too."""


def clauses(fabric: str) -> list[list[str]]:
    """The rows of the tables of clauses, cell by cell."""
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


def names_of_tests(fabric: str, row: list[str]) -> list[str]:
    """Names of tests, and of test files without their beginning, that a row has."""
    text = " | ".join(row[1:])
    files = re.findall(r"`(?:tests/\w+/)?([a-z][a-z_]*)(?:\.py)?`", text)
    return [name for name in [*re.findall(r"`(test_\w+)`", text), *files] if _exists(fabric, name)]


def _exists(fabric: str, name: str) -> bool:
    return name in WRITTEN or name in FILES or f"test_{fabric}_{name}" in FILES


@pytest.mark.parametrize("fabric", ["pcp", "won", "swarm"])
def test_every_clause_names_a_test_that_exists(fabric):
    assert [row[0] for row in clauses(fabric) if not names_of_tests(fabric, row)] == []


@pytest.mark.parametrize("fabric", ["pcp", "won", "swarm"])
def test_no_named_test_is_missing(fabric):
    named = {name for row in clauses(fabric) for name in re.findall(r"`(test_\w+)`", " ".join(row))}
    assert {name for name in named if not _exists(fabric, name)} == set()


def test_all_clauses_are_listed_and_none_deviates_but_the_envelope_of_uep_13():
    rows = [row for fabric in ("pcp", "won", "swarm") for row in clauses(fabric)]
    assert len(rows) >= CLAUSES
    assert [row[0] for row in rows if any("deviat" in cell or cell.startswith("not done") for cell in row)] == []
    assert "the one documented deviation" in (ROOT / "docs" / "protocols" / "swarm.md").read_text()
