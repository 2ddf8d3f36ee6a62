from __future__ import annotations

import json

import pytest

from dovetail.journal.source import JournalSource
from dovetail.journal.writer import JournalWriter
from dovetail.model.errors import ReceiptError
from dovetail.receipt.proof import Policy
from dovetail.receipt.verify import verify_receipt
from dovetail.receipt.witness import CosignRequest, Witness, decode_request, encode_request, merge_notes
from dovetail.receipt.witness_memory import remember, remembered_checkpoints
from dovetail.tlog.checkpoint import Checkpoint, parse_checkpoint, sign_checkpoint
from dovetail.tlog.keys import Signer
from dovetail.tlog.note import cosign
from dovetail.tlog.tree import prove_consistency
from receipt import receipt_samples as samples
from receipt.independent_checker import check
from receipt.tampering import alterations, encode

TRUSTED = samples.verifiers()
NOW_S = samples.T0 // 1_000_000 + 60
W1, W2 = (samples.signer_of(name) for name in samples.WITNESSES)


@pytest.fixture
def case(tmp_path):
    return samples.pcp_case(tmp_path)


def request_of(case: samples.Case, old_size: int = 0) -> CosignRequest:
    with JournalSource.open(case.journals[0]) as source:
        signed = source.latest_checkpoint()
        return CosignRequest(old_size, tuple(prove_consistency(old_size, signed.size, source.node)), signed.note)


def grow(case: samples.Case, hops: int) -> None:
    signer = samples.signer_of(samples.BROKER)
    with JournalWriter.open(case.journals[0], server=samples.BROKER, signer=signer, durability="relaxed") as writer:
        writer.append([samples.noise(7_000_000 + writer.size + number) for number in range(hops)])
        writer.checkpoint()


def cosigned(case: samples.Case) -> bytes:
    notes = [Witness(signer, TRUSTED).cosign(request_of(case), NOW_S) for signer in (W1, W2)]
    return case.build(notes=[merge_notes(notes, TRUSTED)], witnesses=[W1.verifier, W2.verifier])


def test_a_receipt_carries_what_witnesses_saw(case):
    proof = verify_receipt(cosigned(case), TRUSTED)
    (signatory,) = proof.signatories
    assert [(c.witness.name, c.at_s) for c in signatory.witnesses] == [(W1.name, NOW_S), (W2.name, NOW_S)]
    assert proof.witnessed[1] == (
        f"{W2.name} saw that signed journal of {samples.BROKER} at 2025-11-15T20:01:00.000000Z, "
        "and that it had only grown since it last looked"
    )
    assert not any("no trusted witness" in limit for limit in proof.not_proven)


def test_the_independent_checker_checks_cosignatures_too(case):
    pairs = {(samples.BROKER, samples.signer_of(samples.BROKER).verifier.public_key)}
    data = cosigned(case)
    assert check(data, pairs) == list(verify_receipt(data, TRUSTED).claims)


def test_unknown_witnesses_count_for_nothing_but_must_be_genuine(case, receipts):
    proof = verify_receipt(cosigned(case), samples.verifiers(samples.BROKER))
    assert proof.signatories[0].witnesses == ()
    assert not any(name in claim for claim in (*proof.claims, *proof.witnessed) for name in samples.WITNESSES)
    assert proof.signatories[0].unknown_witnesses == samples.WITNESSES
    for what, data in alterations(cosigned(case), receipts["swarm"]):
        with pytest.raises(ReceiptError):
            pytest.fail(f"accepted {what}: {verify_receipt(data, samples.verifiers(samples.BROKER))}")


def test_one_key_under_two_names_counts_once_and_the_servers_own_key_not_at_all(case):
    """Keys are roles, names are not: one key is one witness."""
    broker = samples.signer_of(samples.BROKER)
    names = ("witness.example/alias", "witness.example/broker")
    doubles = [Signer(names[0], W1.private_key), Signer(names[1], broker.private_key)]
    signers = [W1, *doubles]
    trusted = [*TRUSTED, *(signer.verifier for signer in doubles)]
    note = request_of(case).note
    notes = [note + cosign(parse_checkpoint(note).checkpoint, signer, NOW_S) for signer in signers]
    witnesses = [signer.verifier for signer in signers]
    data = case.build(notes=[merge_notes(notes, trusted)], witnesses=witnesses)
    (signatory,) = verify_receipt(data, trusted, Policy(witnesses=1)).signatories
    assert len(signatory.witnesses) == 1
    assert signatory.witnesses[0].witness.public_key == W1.verifier.public_key
    with pytest.raises(ReceiptError, match="witnesses: 1 trusted witnesses cosigned"):
        verify_receipt(data, trusted, Policy(witnesses=2))
    pairs = {(key.name, key.public_key) for key in trusted}
    check(data, pairs, 1)
    with pytest.raises(ValueError, match="quorum"):
        check(data, pairs, 2)


@pytest.mark.parametrize("is_alias", [False, True])
@pytest.mark.parametrize("server", [samples.NODE_A, samples.PEERS[0], "pcp://not-trusted/server"])
def test_no_servers_key_counts_as_a_witness_whatever_its_name(case, server, is_alias):
    """A trusted server's key says what that server did; that it says more about others takes a key for this purpose."""
    own = samples.signer_of(server)
    signer = Signer("witness.example/alias", own.private_key) if is_alias else own
    trusted = [*TRUSTED, own.verifier, signer.verifier]
    note = request_of(case).note
    note += cosign(parse_checkpoint(note).checkpoint, signer, NOW_S)
    data = case.build(notes=[merge_notes([note], trusted)], witnesses=[signer.verifier])
    assert verify_receipt(data, trusted).signatories[0].witnesses == ()
    with pytest.raises(ReceiptError, match="witnesses: 0 trusted witnesses cosigned"):
        verify_receipt(data, trusted, Policy(witnesses=1))
    with pytest.raises(ValueError, match="quorum"):
        check(data, {(key.name, key.public_key) for key in trusted}, 1)


@pytest.mark.parametrize("server", [samples.BROKER, samples.NODE_A])
def test_a_server_cannot_be_a_witness_under_another_name(case, server):
    alias = Signer("witness.example/alias", samples.signer_of(server).private_key)
    with pytest.raises(ReceiptError, match=r"^witness: .* has the name or the key of a server"):
        Witness(alias, TRUSTED).cosign(request_of(case), NOW_S)


def test_a_quorum_can_be_asked_for(case):
    verify_receipt(cosigned(case), TRUSTED, Policy(witnesses=2))
    with pytest.raises(ReceiptError, match=r"^witnesses: 1 trusted witnesses .* expected at least 2"):
        verify_receipt(cosigned(case), [*samples.verifiers(samples.BROKER), W1.verifier], Policy(witnesses=2))


def test_expired_and_future_checkpoints_are_refused(case):
    data = cosigned(case)
    now_us = NOW_S * 1_000_000
    verify_receipt(data, TRUSTED, Policy(now_us=now_us + 100_000_000, max_age_s=100))
    with pytest.raises(ReceiptError, match=r"^time: no trusted witness saw .* in the last 100 seconds"):
        verify_receipt(data, TRUSTED, Policy(now_us=now_us + 101_000_000, max_age_s=100))
    with pytest.raises(ReceiptError, match=r"^time: the cosignature of .* lies 301 seconds in the future"):
        verify_receipt(data, TRUSTED, Policy(now_us=now_us - 301_000_000))
    with pytest.raises(ReceiptError, match=r"^time: no trusted witness"):
        verify_receipt(case.build(), TRUSTED, Policy(now_us=now_us, max_age_s=100))


def test_a_witness_follows_growth(case):
    witness = Witness(W1, TRUSTED)
    witness.cosign(request_of(case), NOW_S)
    grow(case, 100)
    witness.cosign(request_of(case, 11), NOW_S + 1)
    assert witness.remembered(samples.BROKER).size == 111


def test_a_witness_refuses_a_rewritten_journal(case, tmp_path):
    witness = Witness(W1, TRUSTED)
    witness.cosign(request_of(case), NOW_S)
    other = samples.pcp_case(tmp_path / "other", before=9, after=90)
    with pytest.raises(ReceiptError, match=r"^witness: .* did not only grow"):
        witness.cosign(request_of(other, 11), NOW_S)
    same_size = samples.pcp_case(tmp_path / "same", before=2, after=5)
    with pytest.raises(ReceiptError, match=r"two different roots"):
        witness.cosign(request_of(same_size, 11), NOW_S)
    assert witness.remembered(samples.BROKER).size == 11


def test_a_witness_refuses_to_start_again_from_nothing(case):
    witness = Witness(W1, TRUSTED)
    witness.cosign(request_of(case), NOW_S)
    with pytest.raises(ReceiptError, match=r"^witness: the request proves growth from 0 hops"):
        witness.cosign(request_of(case), NOW_S)


def test_a_witness_refuses_strangers_itself_and_shrinking(case):
    with pytest.raises(ReceiptError, match=r"^witness: no trusted key"):
        Witness(W1, []).cosign(request_of(case), NOW_S)
    with pytest.raises(ReceiptError, match=r"^witness: .* has the name or the key of a server"):
        Witness(samples.signer_of(samples.BROKER), TRUSTED).cosign(request_of(case), NOW_S)
    witness = Witness(W1, TRUSTED, [Checkpoint(samples.BROKER, 99, bytes(32))])
    smaller = sign_checkpoint(Checkpoint(samples.BROKER, 5, bytes(32)), samples.signer_of(samples.BROKER))
    with pytest.raises(ReceiptError, match=r"cannot shrink"):
        witness.cosign(CosignRequest(99, (), smaller.note), NOW_S)


def test_a_server_is_no_witness_of_itself(case):
    """Even if such a signature line is made by other means."""
    from dovetail.receipt.format import carry_note
    from dovetail.tlog.note import cosign

    own = samples.signer_of(samples.BROKER)
    note = request_of(case).note
    line = cosign(parse_checkpoint(note).checkpoint, own, NOW_S)
    signed = parse_checkpoint(carry_note(note + line, [own.verifier]).checkpoint)
    data = case.build(notes=[signed], witnesses=[own.verifier])
    assert verify_receipt(data, TRUSTED).signatories[0].witnesses == ()


def test_requests_survive_the_wire(case):
    request = request_of(case, 3)
    assert decode_request(encode_request(request)) == request


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"old 3",
        b"old -1\n\nx",
        b"new 3\n\nx",
        b"old 3\nzzz\n\nx",
        b"old 3\nAAAA\n\nx",
        b"\xff\n\n",
        b"old 1\n" * 99_999,
    ],
)
def test_other_requests_are_refused(data):
    with pytest.raises(ReceiptError):
        decode_request(data)


def test_memory_is_kept_on_disk(case, tmp_path):
    note = Witness(W1, TRUSTED).cosign(request_of(case), NOW_S)
    assert remembered_checkpoints(tmp_path / "seen") == []
    remember(tmp_path / "seen", note)
    assert remembered_checkpoints(tmp_path / "seen") == [parse_checkpoint(note).checkpoint]
    (tmp_path / "seen" / "x.note").write_text("nonsense")
    with pytest.raises(ReceiptError, match="is not a checkpoint"):
        remembered_checkpoints(tmp_path / "seen")


def test_notes_of_different_checkpoints_are_not_merged(case):
    older = request_of(case).note
    grow(case, 5)
    with pytest.raises(ReceiptError, match="2 different checkpoints"):
        merge_notes([older, request_of(case).note], TRUSTED)


def test_witnesses_out_of_order_are_refused(case):
    value = json.loads(cosigned(case))
    journal = value["journals"][0]
    head, one, other = journal["checkpoint"].removesuffix("\n").rsplit("\n", 2)
    journal["checkpoint"] = f"{head}\n{other}\n{one}\n"
    journal["keys"][1:] = journal["keys"][:0:-1]
    with pytest.raises(ReceiptError, match=r"^signature: the witnesses .* are not in order"):
        verify_receipt(encode(value), TRUSTED)
