from __future__ import annotations

import sqlite3

import pytest

from dovetail.journal.journal import Journal, JournalOptions
from dovetail.journal.purge import purge_step
from dovetail.journal.source import JournalSource
from dovetail.journal.writer import JournalWriter
from dovetail.model.address import address_of
from dovetail.model.errors import DovetailError, ReceiptError
from dovetail.model.hop import Observation, Stage
from dovetail.receipt.build import BuildOptions, build_receipt
from dovetail.receipt.verify import verify_receipt
from journal.worlds import expiring
from receipt import receipt_samples as samples

TRUSTED = samples.verifiers()


def build(journals, address, **options):
    sources = [JournalSource.open(path) for path in journals]
    try:
        return build_receipt(sources, address, BuildOptions(**options))
    finally:
        for source in sources:
            source.__exit__(None, None, None)


def test_a_redacted_receipt_has_the_address_and_not_the_bytes(tmp_path):
    case = samples.pcp_case(tmp_path)
    data = case.build(redact=True)
    assert b"restart the pump" not in data
    proof = verify_receipt(data, TRUSTED)
    assert proof.subject == case.address
    assert any(limit.startswith("what it says") for limit in proof.not_proven)


def test_redacting_a_won_message_keeps_the_responses_that_prove_its_fate(tmp_path):
    data = samples.won_case(tmp_path).build(redact=True)
    assert b"ladder" not in data
    assert len(verify_receipt(data, TRUSTED).messages) == 3


def test_one_recipient_can_be_chosen(tmp_path):
    data = samples.pcp_case(tmp_path).build(counterparts=frozenset({f"{samples.AGENT}2"}))
    assert [hop.counterpart for hop in verify_receipt(data, TRUSTED).hops] == [
        samples.CONTROLLER,
        f"{samples.AGENT}2",
    ]


def test_one_node_alone_gives_a_receipt_of_what_it_saw(tmp_path):
    case = samples.won_case(tmp_path)
    proof = verify_receipt(build(case.journals[:1], case.address).data, samples.verifiers(samples.NODE_A))
    assert {hop.server for hop in proof.hops} == {samples.NODE_A}
    assert len(proof.messages) == 3


def test_responses_can_be_named(tmp_path):
    case = samples.won_case(tmp_path)
    _, s1, s2 = samples.won_chain()
    proof = verify_receipt(case.build(related=[s2.address]), TRUSTED)
    assert [message.address for message in proof.messages] == [case.address, s2.address]
    other = samples.Case(s1.address, case.journals)
    with pytest.raises(ReceiptError, match="no bytes here that respond"):
        other.build(related=[s2.address])


def test_responses_are_searched_only_so_far(tmp_path):
    case = samples.won_case(tmp_path)
    assert len(verify_receipt(case.build(search_hops=1), TRUSTED).messages) == 1
    assert len(verify_receipt(case.build(search_hops=2), TRUSTED).messages) == 2


def test_receipts_of_responses_are_receipts_too(tmp_path):
    case = samples.won_case(tmp_path)
    _, s1, _ = samples.won_chain()
    proof = verify_receipt(samples.Case(s1.address, case.journals).build(), TRUSTED)
    assert proof.subject == s1.address
    assert len(proof.messages) == 1


def test_a_live_journal_gives_receipts_of_what_is_signed(tmp_path):
    raw = samples.pcp_message()
    address = address_of(raw)
    accepted = Observation(
        at_us=samples.T0, stage=Stage.ACCEPTED, message=address, counterparts=(samples.CONTROLLER,), raw=raw
    )
    delivered = Observation(at_us=samples.T0, stage=Stage.DELIVERED, message=address, counterparts=(samples.AGENT,))
    path = tmp_path / "live.journal"
    signer = samples.signer_of(samples.BROKER)
    journal = Journal.open(
        path, server=samples.BROKER, signer=signer, options=JournalOptions(checkpoint_interval_s=3600)
    )
    try:
        journal.append([accepted])
        with pytest.raises(ReceiptError, match="no signed checkpoint covers"):
            build([path], address)
        journal.checkpoint()
        journal.append([delivered])
        built = build([path], address)
        assert built.remarks == [f"1 hops of {samples.BROKER} are not signed yet and left out"]
        assert [hop.stage for hop in verify_receipt(built.data, TRUSTED).hops] == [Stage.ACCEPTED]
        journal.checkpoint()
        assert len(verify_receipt(build([path], address).data, TRUSTED).hops) == 2
    finally:
        journal.close()


def test_a_purged_message_keeps_its_receipt_without_bytes(tmp_path):
    expires_us = samples.T0 + 1
    raw = expiring(b"short-lived", expires_us)
    address = address_of(raw)
    path = tmp_path / "broker.journal"
    signer = samples.signer_of(samples.BROKER)
    with JournalWriter.open(path, server=samples.BROKER, signer=signer, durability="relaxed") as writer:
        writer.append(
            [Observation(at_us=samples.T0, stage=Stage.ACCEPTED, message=address, raw=raw, expires_us=expires_us)]
        )
        writer.checkpoint()
        assert purge_step(writer, now_us=expires_us) == 1
        writer.checkpoint()
    built = build([path], address)
    assert "not kept any more" in built.remarks[0]
    assert [hop.stage for hop in verify_receipt(built.data, TRUSTED).hops] == [Stage.ACCEPTED, Stage.PURGED]


def test_cut_bytes_are_not_passed_off_as_the_message(tmp_path):
    whole = b"x" * 5000
    observation = Observation(
        at_us=samples.T0, stage=Stage.REJECTED, message=address_of(whole), raw=whole[:100], size=len(whole)
    )
    path = samples.write(tmp_path / "b.journal", samples.BROKER, [observation])
    built = build([path], address_of(whole))
    assert "not all of it" in built.remarks[0]
    (hop,) = verify_receipt(built.data, TRUSTED).hops
    assert hop.size == 5000


@pytest.mark.parametrize("before", [0, 1, 2, 255, 256, 257, 700])
@pytest.mark.parametrize("after", [0, 1, 300])
def test_every_place_in_the_tree_can_be_proven(tmp_path, before, after):
    data = samples.pcp_case(tmp_path, before=before, after=after).build()
    assert verify_receipt(data, TRUSTED).signatories[0].checkpoint.size == before + 4 + after


def test_a_tampered_journal_gives_no_receipt(tmp_path):
    case = samples.pcp_case(tmp_path)
    with sqlite3.connect(case.journals[0]) as connection:
        connection.execute("UPDATE names SET name = 'pcp://agent9.example/agent' WHERE name = ?", (samples.AGENT,))
    connection.close()
    with pytest.raises(DovetailError, match="inclusion"):
        case.build()


def test_a_checkpoint_beyond_the_journal_is_refused(tmp_path):
    case = samples.pcp_case(tmp_path / "1")
    longer = samples.pcp_case(tmp_path / "2", after=50)
    with JournalSource.open(longer.journals[0]) as source:
        note = source.latest_checkpoint()
    with pytest.raises(ReceiptError, match=r"a checkpoint of 57 hops of .*, of which 11 are signed here"):
        case.build(notes=[note])


def test_building_is_deterministic(tmp_path):
    case = samples.swarm_case(tmp_path)
    assert case.build() == case.build()
