from __future__ import annotations

from pathlib import Path

import pytest

from dovetail.audit.tables import Tables
from dovetail.report.numbers import Numbers
from dovetail.report.survey import take_numbers
from report.sample_tables import HOSTILE, small_world
from tables_on_disk import write_tables


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
    return Tables.open(write_tables(tmp_path, {"findings": []}))
