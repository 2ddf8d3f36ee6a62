from __future__ import annotations

import pyarrow as pa
import pytest

from dovetail.audit.check_guides import GUIDES, guide_to
from dovetail.fabrics import every_fabric
from dovetail.model.outcome import FAILED
from dovetail.report.check_counts import FAILED_CHECKS, count_checks


def test_every_check_of_the_audit_is_explained() -> None:
    checks = pytest.importorskip("dovetail.audit.checks", reason="the audit's checks need pyspark")
    conflicts = {f"fork.{kind}" for fabric in every_fabric() for kind in fabric.conflicts}
    assert set(GUIDES) | conflicts == set(checks.every_check())
    for check in checks.every_check():
        guide = guide_to(check)
        assert guide.title
        assert guide.meaning.endswith("."), check
        assert guide.advice.endswith("."), check


def test_each_failed_delivery_is_one_finding() -> None:
    checks = pytest.importorskip("dovetail.audit.checks", reason="the audit's checks need pyspark")
    assert {check: checks.every_check()[check].where for check in FAILED_CHECKS} == {
        f"delivery.{outcome}": f"outcome = '{outcome}'" for outcome in FAILED
    }


def test_a_newer_check_is_named_by_its_id() -> None:
    assert guide_to("future.check").title == "future.check"


def test_checks_are_counted_the_worst_first() -> None:
    rows = [("gap.server", "warning"), ("z", "error"), ("a", "note"), ("gap.server", "warning"), ("odd", "loud")]
    found = count_checks(pa.table({"check": [check for check, _ in rows], "severity": [level for _, level in rows]}))
    assert [(item.check, item.findings) for item in found] == [("z", 1), ("gap.server", 2), ("a", 1), ("odd", 1)]
