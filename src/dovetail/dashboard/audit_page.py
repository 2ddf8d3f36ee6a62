"""The page of the latest audit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from urllib.parse import urlencode

from dovetail.audit.check_guides import guide_to
from dovetail.audit.server_names import name_server_briefly
from dovetail.dashboard.audit import MAX_OFFSET, PAGE_ROWS, Cause, Choice, Listing, Overview
from dovetail.dashboard.markup import Html, breakable, h, join, prose, table, text
from dovetail.dashboard.pages import page
from dovetail.report.check_counts import NOT_ARRIVED
from dovetail.report.headline import write_headline
from dovetail.report.numbers import Counts
from dovetail.report.text import brief_detail, show, write_time

MAX_SERVERS = 400
MAX_DETAILS = 3
MAX_LINKS = 20
_SECTIONS = {"integrity": "#integrity", "arrival": "#checks", "traffic": "/"}


def audit_page(overview: Overview, listing: Listing, choice: Choice) -> Html:
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
        ("did not arrive", counts.failed, "bad" if counts.failed else "good", _address(Choice(NOT_ARRIVED))),
        ("errors", errors, "bad" if errors else "good", _address(Choice(severity="error"))),
        ("warnings", warnings, "unsure" if warnings else "good", _address(Choice(severity="warning"))),
        ("notes", counts.found("note"), "", _address(Choice(severity="note"))),
        ("gaps", gaps, "", _address(Choice("gap."))),
        ("forks", forks, "bad" if forks else "", _address(Choice("fork."))),
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
        _checks(overview, choice.check),
        _findings(listing, choice),
        _chains(overview),
        active="/audit",
    )


def _headline(counts: Counts) -> Iterator[Html]:
    """The text of the report's headline, each part with its link on this page."""
    for number, part in enumerate(write_headline(counts)):
        target = _address(Choice(part.check, part.severity)) if part.section == "findings" else _SECTIONS[part.section]
        yield h("span", "; " if number else "", h("a", part.words, href=target, class_=part.kind))


def _tile(name: str, number: int, kind: str, target: str) -> Html:
    return h("a", h("span", name), h("strong", f"{number:,}"), class_=f"tile {kind}".strip(), href=target)


def _servers(overview: Overview) -> Html:
    rows = (
        (
            h("td", name_server_briefly(row.server), class_="name", title=show(row.server)),
            h("td", _verdict(row.verdict)),
            row.hops,
            row.signed_hops,
            row.proven_hops,
            row.missing_hops,
        )
        for row in overview.servers[:MAX_SERVERS]
    )
    body = table(("server", "verdict", "hops", "signed", "proven", "missing"), rows, "integrity")
    more = len(overview.servers) - MAX_SERVERS
    rest = h("p", f"and {more:,} more servers; the report shows all", class_="quiet") if more > 0 else None
    return h("section", h("h2", "Integrity by server"), body, rest, id="integrity")


def _checks(overview: Overview, chosen: str) -> Html:
    rows = (
        (
            h("td", _chip(row.severity)),
            h(
                "td",
                h("a", text(row.title), href=_address(Choice(row.check))),
                h("div", h("code", text(row.check)), class_="quiet"),
                class_="name",
            ),
            row.findings,
            h("td", prose(row.meaning), class_="detail"),
            h("td", prose(row.advice), class_="detail"),
        )
        for row in overview.checks
    )
    everything = h("p", h("a", "all checks", href="/audit#findings")) if chosen else None
    columns = ("severity", "check", "findings", "meaning", "what to do")
    body = table(columns, rows, "stack") if overview.checks else h("p", "nothing was found")
    return h("section", h("h2", "Findings by check"), body, everything, id="checks")


def _findings(listing: Listing, choice: Choice) -> Html:
    rows = ([h("td", _chip(cause.severity)), *_cause(cause)] for cause in listing.causes)
    columns = ("severity", "finding", "what was found", "where", "message", "time")
    body = table(columns, rows, "stack findings") if listing.causes else h("p", "nothing was found")
    of = "deliveries that did not arrive" if choice.check == NOT_ARRIVED else _title_of(choice.check)
    title = h("h2", f"Findings: {of}" if of else "Findings")
    return h("section", title, _counted(listing, choice), body, _pager(listing, choice), id="findings")


def _title_of(check: str) -> str:
    """The title of a check; a group of checks, like `fork.`, is named as it is."""
    return check.rstrip(".") if check.endswith(".") else guide_to(check).title if check else ""


def _cause(cause: Cause) -> Iterator[Html]:
    row = cause.row
    others = (
        f"also: {guide_to(check).title}{f' ({count:,})' if count > 1 else ''}"
        for check, count in cause.checks.items()
        if check != row["check"]
    )
    name = h("strong", text(guide_to(row["check"]).title))
    count = cause.checks[row["check"]]
    yield h(
        "td",
        name,
        f" ({count:,})" if count > 1 else None,
        h("div", h("code", text(row["check"])), class_="quiet"),
        *(h("div", text(other), class_="quiet") for other in others),
        class_="name",
    )
    details = cause.details.most_common()
    yield h(
        "td",
        *(
            h("div", breakable(brief_detail(detail)), f" ({count:,})" if count > 1 else None, title=show(detail))
            for detail, count in details[:MAX_DETAILS]
        ),
        h("div", f"and {len(details) - MAX_DETAILS:,} more like this") if len(details) > MAX_DETAILS else None,
        class_="detail",
    )
    server = row["server"] or ""
    where = name_server_briefly(server) if server else text(row["fabric"] or "")
    yield h("td", where, class_="name", title=show(server) or None)
    yield h("td", _messages(list(cause.messages)))
    yield h("td", _times(cause.times), class_="time")


def _messages(messages: Sequence[bytes]) -> Html:
    links = [h("a", h("code", each.hex()[:12]), href=f"/message/{each.hex()}") for each in messages[:MAX_LINKS]]
    if len(messages) <= 1:
        return join(links)
    more = f"and {len(messages) - MAX_LINKS:,} more" if len(messages) > MAX_LINKS else None
    listed = (h("div", link) for link in links)
    return h("details", h("summary", f"{len(messages):,} messages"), *listed, more)


def _times(times: Sequence[int]) -> Html:
    if not times:
        return Html("")
    first, last = write_time(min(times)), write_time(max(times))
    return text(first) if first == last else join((text(first), h("br"), "to ", text(last)))


def _counted(listing: Listing, choice: Choice) -> Html:
    """How many findings there are, and the way to the other list."""
    worst = f"the worst {listing.findings:,} of " if listing.findings < listing.total else ""
    words = f"{worst}{listing.total:,} finding{'' if listing.total == 1 else 's'}"
    if choice.each:
        other = h("a", "by cause", href=_address(replace(choice, each=False, offset=0)))
        return h("p", f"{words}, each in a row; show them ", other, class_="quiet")
    other = h("a", "each finding", href=_address(replace(choice, each=True, offset=0)))
    causes = f"{listing.rows:,} cause{'' if listing.rows == 1 else 's'}"
    return h("p", f"{words}, {causes}; show ", other, class_="quiet")


def _pager(listing: Listing, choice: Choice) -> Html | None:
    shown, offset = len(listing.causes), choice.offset
    if not shown and not offset:
        return None
    back = replace(choice, offset=max(0, offset - PAGE_ROWS))
    on = replace(choice, offset=offset + PAGE_ROWS)
    return h(
        "p",
        h("a", "earlier", href=_address(back), rel="prev") if offset else None,
        f" {min(offset + 1, listing.rows):,} to {offset + shown:,} of {listing.rows:,} ",
        h("a", "later", href=_address(on), rel="next")
        if offset + shown < listing.rows and offset < MAX_OFFSET
        else None,
        class_="pager",
    )


def _chains(overview: Overview) -> Html:
    rows = ((state.replace("_", " "), count) for state, count in overview.chains.items())
    body = table(("state", "chains"), rows) if overview.chains else h("p", "there are no chains")
    return h("section", h("h2", "Chains by state"), body, id="chains")


def _verdict(verdict: str) -> Html:
    """A verdict; one that is not good leads to what was found."""
    chip = _chip(verdict)
    return chip if verdict == "proven" else h("a", chip, href=_address(Choice("integrity.")))


def _chip(word: str) -> Html:
    known = word if word in ("error", "warning", "note", "proven", "incomplete", "broken") else ""
    return h("span", word, class_=f"chip {known}".strip())


def _address(choice: Choice) -> str:
    given = {
        "check": choice.check,
        "severity": choice.severity,
        "show": "each" if choice.each else "",
        "offset": str(choice.offset) if choice.offset else "",
    }
    return f"/audit?{urlencode({name: value for name, value in given.items() if value})}#findings"
