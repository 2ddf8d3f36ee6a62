"""Marks tests by their folder or fixtures, orders them, and, with several workers, keeps those together that share
expensive set-up.
"""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, settings

# no test fails because the machine is busy
settings.register_profile("dovetail", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("dovetail")

EXHAUSTIVE = [Path(__file__).parent / name for name in ("dashboard", "demo", "docs", "properties", "report")]
"""Many cases, or whole pages."""

SPARK = ("tests/audit/", "tests/properties/test_audit_")
"""Tests that use a Spark session in their own process."""

SECOND_SPARK = tuple(f"tests/audit/test_audit_{name}.py" for name in ("kills", "object_store", "sql"))
"""Those of them that a second worker runs, about half by time: with one session they would be the last to end."""

SETTINGS_OF_TESTS = {"DOVETAIL_FAST", "DOVETAIL_SOAK_SEEDS", "DOVETAIL_SCREENSHOTS"}
"""What whoever runs the tests may set; everything else of theirs stays outside."""

JAVA_OPTIONS = "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
"""Each Java process of a test would verify all classes of Spark again, which takes a second of CPU time or more."""


def pytest_configure(config: pytest.Config) -> None:
    """No test sees the contexts or settings of whoever runs it; the processes that it starts do not either."""
    for name in [name for name in os.environ if name.startswith("DOVETAIL_") and name not in SETTINGS_OF_TESTS]:
        del os.environ[name]
    contexts = tempfile.mkdtemp(prefix="dovetail-tests-")
    config.add_cleanup(lambda: shutil.rmtree(contexts, ignore_errors=True))
    os.environ["DOVETAIL_CONFIG_DIR"] = contexts
    os.environ["SPARK_SUBMIT_OPTS"] = JAVA_OPTIONS


@pytest.fixture(autouse=True)
def logging_not_set_up() -> None:
    """A command that a test or fixture calls sets up logging for its process; no test begins with that."""
    logger = logging.getLogger("dovetail")
    logger.handlers.clear()
    logger.propagate = True
    logger.setLevel(logging.NOTSET)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    longest: dict[Path, float] = defaultdict(float)
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.spark)
        if any(map(item.path.is_relative_to, EXHAUSTIVE)):
            item.add_marker(pytest.mark.exhaustive)
        if item.get_closest_marker("soak") is None:
            longest[item.path] = max(longest[item.path], allowed_s(item))
    # long tests start first, so that the workers end together
    items.sort(key=lambda item: (not item.nodeid.startswith(SPARK), -longest[item.path]))


def allowed_s(item: pytest.Item) -> float:
    """The time limit of a test; a test with real processes gets more than one without a limit of its own."""
    timeout = item.get_closest_marker("timeout")
    return timeout.args[0] if timeout is not None else float(item.get_closest_marker("system") is not None)


def pytest_deselected(items: list[pytest.Item]) -> None:
    """Report deselected tests of a worker to the controller, which counts only what is run."""
    told: dict[str, int] = getattr(items[0].config, "workeroutput", {})
    told["deselected"] = told.get("deselected", 0) + len(items)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node) -> None:
    """Every worker deselects the same tests; the closing line says how many."""
    reporter = node.config.pluginmanager.get_plugin("terminalreporter")
    if many := getattr(node, "workeroutput", {}).get("deselected", 0):
        reporter.stats["deselected"] = [SimpleNamespace()] * many


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log):
    """With `--dist loadfile` a test file stays on one worker, so that its shared fixtures are built once; and all
    Spark tests stay on two: a fresh JVM takes three times as long for an audit as a warm one.
    """
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class TwoSessions(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            if nodeid.startswith(SPARK):
                return "second" if nodeid.startswith(SECOND_SPARK) else "first"
            return super()._split_scope(nodeid)

    return TwoSessions(config, log)
