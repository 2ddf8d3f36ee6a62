from __future__ import annotations

from xml.etree import ElementTree

from hypothesis import given
from hypothesis import strategies as st

from dovetail.report.dag import MAX_NODES, Edge, Node, arrange, draw_dag


def column_of(columns: list[list[bytes]], node: bytes) -> int:
    return next(number for number, column in enumerate(columns) if node in column)


def test_parents_stand_left_of_their_children() -> None:
    plan = arrange([b"c", b"b", b"a"], [(b"c", b"b"), (b"b", b"a"), (b"c", b"a")])
    assert [column_of(plan.columns, node) for node in (b"a", b"b", b"c")] == [0, 1, 2]
    (passed,) = plan.ways[b"c", b"a"]
    assert passed in plan.columns[1]


@given(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), max_size=30))
def test_every_graph_has_a_plan_and_without_cycles_parents_are_left(pairs: list[tuple[int, int]]) -> None:
    nodes = [bytes([number]) for number in range(9)]
    edges = [(bytes([child]), bytes([parent])) for child, parent in pairs]
    plan = arrange(nodes, edges)
    assert sorted(node for column in plan.columns for node in column if len(node) == 1) == nodes
    acyclic = [(child, parent) for child, parent in edges if child > parent]
    plan = arrange(nodes, acyclic)
    for child, parent in acyclic:
        assert column_of(plan.columns, parent) < column_of(plan.columns, child)
        assert len(plan.ways[child, parent]) == column_of(plan.columns, child) - column_of(plan.columns, parent) - 1


def test_missing_and_evidence_and_cycles_can_be_told_apart() -> None:
    nodes = [
        Node(id=b"a", label="a", kind="evidence"),
        Node(id=b"b", label="b", kind="evidence"),
        Node(id=b"x", label="lost", kind="missing"),
    ]
    edges = [
        Edge(child=c, parent=p, relation="refers") for c, p in ((b"a", b"b"), (b"b", b"a"), (b"a", b"x"), (b"a", b"a"))
    ]
    root = ElementTree.fromstring(draw_dag(nodes, edges, label="x"))
    found = sorted(node.get("class", "") for node in root.iter("g"))
    assert found.count("node evidence") == 2
    assert found.count("node missing") == 1
    assert found.count("edge missing") == 1
    assert found.count("edge against") == 2  # the back edge of the cycle, and the self-reference


def test_more_nodes_than_fit_are_counted_and_names_are_escaped() -> None:
    nodes = [Node(id=bytes([number]), label="<b>") for number in range(MAX_NODES + 3)]
    svg = draw_dag(nodes, [], label="x")
    assert "and 3 more" in svg
    assert "<b>" not in svg
