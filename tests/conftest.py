"""Which part of the tests each one belongs to, where its place or its fixtures already say so; and their order."""

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
    # what takes long begins first, so that the workers end together
    items.sort(key=lambda item: not any(item.iter_markers("spark")) and not any(item.iter_markers("system")))
