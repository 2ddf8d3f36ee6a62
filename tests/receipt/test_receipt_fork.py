from __future__ import annotations

import json

import pytest

from dovetail.journal.source import JournalSource
from dovetail.model.address import address_of
from dovetail.model.errors import ReceiptError
from dovetail.model.hop import Observation, Stage
from dovetail.receipt.build_evidence import build_fork
from dovetail.receipt.verify import verify_receipt
from dovetail.tlog.keys import Verifier
from dovetail.won import compose
from dovetail.won.signing import SigningKey
from receipt import receipt_samples as samples
from receipt.receipt_samples import create
from receipt.tampering import alterations, encode

NODE_KEY = SigningKey(address_of(samples.NODE_B.encode()))
NODE = Verifier(samples.NODE_B, NODE_KEY.public.raw)
TRUSTED = [*samples.verifiers(), NODE]


def response(message, *, success: bool = True, previous=(), connection: str = "one"):
    return compose.respond(
        message,
        success=success,
        signer=samples.NODE_B,
        key=NODE_KEY,
        timestamp_ms=samples.T0 // 1000 + 5,
        connection=f"{samples.BOB}/c/{connection}",
        sender_socket=f"{samples.BOB}#chat",
        recipient_socket=f"{samples.ALICE}#chat",
        previous=previous,
    )


def atom_response(message, previous):
    return compose.respond(
        message,
        success=True,
        signer=samples.NODE_B,
        key=NODE_KEY,
        timestamp_ms=samples.T0 // 1000 + 5,
        atom=samples.BOB,
        previous=previous,
    )


def evidence(tmp_path, one, other, trusted=TRUSTED) -> bytes:
    """Both messages reach node A, which records them."""
    observations = [
        Observation(
            at_us=samples.T0 + number,
            stage=Stage.ACCEPTED,
            message=message.address,
            counterparts=(samples.NODE_B,),
            raw=message.raw,
        )
        for number, message in enumerate((one, other))
    ]
    path = samples.write(tmp_path / "a.journal", samples.NODE_A, observations, before=4, after=9)
    with JournalSource.open(path) as source:
        return build_fork([source], (one.address, other.address), trusted)


def test_two_answers_to_one_message_are_signed_by_one_node(tmp_path):
    message, _, _ = samples.won_chain()
    data = evidence(tmp_path, response(message), response(message, success=False))
    proof = verify_receipt(data, TRUSTED)
    assert proof.kind == "fork"
    assert proof.claims[0] == (
        f"{samples.NODE_B} signed both message 1 and message 2, which contradict each other: conflicting_response"
    )
    assert {hop.server for hop in proof.hops} == {samples.NODE_A}


def test_two_continuations_of_one_log(tmp_path):
    message, s1, _ = samples.won_chain()
    one = atom_response(message, [s1.uri])
    other = atom_response(s1, [s1.uri])
    proof = verify_receipt(evidence(tmp_path, one, other), TRUSTED)
    assert proof.claims[0].endswith(": forked_log")


def test_two_creates_of_one_atom(tmp_path):
    alice = Verifier(samples.ALICE, SigningKey(address_of(samples.ALICE.encode())).public.raw)
    trusted = [*samples.verifiers(samples.NODE_A), alice]
    proof = verify_receipt(evidence(tmp_path, create("chat"), create("other"), trusted), trusted)
    assert proof.claims[0].startswith(f"{samples.ALICE} signed both")
    assert proof.claims[0].endswith(": two_creates")


def test_nobody_is_accused_by_a_key_that_others_published_for_him(tmp_path):
    """Anyone can make two Create messages in another's name, containing their own key."""
    mallory = SigningKey(bytes(32))
    with pytest.raises(ReceiptError, match=r"^signature: .* is not signed with a trusted key"):
        evidence(tmp_path, create("chat", mallory), create("other", mallory))


def test_messages_that_agree_are_no_fork(tmp_path):
    message, s1, _ = samples.won_chain()
    with pytest.raises(ReceiptError, match="do not contradict"):
        evidence(tmp_path, response(message), response(s1))


def test_without_the_authors_key_nobody_is_accused(tmp_path):
    message, _, _ = samples.won_chain()
    one, other = response(message), response(message, success=False)
    with pytest.raises(ReceiptError, match=r"^signature: .* is not signed with a trusted key"):
        evidence(tmp_path, one, other, samples.verifiers(samples.NODE_A))
    data = evidence(tmp_path, one, other)
    with pytest.raises(ReceiptError, match=r"^signature: "):
        verify_receipt(data, samples.verifiers())


def test_every_altered_field_is_refused(tmp_path):
    message, s1, _ = samples.won_chain()
    data = evidence(tmp_path / "1", response(message), response(message, success=False))
    other = evidence(tmp_path / "2", atom_response(message, [s1.uri]), atom_response(s1, [s1.uri]))
    for what, changed in alterations(data, other):
        with pytest.raises(ReceiptError):
            pytest.fail(f"accepted {what}: {verify_receipt(changed, TRUSTED)}")


def test_another_name_for_the_contradiction_is_refused(tmp_path):
    message, _, _ = samples.won_chain()
    value = json.loads(evidence(tmp_path, response(message), response(message, success=False)))
    for kind in ("forked_log", "two_creates", "anything"):
        value["contradiction"] = kind
        with pytest.raises(ReceiptError, match=r"^fork: "):
            verify_receipt(encode(value), TRUSTED)
