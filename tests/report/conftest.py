from __future__ import annotations

from pathlib import Path

import pytest

from dovetail.report.numbers import Numbers
from dovetail.report.survey import take_numbers
from dovetail.report.tables import Tables
from report.sample_tables import HOSTILE, small_world


@pytest.fixture(scope="session")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Tables:
    """A small world of all fabrics."""
    return Tables.open(small_world().write(tmp_path_factory.mktemp("audit") / "out"))


@pytest.fixture(scope="session")
def hostile_tables(tmp_path_factory: pytest.TempPathFactory) -> Tables:
    """The same world with agents whose names try to break out."""
    return Tables.open(small_world(names=HOSTILE).write(tmp_path_factory.mktemp("hostile") / "out"))


@pytest.fixture(scope="session")
def numbers(tables: Tables) -> Numbers:
    return take_numbers(tables)


@pytest.fixture
def empty_tables(tmp_path: Path) -> Tables:
    """An audit that found nothing at all, not even messages."""
    (tmp_path / "findings").mkdir()
    return Tables.open(tmp_path)
