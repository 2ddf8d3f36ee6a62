"""Draws a conversation as a sequence diagram of its chains: who sent what to whom, and when."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from dovetail.audit.server_names import name_server_briefly
from dovetail.model.fabric import Role
from dovetail.report import svg
from dovetail.report.text import fit, shorten, write_duration

ROLES = {None: "m", Role.FIRST: "s1", Role.SECOND: "s2", Role.FAILURE: "failure"}
"""Names of messages by role; None is a message that answers nothing."""
MAX_ARROWS = 48
MAX_ACTORS = 8
MAX_REFERENCES = 10

_MARGIN, _TIME_COLUMN, _COLUMN, _HEADER, _ROW = 12, 76, 180, 58, 35
_ARC_STEP, _MADE_LABEL, _NAME_CHARS, _LEGEND = 22, 108, 19, 30

_DASHES = {"responding_to": "3 3", "previous": "1.5 4", "refers": "8 4", "in_reply_to": "12 3 2 3"}
"""The dash pattern of each relation."""

Mark = Literal["arrived", "lost", "refused", "made"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrow:
    """Something that went from one actor to another, or was made by one (`made`, source and target are the same)."""

    role: str
    """One of `ROLES`: determines the colour."""
    label: str
    source: str
    target: str
    at_us: int
    mark: Mark = "arrived"
    note: str = ""
    message: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """A message names an earlier one."""

    child: bytes
    parent: bytes
    relation: str


def draw_sequence(arrows: Sequence[Arrow], references: Sequence[Reference] = (), *, label: str) -> str:
    """Draw the arrows in order from top to bottom; what exceeds the limits is left out, with a note."""
    shown = list(arrows[:MAX_ARROWS])
    actors = _order_actors(shown)[:MAX_ACTORS]
    shown = [arrow for arrow in shown if arrow.source in actors and arrow.target in actors]
    left = _MARGIN + _TIME_COLUMN + _COLUMN / 2
    places = {actor: left + number * _COLUMN for number, actor in enumerate(actors)}
    arcs = _place_references(shown, references)
    is_labelled = any(arrow.mark == "made" and arrow.source == actors[-1] for arrow in shown)
    right = left + (max(len(actors), 1) - 1) * _COLUMN + (_MADE_LABEL if is_labelled else 34)
    lanes = max((lane for *_, lane in arcs), default=0)
    boxes = left + (max(len(actors), 1) - 0.5) * _COLUMN
    width = max(right + (_ARC_STEP * (lanes + 2) if arcs else _COLUMN / 2), boxes)
    bottom = _HEADER + (len(shown) + 0.6) * _ROW
    left_out = len(arrows) - len(shown)
    parts = [_draw_actor(actor, x, bottom) for actor, x in places.items()]
    times = _name_times(shown)
    parts += [_draw_arrow(arrow, places, _row_y(row), times[row]) for row, arrow in enumerate(shown)]
    parts += [_draw_reference(*arc, right) for arc in arcs]
    if left_out:
        parts.append(svg.text(_MARGIN, bottom + 22, f"and {left_out} more", class_="small"))
        bottom += 20
    if arcs:
        parts.append(_draw_legend(sorted({relation for _, _, relation, _ in arcs}), bottom + _LEGEND - 8))
        bottom += _LEGEND
    return svg.picture(parts, width=width, height=bottom + 14, label=label)


def _name_times(arrows: Sequence[Arrow]) -> list[str]:
    """The time of each row, relative to the first; a time equal to that of the row above is not repeated."""
    begun = min((arrow.at_us for arrow in arrows), default=0)
    words = ["0" if arrow.at_us == begun else f"+{write_duration(arrow.at_us - begun)}" for arrow in arrows]
    return [text if row == 0 or text != words[row - 1] else "" for row, text in enumerate(words)]


def _order_actors(arrows: Sequence[Arrow]) -> list[str]:
    seen: dict[str, None] = {}
    for arrow in arrows:
        seen.setdefault(arrow.source)
        seen.setdefault(arrow.target)
    return list(seen)


def _row_y(row: int) -> float:
    return _HEADER + (row + 0.7) * _ROW


def _draw_actor(actor: str, x: float, bottom: float) -> str:
    return svg.group(
        [
            svg.title(actor),
            svg.line(x, _HEADER - 14, x, bottom, class_="lifeline"),
            svg.element("rect", x=x - _COLUMN / 2 + 6, y=8, width=_COLUMN - 12, height=34, rx=6, class_="actor"),
            svg.text(x, 29.5, fit(name_server_briefly(actor), _NAME_CHARS), text_anchor="middle", class_="name"),
        ]
    )


def _draw_arrow(arrow: Arrow, places: dict[str, float], y: float, when: str) -> str:
    start, end = places[arrow.source], places[arrow.target]
    parts = [
        svg.title(f"{arrow.label}: {arrow.source} → {arrow.target} {arrow.note}".strip()),
        svg.text(_MARGIN + _TIME_COLUMN - 10, y + 4, when, text_anchor="end", class_="small"),
    ]
    if arrow.mark == "made":
        parts += [
            svg.element("circle", cx=start, cy=y, r=4.5, class_="dot"),
            svg.text(start + 10, y + 4, shorten(f"makes {arrow.label}", 22), class_="words"),
        ]
        return svg.group(parts, class_=f"arrow role-{_role_class(arrow.role)}")
    forward = 1 if end >= start else -1
    stop = start + (end - start) * 0.62 if arrow.mark == "lost" else end - forward * 2
    chars = max(int(abs(end - start) / 7.2) - 2, 12)
    above = 6 if arrow.mark == "arrived" else 9.5  # above the cross, if there is one
    words = f"{arrow.label}  {arrow.note}".strip()
    parts += [
        svg.line(start, y, stop - forward * 7, y, class_="shaft"),
        svg.text((start + end) / 2, y - above, shorten(words, chars), text_anchor="middle", class_="words"),
    ]
    if arrow.mark == "arrived":
        parts.append(_draw_head(stop, y, forward))
    else:
        parts.append(
            svg.element("path", d=f"M{stop - 6:.1f} {y - 6:.1f}l12 12m0 -12l-12 12", class_="cross", fill="none")
        )
    return svg.group(parts, class_=f"arrow role-{_role_class(arrow.role)} {arrow.mark}")


def _draw_head(x: float, y: float, forward: int) -> str:
    back = x - forward * 9
    return svg.element("path", d=f"M{x:.1f} {y:.1f}L{back:.1f} {y - 4.5:.1f}L{back:.1f} {y + 4.5:.1f}Z", class_="head")


def _role_class(role: str) -> str:
    return role if role in ROLES.values() else ROLES[None]


def _place_references(arrows: Sequence[Arrow], references: Sequence[Reference]) -> list[tuple[int, int, str, int]]:
    """Rows at which child and parent first appear, and a lane for each, such that no two in a lane overlap."""
    rows: dict[bytes, int] = {}
    for row, arrow in enumerate(arrows):
        rows.setdefault(arrow.message, row)
    arcs = {
        (rows[each.child], rows[each.parent], each.relation)
        for each in references
        if each.child in rows and each.parent in rows and each.child != each.parent
    }
    lanes: list[list[tuple[int, int]]] = []
    placed = []
    for child, parent, relation in sorted(arcs, key=lambda arc: (abs(arc[0] - arc[1]), arc))[:MAX_REFERENCES]:
        low, high = sorted((child, parent))
        lane = next((n for n, taken in enumerate(lanes) if all(high <= a or b <= low for a, b in taken)), len(lanes))
        if lane == len(lanes):
            lanes.append([])
        lanes[lane].append((low, high))
        placed.append((child, parent, relation, lane))
    return placed


def _draw_reference(child: int, parent: int, relation: str, lane: int, right: float) -> str:
    top, bottom = _row_y(parent) + 3, _row_y(child) - 3
    reach = right + _ARC_STEP * (lane + 1)
    bend = 6 if bottom > top else -6
    path = (
        f"M{right:.1f} {bottom:.1f}H{reach - 6:.1f}q6 0 6 {-bend}V{top + bend:.1f}q0 {-bend} -6 {-bend}H{right + 8:.1f}"
    )
    words = relation.replace("_", " ")
    return svg.group(
        [
            svg.title(words),
            svg.element("path", d=path, class_="reference", fill="none", stroke_dasharray=_DASHES.get(relation)),
            _draw_head(right + 1, top, -1),
        ],
        class_="references",
    )


def _draw_legend(relations: Sequence[str], y: float) -> str:
    """The meaning of the lines at the right, which have no room for labels."""
    parts = []
    x = float(_MARGIN)
    for relation in relations:
        words = relation.replace("_", " ")
        line = svg.element("path", d=f"M{x:.1f} {y:.1f}h26", class_="reference", stroke_dasharray=_DASHES.get(relation))
        parts += [line, svg.text(x + 32, y + 4, words, class_="small words")]
        x += 32 + 7 * len(words) + 22
    return svg.group(parts, class_="references")
