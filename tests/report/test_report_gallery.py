from __future__ import annotations

from pathlib import Path

import pyarrow.compute as pc

from dovetail.audit.tables import Tables
from dovetail.report.findings import addresses_of, order_findings
from dovetail.report.gallery import draw_conversations, draw_dag_examples, draw_findings, draw_spreads
from report.sample_tables import NODES, PEERS, World, add_pcp, address, small_world


def test_conversations_with_trouble_come_first(tables: Tables) -> None:
    pictures = draw_conversations(tables)
    assert len(pictures) == 3
    assert "complete" not in pictures[0].caption.replace("awaiting", "").split("; ")[1].split(", ")[0]
    assert pictures[-1].caption.endswith("; complete")
    assert all("makes s1" in picture.svg for picture in pictures)
    assert "previous" in pictures[0].svg


def test_a_chain_whose_copies_differ_is_not_called_complete(tmp_path: Path) -> None:
    world = small_world()
    chain = next(row for row in world.rows["chains"] if row["fabric"] == "won" and row["state"] == "complete")
    chain["only_at"] = [NODES[0]]
    world.find("chain.copies_differ", "won", chain["message"])
    tables = Tables.open(world.write(tmp_path / "out"))
    findings = order_findings(tables.read("findings", where=pc.field("check") == "chain.copies_differ"))
    ((_, picture),) = draw_findings(tables, findings, [])
    assert picture.caption.partition(";")[0] == "copies differ"


def test_without_won_requests_are_shown(tmp_path: Path) -> None:
    world = World()
    add_pcp(world, messages=80)
    tables = Tables.open(world.write(tmp_path / "out"))
    pictures = draw_conversations(tables)
    assert [picture.caption.rpartition("; ")[2] for picture in pictures] == ["complete", "failed"]


def test_routes_show_who_lacks_it_and_who_asked(tables: Tables) -> None:
    lacking, slowest, typical, many = draw_spreads(tables, PEERS)
    assert lacking.title.startswith("The broadcast that most peers lack")
    assert "11 of 12 peers have it" in lacking.caption
    assert "never" in lacking.svg
    assert "12 of 12 peers have it" in slowest.caption
    assert "asked for it" in slowest.svg
    assert typical.title.startswith("A typical broadcast")
    assert many.caption == "10 of 10 targets have it" or "of 10 targets have it" in many.caption


def test_graphs_show_the_fork_and_what_is_missing(tables: Tables) -> None:
    findings = order_findings(tables.read("findings"))
    cycle, log, gap = draw_dag_examples(tables, findings)
    assert cycle.svg.count("node evidence") == 2
    assert cycle.svg.count('class="edge') >= 2, "what is wrong with it are its lines, so it comes first"
    assert "nobody has it" in gap.svg
    assert log.svg.count("node evidence") == 2
    missing = dict(draw_findings(tables, findings, PEERS))[address("swarm", 20)]
    assert "nobody has it" in missing.svg


def test_each_finding_about_a_message_with_hops_has_its_picture(tables: Tables) -> None:
    findings = order_findings(tables.read("findings"))
    addresses = addresses_of(findings)
    drawn = dict(draw_findings(tables, findings, PEERS))
    assert set(drawn) == set(addresses)
    lost = drawn[address("won", 1, 2, "m")]
    assert lost.kind == "sequence"
    assert "lost" in lost.svg


def test_an_empty_audit_has_no_pictures(empty_tables: Tables) -> None:
    nothing = empty_tables.read("findings")
    assert draw_conversations(empty_tables) == []
    assert draw_spreads(empty_tables, []) == []
    assert draw_dag_examples(empty_tables, nothing) == []
    assert draw_findings(empty_tables, nothing, []) == []
