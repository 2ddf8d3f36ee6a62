"""The few SVG elements that the diagrams need; text and attributes are escaped only here.

Colours are classes, so that the page's style sheet sets them for dark, light and print.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from dovetail.report.text import show

MAX_TITLE_CHARS = 200


def element(tag: str, content: str = "", /, **attributes: object) -> str:
    """An element; `class_` is the class, underscores in names become hyphens, None is left out."""
    written = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{escape(_number(value))}"'
        for name, value in attributes.items()
        if value is not None
    )
    return f"<{tag}{written}>{content}</{tag}>" if content else f"<{tag}{written}/>"


def text(x: float, y: float, words: str, **attributes: object) -> str:
    """A line of text; `words` may come from a peer."""
    return element("text", escape(show(words)), x=x, y=y, **attributes)


def title(words: str) -> str:
    """The tooltip of an element."""
    return element("title", escape(show(words, MAX_TITLE_CHARS))) if words else ""


def group(parts: Iterable[str], **attributes: object) -> str:
    """A group of elements."""
    return element("g", "".join(parts), **attributes)


def line(x1: float, y1: float, x2: float, y2: float, **attributes: object) -> str:
    """A straight line."""
    return element("line", x1=x1, y1=y1, x2=x2, y2=y2, **attributes)


def picture(parts: Iterable[str], *, width: float, height: float, label: str) -> str:
    """The complete picture; `label` is its text alternative."""
    return element(
        "svg",
        title(label) + "".join(parts),
        class_="diagram",
        viewBox=f"0 0 {_number(width)} {_number(height)}",
        width=width,
        height=height,
        role="img",
        aria_label=show(label, MAX_TITLE_CHARS),
    )


def _number(value: object) -> str:
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else str(value)
