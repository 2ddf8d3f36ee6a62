"""Draws how a message spread: when each receiver got it, from whom, and which never did."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from dovetail.audit.server_names import name_server_briefly
from dovetail.report import svg
from dovetail.report.text import fit, shorten, write_duration

MAX_RECEIVERS = 40
_NAMES, _PLOT, _ROW, _TOP, _MARGIN, _TAIL = 204.0, 520.0, 24.0, 40.0, 12.0, 120.0
_NAME_CHARS = 25
_TICKS = 5

How = Literal["origin", "pushed", "pulled", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """When one receiver got it: `after_us` counts from the origin; None is never."""

    receiver: str
    after_us: int | None
    via: str | None = None
    how: How = "pushed"
    note: str = ""


def draw_spread(arrivals: Sequence[Arrival], *, label: str) -> str:
    """A row per receiver in order of arrival, time to the right, a line from its source."""
    ordered = sorted(arrivals, key=lambda each: (each.after_us is None, each.after_us or 0, each.receiver))
    shown = _choose(ordered)
    longest = max((each.after_us for each in shown if each.after_us is not None), default=0) or 1
    rows = {each.receiver: _TOP + (number + 0.5) * _ROW for number, each in enumerate(shown)}
    places = {
        each.receiver: (_place(each.after_us, longest), rows[each.receiver])
        for each in shown
        if each.after_us is not None
    }
    bottom = _TOP + len(shown) * _ROW
    parts = [_draw_axis(longest, bottom)]
    parts += [_draw_hand(each, places) for each in shown if each.via in places and each.receiver in places]
    parts += [_draw_arrival(each, rows[each.receiver], longest) for each in shown]
    left_out = len(ordered) - len(shown)
    if left_out:
        parts.append(svg.text(_MARGIN, bottom + 18, f"and {left_out} more", class_="small"))
    width = _MARGIN + _NAMES + _PLOT + _TAIL
    return svg.picture(parts, width=width, height=bottom + (28 if left_out else 12), label=label)


def _choose(ordered: list[Arrival]) -> list[Arrival]:
    """The first and the last ones: those in between are the least informative."""
    if len(ordered) <= MAX_RECEIVERS:
        return ordered
    first = MAX_RECEIVERS // 2
    return ordered[:first] + ordered[len(ordered) - (MAX_RECEIVERS - first) :]


def _place(after_us: int, longest: int) -> float:
    return _MARGIN + _NAMES + _PLOT * max(after_us, 0) / longest


def _draw_axis(longest: int, bottom: float) -> str:
    step = _round_step(longest / _TICKS)
    parts = []
    for number in range(int(longest / step) + 1):
        x = _place(round(number * step), longest)
        parts.append(svg.line(x, _TOP - 8, x, bottom, class_="grid"))
        parts.append(
            svg.text(
                x, _TOP - 15, write_duration(number * step) if number else "0", text_anchor="middle", class_="small"
            )
        )
    return svg.group(parts, class_="axis")


def _round_step(rough: float) -> float:
    power = 10.0 ** math.floor(math.log10(max(rough, 1)))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough or factor == 10)


def _draw_hand(arrival: Arrival, places: dict[str, tuple[float, float]]) -> str:
    (x1, y1), (x2, y2) = places[arrival.via or ""], places[arrival.receiver]
    middle = (x1 + x2) / 2
    path = f"M{x1:.1f} {y1:.1f}C{middle:.1f} {y1:.1f} {middle:.1f} {y2:.1f} {x2:.1f} {y2:.1f}"
    return svg.element("path", d=path, class_=f"hand {arrival.how}", fill="none")


def _draw_arrival(arrival: Arrival, y: float, longest: int) -> str:
    name = fit(name_server_briefly(arrival.receiver), _NAME_CHARS)
    parts = [
        svg.title(f"{arrival.receiver} {arrival.note}"),
        svg.line(_MARGIN + _NAMES, y, _MARGIN + _NAMES + _PLOT, y, class_="track"),
        svg.text(_MARGIN + _NAMES - 12, y + 4, name, text_anchor="end", class_="words"),
    ]
    if arrival.after_us is None:
        x = _MARGIN + _NAMES + _PLOT
        parts.append(svg.element("path", d=f"M{x - 5:.1f} {y - 5:.1f}l10 10m0 -10l-10 10", class_="cross", fill="none"))
        words = arrival.note or "never"
    else:
        x = _place(arrival.after_us, longest)
        parts.append(svg.element("circle", cx=x, cy=y, r=7 if arrival.how == "origin" else 5, class_="dot"))
        words = {"origin": "origin", "pulled": "asked for it"}.get(arrival.how, arrival.note)
    parts.append(svg.text(x + 12, y + 4, shorten(words, 18), class_="small"))
    return svg.group(parts, class_=f"arrival {'failed' if arrival.after_us is None else arrival.how}")
