from __future__ import annotations

from dovetail.audit.tables import Tables
from dovetail.report.numbers import Numbers
from dovetail.report.survey import take_numbers
from dovetail.report.terminal import write_summary
from report.sample_tables import NODES


def test_the_summary_says_what_arrived_what_is_wrong_and_who_is_not_proven(numbers: Numbers) -> None:
    text = "\n".join(write_summary(numbers))
    assert f"{numbers.hops:,} hops, as of 2026-03-01 09:06:40.000 UTC" in text
    assert "692 of 720 deliveries arrived; 28 in flight" in text
    assert f"14 of 16 servers proven; not {NODES[1]}" in text
    assert "delivery.lost" in text


def test_the_summary_of_nothing(empty_tables: Tables) -> None:
    first, *_ = write_summary(take_numbers(empty_tables))
    assert first == "0 messages, 0 hops, as of 2026-11-15 12:00:00.000 UTC: no data"
