"""What `make jepsen` counts as a loss that nobody names, and as a false alarm."""

from __future__ import annotations

from collections import Counter

import pytest

from jepsen.verdict import Seen, compare

A, B = "pcp://a/agent", "pcp://b/agent"
MESSAGES = [{"message": "aa", "id": "m", "fabric": "pcp"}]
FAILED = {"check": "chain.failed", "severity": "warning", "server": None, "message": "aa", "detail": "x"}


def row(outcome, recipient=A, reason=None):
    return {"message": "aa", "recipient": recipient, "outcome": outcome, "reason": reason}


def judge(deliveries, findings=(), *, arrived=(A,), acknowledged=(A,)):
    seen = Seen("pcp", acknowledged={("m", uri) for uri in acknowledged})
    seen.arrived = Counter(("m", uri) for uri in arrived)
    return compare(seen, MESSAGES, deliveries, findings)


@pytest.mark.parametrize(
    ("deliveries", "findings", "is_named"),
    [
        ([], (), False),
        ([row("delivered")], (), False),
        ([row("expired")], (), True),
        ([row("handed_over")], (), True),
        ([row("in_flight")], (), False),
        ([row("unreported")], [FAILED | {"severity": "note"}], False),
        ([row("unreported")], [FAILED], True),
    ],
)
def test_a_loss_is_named_by_any_outcome_but_delivered_and_a_pending_one_by_a_finding(deliveries, findings, is_named):
    verdict = judge(deliveries, findings, arrived=())
    assert (verdict.lost, verdict.named, len(verdict.not_named)) == (1, is_named, not is_named)
    assert verdict.is_fine is is_named


@pytest.mark.parametrize(
    ("deliveries", "alarms"),
    [
        ([row("delivered")], 0),
        ([row("handed_over")], 0),
        ([row("expired", reason="interrupted")], 0),
        ([row("expired", reason="lifetime_over")], 1),
        ([], 1),
        ([row("handed_over"), row("handed_over")], 1),
    ],
)
def test_what_arrived_has_one_row_that_says_so_or_that_it_is_unsure(deliveries, alarms):
    assert len(judge(deliveries).false_alarms) == alarms


@pytest.mark.parametrize(
    ("finding", "arrived", "alarms"),
    [
        (FAILED, (A, B), 1),
        (FAILED, (A,), 0),
        (FAILED | {"severity": "note"}, (A, B), 0),
        (FAILED | {"check": "integrity.root_mismatch", "message": None}, (A,), 1),
        (FAILED | {"check": "delivery.two_outcomes"}, (A,), 1),
    ],
)
def test_findings_are_wrong_about_servers_and_about_what_all_recipients_have(finding, arrived, alarms):
    verdict = judge([row("handed_over"), row("handed_over", B)], [finding], arrived=arrived)
    assert len(verdict.false_alarms) == alarms
