"""The outcome of a message in words."""

from __future__ import annotations

import pytest

from dovetail.audit.message_trace import describe_delivery
from dovetail.model.hop import Reason


@pytest.mark.parametrize("reason", [Reason.NO_RECIPIENT, Reason.SLOW_CONSUMER, Reason.UNREACHABLE_NODE])
def test_what_could_not_be_delivered_says_why(reason):
    row = {"outcome": "undeliverable", "failed_at": "b", "reason": str(reason), "latency_us": None, "recipient": "a"}
    assert describe_delivery(row) == f"for a: undeliverable at b ({reason}): {reason.sentence}"


def test_an_outcome_is_in_words():
    row = {"outcome": "handed_over", "failed_at": None, "reason": None, "latency_us": 0, "recipient": "a"}
    assert describe_delivery(row).startswith("for a: handed over within one turn: ")
