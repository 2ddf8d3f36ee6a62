"""The page of the latest audit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import urlencode

from dovetail.dashboard.audit import PAGE_ROWS, Overview
from dovetail.dashboard.markup import Html, h, table, text
from dovetail.dashboard.pages import page
from dovetail.report.guide import guide_to
from dovetail.report.text import name_server_briefly, write_time


def audit_page(
    overview: Overview, findings: Sequence[dict[str, Any]], total: int, *, check: str, severity: str, offset: int
) -> Html:
    """Findings in pages, integrity by server, chains by state."""
    if overview.problem:
        return page(
            "Audit", h("section", h("h1", "Audit"), h("p", text(overview.problem)), class_="hero"), active="/audit"
        )
    errors, warnings = overview.count("error"), overview.count("warning")
    tiles = (
        ("errors", errors, "bad" if errors else "good", _address("", "error", 0)),
        ("warnings", warnings, "unsure" if warnings else "good", _address("", "warning", 0)),
        ("gaps", overview.gaps, "", "#checks"),
        ("forks", overview.forks, "bad" if overview.forks else "", "#checks"),
        *((f"chains {state}".replace("_", " "), count, "", "#checks") for state, count in overview.chains.items()),
    )
    return page(
        "Audit",
        h(
            "section",
            h("h1", "Audit"),
            h("p", f"as of {write_time(overview.as_of_us) or 'an unknown time'}", class_="lead"),
            h("div", *(_tile(*each) for each in tiles), class_="tiles"),
            class_="hero",
        ),
        _servers(overview),
        _checks(overview, check),
        _findings(findings, total, check, severity, offset),
        active="/audit",
    )


def _tile(name: str, number: int, kind: str, target: str) -> Html:
    return h("a", h("span", name), h("strong", f"{number:,}"), class_=f"tile {kind}".strip(), href=target)


def _servers(overview: Overview) -> Html:
    rows = (
        (
            h("td", name_server_briefly(row["server"] or ""), class_="name", title=row["server"] or ""),
            h("td", _chip(row["verdict"] or "")),
            row["hops"] or 0,
            row["signed_hops"] or 0,
            row["proven_hops"] or 0,
            row["missing_hops"] or 0,
        )
        for row in sorted(overview.servers, key=lambda row: row["verdict"] == "proven")
    )
    body = table(("server", "verdict", "hops", "signed", "proven", "missing"), rows)
    return h("section", h("h2", "Integrity by server"), body)


def _checks(overview: Overview, chosen: str) -> Html:
    rows = (
        (
            h("td", _chip(row["severity"])),
            h("td", h("a", text(row["check"]), href=_address(row["check"], "", 0)), class_="name"),
            row["count"],
            h("td", guide_to(row["check"]).meaning, class_="detail"),
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
            h("td", text(row["detail"] or ""), class_="detail"),
            h("td", text(row["server"] or ""), class_="name"),
            h("td", _message(row["message"])),
            h("td", row["at"].strftime("%Y-%m-%d %H:%M:%S") if row["at"] else "", class_="time"),
        )
        for row in rows
    )
    pager = h(
        "p",
        h("a", "earlier", href=_address(check, severity, max(0, offset - PAGE_ROWS)), rel="prev") if offset else None,
        f" {min(offset + 1, total):,} to {offset + len(rows):,} of {total:,} ",
        h("a", "later", href=_address(check, severity, offset + PAGE_ROWS), rel="next")
        if offset + len(rows) < total
        else None,
        class_="pager",
    )
    body = table(("severity", "check", "what was found", "server", "message", "time"), cells)
    return h("section", h("h2", f"Findings of {check}" if check else "Findings"), body, pager, id="findings")


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
