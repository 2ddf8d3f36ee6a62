"""Compares everything that is reported about one audit: `audit run`, `audit why`, the report, terminal, dashboard."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from dovetail.audit.message_trace import trace_message, trace_text
from dovetail.audit.summary import summarize
from dovetail.audit.tables import Tables
from dovetail.dashboard.audit import MAX_VERDICTS, Choice, read_findings, read_listing, read_verdicts, survey
from dovetail.dashboard.audit_page import audit_page
from dovetail.model.address import Address
from dovetail.model.outcome import FAILED
from dovetail.report.check_counts import NOT_ARRIVED
from dovetail.report.headline import write_headline
from dovetail.report.page import build_page, gather_content
from dovetail.report.survey import take_numbers
from dovetail.report.terminal import write_summary

TILE = re.compile(r'<a class="tile[^>]*><span>([^<]+)</span><strong>([^<]+)</strong>')
# a link that filters the findings, with the count in or beside it: a tile, a part of the headline, a row of the checks
COUNTED = re.compile(
    r"<(?:a|button)([^>]*)>(?:<span>[^<]+</span><strong>([0-9,]+)</strong></a>"
    r"|([0-9,]+) [^<]*</a>"
    r'|[^<]*</(?:a|button)>(?:<div class="quiet">.*?</div>)?</td>(?:<td>.*?</td>)*?'
    r'<td class="number"[^>]*>([0-9,]+)</td>)'
)
FILTERED = re.compile(r'data-filter-severity="([^"]*)" data-filter-check="([^"]*)"')
ONE_CHECK = re.compile(r'data-filter-check="([^"]*)"')
LINKED = re.compile(r'href="(/audit\?[^"]*)#findings"')
MAX_STORIES = 25


def tiles_of(page: str) -> dict[str, str]:
    return dict(TILE.findall(page))


def links_of(page: str) -> Iterator[tuple[tuple[str, str], int]]:
    """Check, severity and count of each link that filters the findings, on the report or on the dashboard."""
    for attributes, *counts in COUNTED.findall(page):
        count = int("".join(counts).replace(",", ""))
        if linked := LINKED.search(attributes):
            query = parse_qs(urlsplit(html.unescape(linked[1])).query)
            yield (query.get("check", [""])[0], query.get("severity", [""])[0]), count
        elif filtered := FILTERED.search(attributes):
            yield (html.unescape(filtered[2]), filtered[1]), count
        elif one := ONE_CHECK.search(attributes):
            yield (html.unescape(one[1]), ""), count


def assert_pages_agree(root: Path) -> None:
    tables = Tables.open(root)
    printed, numbers, overview = summarize(tables), take_numbers(tables), survey(root)
    assert not overview.problem
    counted = {(item.check, item.severity): item.findings for item in printed.found}
    assert {(item.check, item.severity): item.findings for item in numbers.checks} == counted
    assert {(item.check, item.severity): item.findings for item in overview.checks} == counted

    outcomes = [pair for each in printed.deliveries.values() for pair in each.items()]
    failed = sum(count for outcome, count in outcomes if outcome in FAILED)
    for counts in (numbers, overview.counts):
        assert counts.failed == failed
        assert counts.arrived + counts.failed + counts.pending == sum(count for _, count in outcomes)
        assert [(state.server, state.verdict) for state in sorted(counts.servers, key=lambda each: each.server)] == [
            (state.server, state.verdict) for state in printed.servers
        ]
    assert [part.words for part in write_headline(overview.counts)] == [part.words for part in write_headline(numbers)]

    report = build_page(numbers, gather_content(tables, numbers), tables_path="tables")
    listing = read_listing(tables, Choice())
    dashboard = audit_page(overview, listing, Choice())
    assert listing.total == sum(counted.values())
    assert listing.rows == len(set(gather_content(tables, numbers).findings["findings"]["cause"]))
    for severity in ("error", "warning", "note"):
        found = sum(count for (_, each), count in counted.items() if each == severity)
        assert tiles_of(report)[f"{severity}s"] == tiles_of(dashboard)[f"{severity}s"] == f"{found:,}"
    assert tiles_of(report)["did not arrive"] == tiles_of(dashboard)["did not arrive"] == f"{failed:,}"
    assert f"{failed:,} did not" in report
    for part in write_headline(numbers):
        assert f">{part.words}</a>" in report
        assert f">{part.words}</a>" in dashboard
    clicked = dict(links_of(dashboard))
    assert {(NOT_ARRIVED, ""), ("", "error"), *((check, "") for check, _ in counted)} <= clicked.keys()
    assert set(links_of(report)) <= clicked.items(), "the same filters have the same counts on both pages"
    for (check, severity), count in clicked.items():
        assert read_findings(tables, check=check, severity=severity)[1] == count, (check, severity)
    assert_stories_agree(tables, root)
    latencies = report.partition('id="latency"')[2].partition("</section>")[0]
    assert not re.search(r"within 0 |>0 µs<", "\n".join([*write_summary(numbers), latencies]))


def assert_stories_agree(tables: Tables, root: Path) -> None:
    """`audit why` and the page of a message use the same words, and neither shows an unknown value as 0."""
    for address in tables.read("deliveries", ["message"])["message"].unique().to_pylist()[:MAX_STORIES]:
        told = trace_text(trace_message(tables, address.hex()))
        verdicts = read_verdicts(root, Address(address))
        assert not any(" in 0.000 ms" in line for line in told)
        if len(verdicts) <= MAX_VERDICTS and not verdicts[0].words.startswith("arrived for"):
            assert {verdict.words for verdict in verdicts} <= set(told)
