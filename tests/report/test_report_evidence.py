from __future__ import annotations

from dovetail.audit.tables import Tables
from dovetail.report.evidence import read_chains, read_hops, read_messages, read_neighbourhood
from report.sample_tables import NODES, address


def test_hops_are_in_the_order_of_time(tables: Tables) -> None:
    message = address("won", 0, 0, "m")
    hops = read_hops(tables, [message])[message]
    assert [hop.stage for hop in hops] == ["accepted", "forwarded", "accepted", "delivered"]
    assert [hop.server for hop in hops] == [NODES[0], NODES[0], NODES[1], NODES[1]]
    assert read_hops(tables, [b"nobody"]) == {}


def test_messages_without_bytes_are_left_out(tables: Tables) -> None:
    known = address("pcp", 0)
    found = read_messages(tables, [known, b"\0" * 32])
    assert set(found) == {known}
    assert isinstance(found[known]["created_us"], int)


def test_a_chain_is_found_by_any_of_its_parts(tables: Tables) -> None:
    m, s2 = address("won", 0, 0, "m"), address("won", 0, 0, "s2")
    assert set(read_chains(tables, [s2])) == {m}
    assert set(read_chains(tables, [m])) == {m}


def test_a_neighbourhood_goes_both_ways_and_keeps_what_is_missing(tables: Tables) -> None:
    focus = address("swarm", 20)
    near = read_neighbourhood(tables, [focus], steps=1, limit=1000)
    parents = {link.parent for link in near.links if link.child == focus}
    children = {link.child for link in near.links if link.parent == focus}
    assert address("swarm", "lost")[:8] in parents
    assert any(len(parent) == 32 for parent in parents)
    assert children
    assert children <= set(near.messages)
    further = read_neighbourhood(tables, [focus], steps=2, limit=1000)
    assert set(near.messages) < set(further.messages)


def test_a_neighbourhood_stops_at_its_limit(tables: Tables) -> None:
    assert len(read_neighbourhood(tables, [address("swarm", 20)], steps=50, limit=10).messages) < 40
