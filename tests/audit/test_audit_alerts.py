"""Alerts: each finding once, of every kind that needs attention, however many there are."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dovetail.audit import alerts as alerts_module
from dovetail.audit.alerts import Alerts


class FakeTables:
    """Tables in which only the findings have rows."""

    def __init__(self, rows: list[dict]) -> None:
        self._rows = rows

    def scan(self, name: str) -> Iterator[dict]:
        return iter(self._rows if name == "findings" else ())


@pytest.fixture
def findings(monkeypatch) -> list[dict]:
    """The rows of the table of findings."""
    rows: list[dict] = []
    monkeypatch.setattr(alerts_module, "open_tables", lambda out: FakeTables(rows))
    return rows


def finding(check: str, number: int = 0, severity: str = "warning") -> dict:
    return {"check": check, "severity": severity, "server": "s", "message": None, "seq": number, "detail": "d"}


def update(path) -> list[dict]:
    told: list[dict] = []
    assert Alerts(path, told.append).update() == len(told)
    return told


@pytest.mark.parametrize(
    "check",
    [
        *("delivery.lost", "delivery.undeliverable", "delivery.expired", "delivery.unauthorized"),
        *("delivery.no_outcome", "integrity.file_altered", "gap.server", "fork.shared_id", "chain.incomplete"),
    ],
)
def test_every_kind_that_a_person_must_see_is_told(findings, tmp_path, check):
    findings.append(finding(check))
    assert update(tmp_path) == findings
    assert update(tmp_path) == []


def test_notes_are_not_told(findings, tmp_path):
    findings.append(finding("delivery.expired", severity="note"))
    assert update(tmp_path) == []


@pytest.mark.exhaustive
def test_each_is_told_once_also_beyond_a_hundred_thousand(findings, tmp_path):
    findings += [finding("delivery.lost", number) for number in range(120_000)]
    assert len(update(tmp_path)) == 120_000
    assert update(tmp_path) == []
    findings.append(finding("delivery.lost", 120_000))
    assert [item["seq"] for item in update(tmp_path)] == [120_000]
    assert update(tmp_path) == []


def test_at_the_bound_no_further_ones_are_told(findings, tmp_path, monkeypatch):
    monkeypatch.setattr(alerts_module, "MAX_REPORTED", 5)
    findings += [finding("delivery.lost", number) for number in range(9)]
    assert len(update(tmp_path)) == 5
    assert update(tmp_path) == []


def test_the_same_finding_twice_in_the_table_is_told_once(findings, tmp_path):
    findings += [finding("delivery.lost", 1), finding("delivery.lost", 1)]
    assert len(update(tmp_path)) == 1
