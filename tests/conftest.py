"""Which part of the tests each one belongs to, where its place or its fixtures already say so."""

from __future__ import annotations

from pathlib import Path

import pytest

PROPERTIES = Path(__file__).parent / "properties"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.spark)
        if item.path.is_relative_to(PROPERTIES):
            item.add_marker(pytest.mark.exhaustive)
