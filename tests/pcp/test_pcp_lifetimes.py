"""When a message is given up, to the microsecond."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from dovetail.pcp.lifetimes import NEVER_US, Lifetimes


@pytest.mark.parametrize(
    ("expires_us", "end_us"),
    [
        (5_000_000, 5_002_000),  # the tolerance is added
        (9_999_000, 10_001_000),
        (20_000_000, 11_000_000),  # nothing waits longer than it may, counted from its acceptance
        (None, 11_000_000),
    ],
)
def test_a_message_waits_until_its_lifetime_the_tolerance_and_the_longest_wait_are_over(expires_us, end_us):
    lifetimes = Lifetimes(clock_skew_ms=2, max_lifetime_ms=10_000)
    assert lifetimes.end_us(SimpleNamespace(expires_us=expires_us, accepted_us=1_000_000)) == end_us


def test_no_lifetime_ends_after_every_time_that_can_be_written():
    assert NEVER_US > 253_402_300_800_000_000
