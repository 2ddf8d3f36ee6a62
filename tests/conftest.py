"""Which part of the tests each one belongs to, where its place or its fixtures already say so; and their order."""

from __future__ import annotations

from pathlib import Path

import pytest

EXHAUSTIVE = [Path(__file__).parent / name for name in ("dashboard", "demo", "docs", "properties", "report")]
"""Many cases, and whole pages."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.spark)
        if any(map(item.path.is_relative_to, EXHAUSTIVE)):
            item.add_marker(pytest.mark.exhaustive)
    # what takes long begins first, so that the workers end together
    items.sort(key=lambda item: not any(item.iter_markers("spark")) and not any(item.iter_markers("system")))
