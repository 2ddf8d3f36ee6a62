"""The pages, as markup. The script fills in what changes; everything static is written here."""

from __future__ import annotations

from collections.abc import Mapping

from dovetail import __version__
from dovetail.dashboard.markup import Html, h, join
from dovetail.dashboard.query import Query
from dovetail.model.hop import Reason, Stage

_MARK = Html(
    '<svg viewBox="0 0 24 24" width="22" height="22" aria-hidden="true">'
    '<path d="M2 4h8l-2 8h8l-2-8h8v16h-8l2-8H8l2 8H2z"/></svg>'
)
_NAVIGATION = (("/", "Live"), ("/search", "Search"), ("/audit", "Audit"))


def page(title: str, *content: object, active: str = "", kind: str = "") -> Html:
    """A whole page; `kind` tells the script what to do on it."""
    links = (h("a", name, href=path, aria_current="page" if path == active else None) for path, name in _NAVIGATION)
    box = h(
        "form",
        h("input", type="search", name="any", placeholder="Address, id, URI or text", aria_label="Search messages"),
        action="/search",
        class_="quick",
        role="search",
    )
    header = h(
        "header",
        h("a", _MARK, " Dovetail", href="/", class_="brand"),
        h("nav", *links, aria_label="Pages"),
        box if kind != "login" and active != "/search" else None,
        h("span", "", id="pulse", role="status", class_="pulse"),
        class_="top",
    )
    head = (
        h("meta", charset="utf-8"),
        h("meta", name="viewport", content="width=device-width, initial-scale=1"),
        h("meta", name="color-scheme", content="light dark"),
        h("title", f"{title} · Dovetail"),
        h("link", rel="icon", href="data:,"),
        h("link", rel="stylesheet", href="/static/report.css"),
        h("link", rel="stylesheet", href="/static/dashboard.css"),
        h("script", src="/static/dashboard.js", defer=True),
    )
    footer = h("footer", f"Dovetail {__version__}. This page only reads; times are UTC.")
    body = h(
        "body",
        h("a", "Skip to the content", class_="skip", href="#content"),
        header,
        h("main", *content, id="content"),
        footer,
        data_page=kind or None,
    )
    return join([Html("<!DOCTYPE html>\n"), h("html", h("head", *head), body, lang="en")])


def live_page() -> Html:
    """What the servers are doing now; everything on it arrives as events."""
    tiles = h(
        "div",
        *(
            h("a", h("span", name), h("strong", "–", id=f"tile-{key}"), class_="tile", href=target)
            for key, name, target in (
                ("hops", "hops in all journals", "/search?all=1"),
                ("rate", "hops per second", "#servers"),
                ("servers", "servers", "#servers"),
                ("refused", "failed hops", "#reasons"),
                ("now", "current problems", "#alerts"),
                ("errors", "audit errors", "/audit?severity=error#findings"),
                ("warnings", "audit warnings", "/audit?severity=warning#findings"),
            )
        ),
        class_="tiles",
    )
    return page(
        "Live",
        h("section", h("h1", "Live"), tiles, class_="hero"),
        h("section", h("h2", "Alerts"), h("div", id="alerts"), id="alerts-section", hidden=True),
        h("section", h("h2", "Servers"), h("div", id="servers")),
        h("section", h("h2", "Failed hops by reason"), h("div", id="reasons")),
        h(
            "section",
            h("h2", "Server metrics"),
            h("div", id="gauges"),
            id="gauges-section",
            hidden=True,
        ),
        h("noscript", h("p", "This page needs JavaScript.")),
        active="/",
        kind="live",
    )


def search_page(query: Query, servers: Mapping[str, str], given: dict[str, str], problem: str = "") -> Html:
    """The form, and the element for the script's results."""
    return page(
        "Search",
        h(
            "section",
            h("h1", "Search"),
            h(
                "p",
                "Searches every hop of all journals, newest first. All given conditions must match.",
                class_="lead",
            ),
            _search_form(servers, given),
            h("p", problem, class_="problem", role="alert") if problem else None,
            h("div", id="progress", role="status", class_="progress"),
            h("div", id="results"),
            h("div", id="damages"),
            class_="hero",
        ),
        active="/search",
        kind="search" if not (problem or query.is_empty) or given.get("all") else "form",
    )


def _search_form(servers: Mapping[str, str], given: dict[str, str]) -> Html:
    def field(name: str, label: str, placeholder: str = "", kind: str = "text", *, grow: bool = False) -> Html:
        box = h("input", type=kind, name=name, value=given.get(name, ""), placeholder=placeholder or None, step="1")
        return h("label", label, box, class_="grow" if grow else None)

    def choice(name: str, label: str, words: Mapping[str, str]) -> Html:
        options = (
            h("option", word, value=value, selected=given.get(name) == value, title=value)
            for value, word in words.items()
        )
        return h("label", label, h("select", h("option", "any", value=""), *options, name=name))

    return h(
        "form",
        h(
            "div",
            field("any", "Anything", "address, id, URI or text", "search", grow=True),
            h("button", "Search", type="submit", class_="primary"),
            class_="filters",
        ),
        h(
            "details",
            h("summary", "Conditions"),
            h(
                "div",
                field("address", "Address begins with", "hex, or the beginning of a URI", grow=True),
                field("id", "Message id", "6f1e7a46-1c1c-…", grow=True),
                field("uri", "URI of a counterpart", "any part of it", grow=True),
                field("text", "Text in the message", grow=True),
                field("since", "From (UTC)", kind="datetime-local"),
                field("until", "Until (UTC)", kind="datetime-local"),
                choice("stage", "Stage", {stage: stage for stage in Stage}),
                choice("reason", "Reason", {reason: reason for reason in sorted(Reason)}),
                choice("server", "Server", servers),
                class_="filters",
            ),
            open=set(given) != {"any"},
        ),
        action="/search",
        role="search",
    )


def problem_page(title: str, *words: str) -> Html:
    """What is wrong, one line each."""
    lines = (h("p", line, class_="problem") for line in words)
    return page(title, h("section", h("h1", title), *lines, class_="hero"))


def login_page() -> Html:
    """Asks for the token; the script sends it in a header, so that it appears in no URL."""
    form = h(
        "form",
        h("label", "Token", h("input", type="password", name="token", autocomplete="current-password", required=True)),
        h("button", "Enter", type="submit", class_="primary"),
        h("p", "", id="login-problem", class_="problem", role="alert"),
        id="login",
        class_="filters",
    )
    return page(
        "Enter",
        h(
            "section",
            h("h1", "Token"),
            h("p", "This dashboard asks for its token.", class_="lead"),
            form,
            class_="hero",
        ),
        h("noscript", h("p", "Entering needs JavaScript; or send the token as `Authorization: Bearer`.")),
        kind="login",
    )
