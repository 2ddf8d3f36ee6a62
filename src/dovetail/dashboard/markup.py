"""Injection-safe HTML: everything that is not itself markup is escaped, and made visible, here."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from html import escape

from dovetail.report.text import MAX_SHOWN_CHARS, show

_AFTER_SLASH = re.compile(r"(?<=[^/]/)(?!/)")
_EMPTY_TAGS = frozenset({"input", "link", "meta", "br"})


class Html(str):
    """Text that is markup already."""

    __slots__ = ()


def h(tag: str, *content: object, **attributes: object) -> Html:
    """An element. `class_` is the class, underscores become hyphens; None and False are left out, True has no value."""
    written = "".join(
        f" {name.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{escape(str(value))}"')
        for name, value in attributes.items()
        if value is not None and value is not False
    )
    if tag in _EMPTY_TAGS:
        return Html(f"<{tag}{written}>")
    return Html(f"<{tag}{written}>{join(content)}</{tag}>")


def join(content: Iterable[object]) -> Html:
    """Concatenate parts: markup unchanged, everything else as text. None is skipped."""
    return Html("".join(part if isinstance(part, Html) else _write(part) for part in content if part is not None))


def text(words: str, limit: int = MAX_SHOWN_CHARS) -> Html:
    """A peer's text, truncated to `limit`, with nothing invisible in it."""
    return Html(escape(show(words, limit)))


def breakable(words: str) -> Html:
    """Like `text`; lines may break after a slash, so that a long URI is not broken within a word."""
    return Html("<wbr>".join(escape(part) for part in _AFTER_SLASH.split(show(words))))


def prose(words: str) -> Html:
    """A sentence of ours; what is between backticks is code."""
    return join(h("code", part) if number % 2 else part for number, part in enumerate(words.split("`")))


def lines(words: str, limit: int) -> Html:
    """Like `text`, but keeps line breaks."""
    return Html("\n".join(escape(show(line, limit)) for line in words[:limit].split("\n")))


def table(columns: Sequence[str], rows: Iterable[Iterable[object]], class_: str = "") -> Html:
    """A table; a cell is markup, a number, or text. The headings of number columns are aligned with the numbers."""
    known = [list(row) for row in rows]
    first = known[0] if known else []
    kinds = ["number" if isinstance(cell, int) else None for cell in first] or [None for _ in columns]
    head = h("tr", *(h("th", name, scope="col", class_=kind) for name, kind in zip(columns, kinds, strict=True)))
    body = (h("tr", *map(_cell, row, columns)) for row in known)
    whole = h("table", h("thead", head), h("tbody", *body), class_=class_ or None)
    return h("div", whole, class_="scroll", tabindex="0")


def _cell(cell: object, column: str) -> Html:
    if isinstance(cell, Html) and cell.startswith(("<td", "<th")):
        return cell
    if isinstance(cell, int):
        return h("td", f"{cell:,}", class_="number", data_label=column)  # shown where there is no room for headings
    return h("td", cell)


def _write(part: object) -> str:
    return escape(show(str(part)))
