"""Draws a neighbourhood of the message graph: older messages on the left, each reference as a line to its parent.

Layout in three steps, as in layered graph drawing: a message is placed one column right of its youngest parent, the
rows of a column are ordered by the mean row of their neighbours, and the lines are curves. References that would close
a cycle are ignored for the columns but still drawn.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from dovetail.report import svg
from dovetail.report.text import shorten

MAX_NODES = 48
_WIDTH, _HEIGHT, _COLUMN, _ROW, _MARGIN = 138.0, 42.0, 204.0, 58.0, 16.0
_SWEEPS = 4
_LABEL_CHARS = 17

Kind = Literal["focus", "evidence", "known", "missing"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A message; `missing` ones are known only from references."""

    id: bytes
    label: str
    caption: str = ""
    kind: Kind = "known"


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """`child` refers to `parent`."""

    child: bytes
    parent: bytes
    relation: str


def draw_dag(nodes: Sequence[Node], edges: Sequence[Edge], *, label: str) -> str:
    """Draw the neighbourhood; pass the most important nodes first, because only `MAX_NODES` are drawn."""
    shown = {node.id: node for node in nodes[:MAX_NODES]}
    lines = [edge for edge in edges if edge.child in shown and edge.parent in shown]
    plan = arrange(list(shown), [(edge.child, edge.parent) for edge in lines])
    tallest = max((len(column) for column in plan.columns), default=1)
    places = {
        each: (_MARGIN + number * _COLUMN, _MARGIN + 8 + (row + (tallest - len(column)) / 2) * _ROW)
        for number, column in enumerate(plan.columns)
        for row, each in enumerate(column)
    }
    parts = []
    for edge in lines:
        way = [places[each] for each in plan.ways.get((edge.child, edge.parent), [])]
        parts.append(_draw_edge(edge, places[edge.child], way, places[edge.parent], shown[edge.parent].kind))
    parts += [_draw_node(node, *places[each]) for each, node in shown.items()]
    width = 2 * _MARGIN + max(len(plan.columns) - 1, 0) * _COLUMN + _WIDTH
    height = 2 * _MARGIN + tallest * _ROW
    left_out = len(nodes) - len(shown)
    if left_out > 0:
        parts.append(svg.text(_MARGIN, height + 4, f"and {left_out} more", class_="small"))
    return svg.picture(parts, width=width, height=height + (16 if left_out > 0 else 0), label=label)


class Plan(NamedTuple):
    """Columns from left to right; `ways` are the positions that a long line passes, from the child's side."""

    columns: list[list[bytes]]
    ways: dict[tuple[bytes, bytes], list[bytes]]


def arrange(nodes: Sequence[bytes], edges: Sequence[tuple[bytes, bytes]]) -> Plan:
    """Place parents left of their children unless there is a cycle; a line across columns has a position in each."""
    parents: dict[bytes, list[bytes]] = {node: [] for node in nodes}
    for child, parent in edges:
        if child != parent:
            parents[child].append(parent)
    depth = _measure_depth(parents)
    columns: list[list[bytes]] = [[] for _ in range(max(depth.values(), default=-1) + 1)]
    for node in nodes:
        columns[depth[node]].append(node)
    ways: dict[tuple[bytes, bytes], list[bytes]] = {}
    pieces: list[tuple[bytes, bytes]] = []
    for child, parent in edges:
        passed = range(depth[child] - 1, depth[parent], -1)
        ways[child, parent] = [b"way:%d:" % column + child + parent for column in passed]
        for column, place in zip(passed, ways[child, parent], strict=True):
            if place not in columns[column]:
                columns[column].append(place)
        stops = [child, *ways[child, parent], parent]
        pieces += itertools.pairwise(stops)
    return Plan(_order_rows(columns, pieces), ways)


def _measure_depth(parents: dict[bytes, list[bytes]]) -> dict[bytes, int]:
    """The longest path to a node without parents; a reference back into the current path is skipped."""
    depth: dict[bytes, int] = {}
    for start in parents:
        way: dict[bytes, int] = {}
        stack = [(start, False)]
        while stack:
            node, is_done = stack.pop()
            if is_done:
                way.pop(node)
                depth[node] = max((depth[parent] + 1 for parent in parents[node] if parent in depth), default=0)
            elif node not in depth and node not in way:
                way[node] = 0
                stack.append((node, True))
                stack += [(parent, False) for parent in parents[node]]
    return depth


def _order_rows(columns: list[list[bytes]], edges: Sequence[tuple[bytes, bytes]]) -> list[list[bytes]]:
    neighbours: dict[bytes, list[bytes]] = {}
    for child, parent in edges:
        neighbours.setdefault(child, []).append(parent)
        neighbours.setdefault(parent, []).append(child)
    for sweep in range(_SWEEPS):
        row = {node: number - len(column) / 2 for column in columns for number, node in enumerate(column)}
        for column in columns if sweep % 2 == 0 else reversed(columns):
            column.sort(key=lambda node: _mean([row[other] for other in neighbours.get(node, [])], row[node]))
            row.update({node: number - len(column) / 2 for number, node in enumerate(column)})
    return columns


def _mean(values: list[float], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise


def _draw_node(node: Node, x: float, y: float) -> str:
    return svg.group(
        [
            svg.title(f"{node.label} {node.caption} {node.id.hex()}"),
            svg.element("rect", x=x, y=y, width=_WIDTH, height=_HEIGHT, rx=7, class_="box"),
            svg.text(x + _WIDTH / 2, y + 17.5, shorten(node.label, _LABEL_CHARS), text_anchor="middle", class_="name"),
            svg.text(x + _WIDTH / 2, y + 33, shorten(node.caption, 22), text_anchor="middle", class_="small"),
        ],
        class_=f"node {node.kind}",
    )


def _draw_edge(
    edge: Edge,
    child: tuple[float, float],
    way: list[tuple[float, float]],
    parent: tuple[float, float],
    parent_kind: Kind,
) -> str:
    kind = "edge missing" if parent_kind == "missing" else "edge"
    middle = _HEIGHT / 2
    if child[0] > parent[0]:
        end = (parent[0] + _WIDTH, parent[1] + middle)
        path = f"M{child[0]:.1f} {child[1] + middle:.1f}"
        at = (child[0], child[1] + middle)
        for x, y in way:
            path += _curve(at, (x + _WIDTH, y + middle)) + f"H{x:.1f}"
            at = (x, y + middle)
        path += _curve(at, (end[0] + 7, end[1]))
        head = f"M{end[0] + 1:.1f} {end[1]:.1f}l8 -4v8Z"
    else:
        # against the column order: a cycle, a message that names itself, or one in the same column
        kind += " against"
        is_itself = edge.child == edge.parent
        start, stop = (
            child[0] + _WIDTH / 2 - (20 if is_itself else 0),
            parent[0] + _WIDTH / 2 + (20 if is_itself else 0),
        )
        lift = 22 + abs(child[1] - parent[1]) / 4
        path = f"M{start:.1f} {child[1]:.1f}C{start:.1f} {child[1] - lift:.1f} {stop:.1f} {parent[1] - lift:.1f}"
        path += f" {stop:.1f} {parent[1] - 6:.1f}"
        head = f"M{stop:.1f} {parent[1]:.1f}l-4 -8h8Z"
    return svg.group(
        [
            svg.title(edge.relation.replace("_", " ")),
            svg.element("path", d=path, class_="curve", fill="none"),
            svg.element("path", d=head, class_="head"),
        ],
        class_=kind,
    )


def _curve(start: tuple[float, float], end: tuple[float, float]) -> str:
    bend = max((start[0] - end[0]) / 2, 20)
    return f"C{start[0] - bend:.1f} {start[1]:.1f} {end[0] + bend:.1f} {end[1]:.1f} {end[0]:.1f} {end[1]:.1f}"
