"""The reference pages match the code."""

from __future__ import annotations

from pathlib import Path

from dovetail.audit.reference import checks_page, main, tables_page

DOCS = Path(__file__).parents[2] / "docs" / "reference"


def test_the_page_of_tables_is_up_to_date():
    assert (DOCS / "tables.md").read_text() == tables_page()


def test_the_page_of_checks_is_up_to_date():
    assert (DOCS / "checks.md").read_text() == checks_page()


def test_the_pages_can_be_written(tmp_path):
    assert main([str(tmp_path)]) == 0
    assert (tmp_path / "reference" / "tables.md").read_text() == tables_page()
