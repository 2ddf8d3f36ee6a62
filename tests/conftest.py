"""Which part of the tests each one belongs to, where its place or its fixtures already say so; their order; and, where
several workers run them, which of them stay together.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace

import pytest

EXHAUSTIVE = [Path(__file__).parent / name for name in ("dashboard", "demo", "docs", "properties", "report")]
"""Many cases, and whole pages."""

SPARK = ("tests/audit/", "tests/properties/test_audit_")
"""Tests that use a Spark session of their own process."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    longest: dict[Path, float] = defaultdict(float)
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.spark)
        if any(map(item.path.is_relative_to, EXHAUSTIVE)):
            item.add_marker(pytest.mark.exhaustive)
        if item.get_closest_marker("soak") is None:
            longest[item.path] = max(longest[item.path], allowed_s(item))
    # what takes long begins first, so that the workers end together
    items.sort(key=lambda item: (not item.nodeid.startswith(SPARK), -longest[item.path]))


def allowed_s(item: pytest.Item) -> float:
    """How long a test may take, as far as it says so; one of real processes takes longer than one that says nothing."""
    timeout = item.get_closest_marker("timeout")
    return timeout.args[0] if timeout is not None else float(item.get_closest_marker("system") is not None)


def pytest_deselected(items: list[pytest.Item]) -> None:
    """A worker tells the process that started it, which counts only what is run."""
    told: dict[str, int] = getattr(items[0].config, "workeroutput", {})
    told["deselected"] = told.get("deselected", 0) + len(items)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node) -> None:
    """Every worker leaves out the same tests; the closing line tells how many."""
    reporter = node.config.pluginmanager.get_plugin("terminalreporter")
    if many := getattr(node, "workeroutput", {}).get("deselected", 0):
        reporter.stats["deselected"] = [SimpleNamespace()] * many


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log):
    """With `--dist loadfile` a file of tests stays with one worker, so that what its tests share is made once; and all
    that use Spark stay with one: a Java that has just begun needs three times as long for an audit as a warm one.
    """
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class OneSession(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return SPARK[0] if nodeid.startswith(SPARK) else super()._split_scope(nodeid)

    return OneSession(config, log)
