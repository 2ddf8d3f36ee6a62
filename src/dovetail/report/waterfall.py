"""Draws how long a message spent at each server: one bar per server, and the time on the wire between bars."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from dovetail.audit.server_names import name_server_briefly
from dovetail.report import svg
from dovetail.report.text import fit, write_duration

MAX_SERVERS = 40
MAX_MARKS = 400
_MARGIN, _NAMES, _SCALE, _ROW, _TOP, _LABEL = 12, 190, 520, 26, 26, 150
_NAME_CHARS = 25
_LEAST_WIDTH = 3.0


class Seen(Protocol):
    """A hop: where and when."""

    @property
    def server(self) -> str: ...

    @property
    def at_us(self) -> int: ...

    @property
    def stage(self) -> str: ...


def draw_waterfall(hops: Sequence[Seen]) -> str:
    """The servers in the order in which they saw the message; times by each server's own clock."""
    by_server: dict[str, list[Seen]] = {}
    for hop in sorted(hops, key=lambda each: each.at_us):
        by_server.setdefault(hop.server, []).append(hop)
    shown = list(by_server.items())[:MAX_SERVERS]
    begun = min((hop.at_us for _, seen in shown for hop in seen), default=0)
    span = max((hop.at_us for _, seen in shown for hop in seen), default=0) - begun
    parts = [
        svg.text(_x(share * span, span), 14, "0" if not share else f"+{write_duration(share * span)}", class_="small")
        for share in ((0, 0.5, 1) if span else (0,))
    ]
    for row, (server, seen) in enumerate(shown):
        parts.append(_draw_server(server, seen, begun, span, _TOP + row * _ROW))
    bottom = _TOP + len(shown) * _ROW
    if len(by_server) > len(shown):
        parts.append(
            svg.text(_MARGIN, bottom + 16, f"and {len(by_server) - len(shown):,} more servers", class_="small")
        )
        bottom += 20
    took = f"{write_duration(span)} in all" if span else "within one turn"
    label = f"How long the message was at each of {len(by_server):,} servers, {took}."
    return svg.picture(parts, width=_MARGIN + _NAMES + _SCALE + _LABEL, height=bottom + 8, label=label)


def _draw_server(server: str, seen: Sequence[Seen], begun: int, span: int, y: float) -> str:
    first, last = seen[0].at_us - begun, seen[-1].at_us - begun
    start = _x(first, span)
    width = max(_x(last, span) - start, _LEAST_WIDTH)
    stages = ", ".join(dict.fromkeys(str(hop.stage) for hop in seen))
    took = "within one turn" if first == last else write_duration(last - first)
    marks = [
        svg.line(x, y + 4, x, y + 16, class_="tick")
        for x in dict.fromkeys(round(_x(hop.at_us - begun, span), 1) for hop in seen[:MAX_MARKS])
    ]
    return svg.group(
        [
            svg.title(f"{server}: {stages}"),
            svg.text(_MARGIN + _NAMES - 10, y + 14, fit(name_server_briefly(server), _NAME_CHARS), text_anchor="end"),
            svg.element("rect", x=start, y=y + 4, width=width, height=12, rx=2, class_="span"),
            *marks,
            svg.text(start + width + 6, y + 14, took, class_="small"),
        ],
        class_="server",
    )


def _x(after_us: float, span: int) -> float:
    return _MARGIN + _NAMES + (_SCALE * after_us / span if span else 0.0)
