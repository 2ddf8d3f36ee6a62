"""The verdict of an audit in one line: the problems, the worst first, each part with a link."""

from __future__ import annotations

from typing import Literal, NamedTuple

from dovetail.report.check_counts import FAILED_CHECKS, NOT_ARRIVED
from dovetail.report.numbers import Counts

Kind = Literal["bad", "unsure", "good"]


class Part(NamedTuple):
    """One clause of the headline. `severity` and `check` filter the findings; `section` is an alternative link."""

    words: str
    kind: Kind
    section: str = "findings"
    severity: str = ""
    check: str = ""


def write_headline(numbers: Counts) -> list[Part]:
    """At least one part; the counts match the tiles and the list of findings."""
    parts: list[Part] = []
    errors, warnings = numbers.found("error"), numbers.found("warning")
    if numbers.failed:
        is_error = any(item.severity == "error" and item.check in FAILED_CHECKS for item in numbers.checks)
        words = f"{_count(numbers.failed, 'delivery', 'deliveries')} did not arrive"
        parts.append(Part(words, "bad" if is_error else "unsure", check=NOT_ARRIVED))
    for verdict, kind in (("broken", "bad"), ("incomplete", "unsure")):
        count = sum(server.verdict == verdict for server in numbers.servers)
        if count:
            whole = len(numbers.servers)
            words = f"{count:,} of {_count(whole, 'journal', 'journals')} {'is' if count == 1 else 'are'} {verdict}"
            parts.append(Part(words, "bad" if kind == "bad" else "unsure", section="integrity"))
    if errors:
        parts.append(Part(_count(errors, "error", "errors"), "bad", severity="error"))
    if warnings:
        parts.append(Part(_count(warnings, "warning", "warnings"), "unsure", severity="warning"))
    if parts:
        return parts
    if not numbers.hops:
        return [Part("No data", "unsure", section="traffic")]
    proven = _count(len(numbers.servers), "journal is", "journals are")
    everything = "Everything arrived" if not numbers.pending else f"{numbers.pending:,} pending, no problems"
    return [Part(everything, "good", section="arrival"), Part(f"{proven} proven", "good", section="integrity")]


def _count(number: int, one: str, many: str) -> str:
    return f"{number:,} {one if number == 1 else many}"
