from __future__ import annotations

import pyarrow as pa
import pytest

from dovetail.report.guide import GUIDES, count_checks, guide_to


def test_every_check_of_the_audit_is_explained_in_its_own_words() -> None:
    checks = pytest.importorskip("dovetail.audit.checks", reason="the audit's checks need pyspark")
    assert set(GUIDES) <= set(checks.every_check())
    for check in checks.every_check().values():
        guide = guide_to(check.id)
        assert check.sentence.startswith(guide.meaning.removesuffix(".")), check.id
        assert guide.title
        assert guide.advice.endswith("."), check.id


def test_a_newer_check_is_named_by_its_id() -> None:
    assert guide_to("future.check").title == "future.check"


def test_checks_are_counted_the_worst_first() -> None:
    rows = [("gap.server", "warning"), ("z", "error"), ("a", "note"), ("gap.server", "warning"), ("odd", "loud")]
    found = count_checks(pa.table({"check": [check for check, _ in rows], "severity": [level for _, level in rows]}))
    assert [(item.check, item.findings) for item in found] == [("z", 1), ("gap.server", 2), ("a", 1), ("odd", 1)]
