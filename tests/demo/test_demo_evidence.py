"""Each lookup of a fault: finds it if the tables show exactly that fault, and not otherwise."""

import pytest

from demo.demo_tables import address, fault, write_tables
from dovetail.demo.evidence import FINDERS, Tables
from dovetail.demo.faults import Kind

A, B = address("a"), address("b")
NODE = "https://n/won/resource"


def looked_for(path, wanted, **rows):
    return FINDERS[wanted.kind](Tables(write_tables(path, **rows)), wanted)


def assert_found_only_as_given(path, wanted, table, row, changed):
    assert looked_for(path / "as given", wanted, **{table: [row]}).table
    assert looked_for(path / "changed", wanted, **{table: [row | changed]}) is None
    assert looked_for(path / "empty", wanted) is None


@pytest.mark.parametrize(
    ("kind", "outcome", "reason"),
    [
        (Kind.UNAUTHORIZED, "unauthorized", "unauthorized"),
        (Kind.NOBODY, "undeliverable", "no_recipient"),
        (Kind.SLOW_CONSUMER, "undeliverable", "slow_consumer"),
        (Kind.WRONG_WORK, "rejected", "bad_proof_of_work"),
    ],
)
def test_outcomes_of_deliveries(tmp_path, kind, outcome, reason):
    row = {"message": A, "outcome": outcome, "reason": reason}
    assert_found_only_as_given(tmp_path, fault(kind, messages=(A.hex(),)), "deliveries", row, {"reason": "other"})


def test_malformed_bytes_in_the_quarantine(tmp_path):
    wanted = fault(Kind.MALFORMED, messages=(A.hex(),), server="pcp://broker/server")
    row = {"server": "pcp://broker/server", "seq": 7, "message": A, "reason": "malformed"}
    assert_found_only_as_given(tmp_path, wanted, "quarantine", row, {"message": B})


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (Kind.SHARED_ID, "shared_id"),
        (Kind.CYCLE, "cycle"),
        (Kind.OWNER_FORK, "two_creates"),
        (Kind.AGAINST_TIME, "against_time"),
    ],
)
def test_forks_with_their_evidence(tmp_path, kind, name):
    wanted = fault(kind, messages=(A.hex(), B.hex()))
    assert_found_only_as_given(tmp_path, wanted, "forks", {"kind": name, "evidence": [A, B]}, {"evidence": [A]})


def test_a_killed_node_is_found_by_complete_chains_and_a_proven_journal(tmp_path):
    wanted = fault(Kind.KILLED_NODE, server=NODE)
    chain = {"message": A, "kind": "connection", "sender": f"{NODE}/atom/x", "state": "complete", "only_at": []}
    proven = {"integrity": [{"server": NODE, "verdict": "proven", "breaks": []}]}
    broken = {"integrity": [{"server": NODE, "verdict": "broken", "breaks": []}]}
    assert looked_for(tmp_path / "all", wanted, chains=[chain], **proven).table == "chains"
    assert looked_for(tmp_path / "broken", wanted, chains=[chain], **broken) is None
    assert looked_for(tmp_path / "open", wanted, chains=[chain, chain | {"state": "failed"}], **proven) is None
    assert looked_for(tmp_path / "copies", wanted, chains=[chain | {"only_at": [NODE]}], **proven) is None
    assert looked_for(tmp_path / "none", wanted, **proven) is None


def test_a_lost_response_needs_both_the_loss_and_the_lonely_copy(tmp_path):
    wanted = fault(Kind.LOST_RESPONSE, server=NODE, messages=(A.hex(), B.hex()))
    lost = [{"message": B, "outcome": "lost"}]
    chain = {"message": A, "state": "complete", "only_at": [NODE]}
    assert looked_for(tmp_path / "both", wanted, deliveries=lost, chains=[chain]).table == "deliveries"
    assert looked_for(tmp_path / "chain", wanted, chains=[chain]) is None
    assert looked_for(tmp_path / "loss", wanted, deliveries=lost, chains=[chain | {"only_at": []}]) is None


def test_a_bad_signature_is_refused_by_the_node_and_by_the_audit(tmp_path):
    wanted = fault(Kind.BAD_SIGNATURE, messages=(A.hex(),))
    refused = [{"message": A, "outcome": "rejected", "reason": "bad_signature"}]
    invalid = {"fabric": "won", "message": A, "signature": "invalid"}
    assert looked_for(tmp_path / "both", wanted, deliveries=refused, messages=[invalid])
    assert (
        looked_for(tmp_path / "valid", wanted, deliveries=refused, messages=[invalid | {"signature": "valid"}]) is None
    )


def test_a_late_peer_lacks_nothing(tmp_path):
    wanted = fault(Kind.LATE_PEER, server="swarm://x/late")
    row = {"scope": "peer", "peer": "swarm://x/late", "holders": 9, "lacking": 0}
    assert_found_only_as_given(tmp_path, wanted, "coverage", row, {"lacking": 1})


def test_a_reference_to_nothing_is_a_gap_that_nobody_fills(tmp_path):
    wanted = fault(Kind.DANGLING, messages=(A.hex(),))
    assert_found_only_as_given(
        tmp_path, wanted, "gaps", {"child": A, "parent": b"x", "scope": "nobody"}, {"scope": "server"}
    )


@pytest.mark.parametrize(
    ("kind", "check", "seq", "wrong"),
    [
        (Kind.CHANGED_BYTE, "altered_row", 5, {"seq": 6}),
        (Kind.REMOVED_ROW, "removed_rows", 6, {"seq": 5}),
        (Kind.REMOVED_FILE, "missing_file", 0, {"file": "other"}),
    ],
)
def test_tampering_is_found_in_its_file_at_its_row(tmp_path, kind, check, seq, wrong):
    wanted = fault(kind, server=NODE, file="f", seq=5)
    one = {"check": f"integrity.{check}", "file": "f", "seq": seq, "detail": ""}
    row = {"server": NODE, "verdict": "broken", "breaks": [one]}
    assert_found_only_as_given(tmp_path, wanted, "integrity", row, {"breaks": [one | wrong]})
