"""The page of the latest audit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import urlencode

from dovetail.audit.server_names import name_server_briefly
from dovetail.dashboard.audit import MAX_OFFSET, PAGE_ROWS, Overview
from dovetail.dashboard.markup import Html, breakable, h, table, text
from dovetail.dashboard.pages import page
from dovetail.report.guide import NOT_ARRIVED
from dovetail.report.headline import write_headline
from dovetail.report.numbers import Counts
from dovetail.report.text import brief_detail, show, write_time

MAX_SERVERS = 400
_SECTIONS = {"integrity": "#integrity", "arrival": "#checks", "traffic": "/"}


def audit_page(
    overview: Overview, findings: Sequence[dict[str, Any]], total: int, *, check: str, severity: str, offset: int
) -> Html:
    """Findings in pages, integrity by server, chains by state."""
    if overview.problem:
        return page(
            "Audit", h("section", h("h1", "Audit"), h("p", text(overview.problem)), class_="hero"), active="/audit"
        )
    counts = overview.counts
    errors, warnings = counts.found("error"), counts.found("warning")
    gaps, forks, chains = counts.found_by("gap."), counts.found_by("fork."), sum(overview.chains.values())
    as_of_us = overview.tables.run.as_of_us if overview.tables is not None else None
    tiles = (
        ("did not arrive", counts.failed, "bad" if counts.failed else "good", _address(NOT_ARRIVED, "", 0)),
        ("errors", errors, "bad" if errors else "good", _address("", "error", 0)),
        ("warnings", warnings, "unsure" if warnings else "good", _address("", "warning", 0)),
        ("notes", counts.found("note"), "", _address("", "note", 0)),
        ("gaps", gaps, "", _address("gap.", "", 0)),
        ("forks", forks, "bad" if forks else "", _address("fork.", "", 0)),
        ("chains", chains, "", "#chains"),
    )
    return page(
        "Audit",
        h(
            "section",
            h("h1", "Audit"),
            h("p", *_headline(counts), class_="verdict"),
            h("p", f"as of {write_time(as_of_us) or 'an unknown time'}", class_="lead"),
            h("div", *(_tile(*each) for each in tiles), class_="tiles"),
            class_="hero",
        ),
        _servers(overview),
        _checks(overview, check),
        _findings(findings, total, check, severity, offset),
        _chains(overview),
        active="/audit",
    )


def _headline(counts: Counts) -> Iterator[Html]:
    """The text of the report's headline, each part with its link on this page."""
    for number, part in enumerate(write_headline(counts)):
        target = _address(part.check, part.severity, 0) if part.section == "findings" else _SECTIONS[part.section]
        yield h("span", "; " if number else "", h("a", part.words, href=target, class_=part.kind))


def _tile(name: str, number: int, kind: str, target: str) -> Html:
    return h("a", h("span", name), h("strong", f"{number:,}"), class_=f"tile {kind}".strip(), href=target)


def _servers(overview: Overview) -> Html:
    rows = (
        (
            h("td", name_server_briefly(row.server), class_="name", title=show(row.server)),
            h("td", _chip(row.verdict)),
            row.hops,
            row.signed_hops,
            row.proven_hops,
            row.missing_hops,
        )
        for row in overview.servers[:MAX_SERVERS]
    )
    body = table(("server", "verdict", "hops", "signed", "proven", "missing"), rows)
    more = len(overview.servers) - MAX_SERVERS
    rest = h("p", f"and {more:,} more servers; the report shows all", class_="quiet") if more > 0 else None
    return h("section", h("h2", "Integrity by server"), body, rest, id="integrity")


def _checks(overview: Overview, chosen: str) -> Html:
    rows = (
        (
            h("td", _chip(row.severity)),
            h("td", h("a", text(row.check), href=_address(row.check, "", 0)), class_="name"),
            row.findings,
            h("td", row.meaning, class_="detail"),
        )
        for row in overview.checks
    )
    everything = h("p", h("a", "all checks", href="/audit#findings")) if chosen else None
    columns = ("severity", "check", "findings", "meaning")
    body = table(columns, rows, "stack") if overview.checks else h("p", "nothing was found")
    return h("section", h("h2", "Findings by check"), body, everything, id="checks")


def _findings(rows: Sequence[dict[str, Any]], total: int, check: str, severity: str, offset: int) -> Html:
    cells = (
        (
            h("td", _chip(row["severity"])),
            h("td", text(row["check"] or "")),
            h(
                "td",
                breakable(brief_detail(row["detail"] or "")),
                class_="detail",
                title=show(row["detail"] or "") or None,
            ),
            h("td", name_server_briefly(row["server"] or ""), class_="name", title=show(row["server"] or "") or None),
            h("td", _message(row["message"])),
            h("td", write_time(row["at"]), class_="time"),
        )
        for row in rows
    )
    pager = h(
        "p",
        h("a", "earlier", href=_address(check, severity, max(0, offset - PAGE_ROWS)), rel="prev") if offset else None,
        f" {min(offset + 1, total):,} to {offset + len(rows):,} of {total:,} ",
        h("a", "later", href=_address(check, severity, offset + PAGE_ROWS), rel="next")
        if offset + len(rows) < total and offset < MAX_OFFSET
        else None,
        class_="pager",
    )
    body = table(("severity", "check", "what was found", "server", "message", "time"), cells, "stack")
    of = "deliveries that did not arrive" if check == NOT_ARRIVED else check.rstrip(".")
    return h("section", h("h2", f"Findings of {of}" if of else "Findings"), body, pager, id="findings")


def _chains(overview: Overview) -> Html:
    rows = ((state.replace("_", " "), count) for state, count in overview.chains.items())
    body = table(("state", "chains"), rows) if overview.chains else h("p", "there are no chains")
    return h("section", h("h2", "Chains by state"), body, id="chains")


def _message(message: bytes | None) -> Html:
    if not message:
        return Html("")
    return h("a", h("code", message.hex()[:12]), href=f"/message/{message.hex()}")


def _chip(word: str) -> Html:
    known = word if word in ("error", "warning", "note", "proven", "incomplete", "broken") else ""
    return h("span", word, class_=f"chip {known}".strip())


def _address(check: str, severity: str, offset: int) -> str:
    given = {"check": check, "severity": severity, "offset": str(offset) if offset else ""}
    return f"/audit?{urlencode({name: value for name, value in given.items() if value})}#findings"
