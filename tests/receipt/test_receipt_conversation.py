from __future__ import annotations

import json

import pytest

from dovetail.model.errors import ReceiptError
from dovetail.receipt.format import MAX_CONVERSATION
from dovetail.receipt.verify import verify_receipt
from dovetail.won.message import decode_message
from receipt import receipt_samples as samples
from receipt.conversation_samples import NODE_KEYS, TRUSTED, forge, speak
from receipt.tampering import alterations, encode
from won.won_samples import ALICE_CHAT, BOB_CHAT, NODE_A, NODE_B

pytestmark = pytest.mark.exhaustive  # whole worlds are sealed


@pytest.fixture(scope="module")
def spoken(tmp_path_factory):
    return speak(tmp_path_factory.mktemp("spoken"))


@pytest.fixture(scope="module")
def statement(spoken):
    return spoken.build()


@pytest.fixture(scope="module")
def messages(statement):
    return [decode_message(message.raw) for message in verify_receipt(statement, TRUSTED).messages]


@pytest.fixture(scope="module")
def others(spoken):
    """alice's conversation with carol."""
    proof = verify_receipt(spoken.build(spoken.elsewhere.address), TRUSTED)
    return [decode_message(message.raw) for message in proof.messages]


def assert_refused(data: bytes, match: str) -> None:
    with pytest.raises(ReceiptError, match=match):
        verify_receipt(data, TRUSTED)


def test_all_messages_of_the_conversation_and_no_other(spoken, statement, messages):
    proof = verify_receipt(statement, TRUSTED)
    assert proof.kind == "conversation"
    assert {m.uri for m in messages if not m.is_response} == {message.uri for message in spoken.said}
    assert len(messages) == 3 * len(spoken.said) == 33
    first, second = sorted((ALICE_CHAT, BOB_CHAT))
    assert proof.claims[0] == (
        f'the conversation of "{first}" and "{second}" has 33 messages up to its newest responses, and these are all'
    )
    assert proof.claims[-2].startswith(f"{NODE_A} commits to 33 of them: its signed journal of ")
    assert proof.claims[-1].startswith(f"{NODE_B} commits to 33 of them: its signed journal of ")
    assert any("nothing came after the newest responses" in limit for limit in proof.not_proven)


def test_a_liar_with_true_proofs_makes_the_same_of_all_messages(spoken, statement, messages):
    """So what `forge` builds from fewer or other messages is refused for that alone."""
    assert forge(spoken, messages) == statement


@pytest.mark.exhaustive
def test_a_chain_left_out_is_missing(spoken, messages):
    for said in spoken.said[:-1]:
        rest = [m for m in messages if said.uri not in (m.uri, m.responding_to)]
        assert_refused(forge(spoken, rest), r"^completeness: wm:/\S+ is missing, which wm:/\S+ names")


@pytest.mark.exhaustive
def test_any_single_message_left_out_is_missing(spoken, messages):
    named = {uri for m in messages for uri in (m.responding_to, *m.previous)}
    assert len(named & {m.uri for m in messages}) > 25
    for message in messages:
        if message.uri in named:
            rest = [m for m in messages if m is not message]
            assert_refused(forge(spoken, rest), rf"^completeness: {message.uri} is missing")


@pytest.mark.exhaustive
def test_what_is_of_another_conversation_was_added(spoken, messages, others):
    for extra in (others[:1], others):
        assert_refused(forge(spoken, messages + extra), "^completeness: .*(was added|is missing)")
    assert_refused(forge(spoken, messages + others), r"^completeness: wm:/\S+ was added: it is of another conversation")


def test_a_message_that_no_response_answers_was_added(spoken, messages):
    last = spoken.said[-1]
    rest = [m for m in messages if m.responding_to != last.uri]
    assert_refused(forge(spoken, rest), rf"^completeness: {last.uri} was added: no response here answers it")


@pytest.mark.exhaustive
def test_a_message_swapped_for_another_is_refused(spoken, messages, others):
    for place in (0, len(messages) // 2, -1):
        swapped = [m for m in messages if m is not messages[place]] + others[:1]
        assert_refused(forge(spoken, swapped), "^completeness: ")


@pytest.mark.exhaustive
def test_newest_messages_left_out_are_found_by_another_receipt(spoken, messages):
    """By references alone this is a complete conversation; the receipt of the last message exposes the lie."""
    last = spoken.said[-1]
    rest = [m for m in messages if last.uri not in (m.uri, m.responding_to)]
    shorter = forge(spoken, rest)
    assert "has 30 messages" in verify_receipt(shorter, TRUSTED).claims[0]
    for address in (last.address, spoken.elsewhere.address):
        receipt = verify_receipt(samples.Case(address, spoken.journals).build(), TRUSTED)
        assert verify_receipt(forge(spoken, messages), TRUSTED, against=[receipt]).growth
        if address == last.address:
            with pytest.raises(ReceiptError, match=rf"^against: {last.uri} was left out: \S+ had it at hop "):
                verify_receipt(shorter, TRUSTED, against=[receipt])
        else:
            verify_receipt(shorter, TRUSTED, against=[receipt])


def test_one_node_alone_states_it_with_the_key_of_the_other(spoken):
    data = spoken.build(only=0)
    proof = verify_receipt(data, TRUSTED)
    assert [signatory.server for signatory in proof.signatories] == [NODE_A]
    with pytest.raises(ReceiptError, match=rf"^signature: wm:/\S+ is not signed with a trusted key of {NODE_B}"):
        verify_receipt(data, [*samples.verifiers(NODE_A, NODE_B), NODE_KEYS[0]])


@pytest.mark.exhaustive
def test_every_altered_field_is_refused(tmp_path):
    small = speak(tmp_path, rounds=1)
    data, other = small.build(only=1), small.build(small.elsewhere.address, only=1)
    tried = 0
    for number, (what, changed) in enumerate(alterations(data, other)):
        if number % 3 == 0:
            tried += 1
            with pytest.raises(ReceiptError):
                pytest.fail(f"accepted {what}: {verify_receipt(changed, TRUSTED)}")
    assert tried > 300


def test_two_hops_of_one_message_in_a_journal_are_refused(spoken):
    """One is enough; a second would be a byte without meaning."""
    value = json.loads(samples.Case(spoken.said[0].address, spoken.journals).build())
    value["receipt"] = "conversation/1"
    value["messages"] = sorted(value["messages"], key=lambda message: message["address"])
    for message in value["messages"]:
        message.pop("relation", None)
    assert_refused(encode(value), "^(form|inclusion): ")


def test_the_bound_on_messages_is_kept(statement):
    value = json.loads(statement)
    value["messages"] = value["messages"][:1] * (MAX_CONVERSATION + 1)
    assert_refused(encode(value), "^form: .*length <= 4096")


@pytest.mark.exhaustive
def test_growth_can_be_proven_too(spoken):
    proof = verify_receipt(spoken.build(), TRUSTED)
    older = [signatory.checkpoint for signatory in proof.signatories]
    grown = verify_receipt(spoken.build(since=older), TRUSTED)
    assert all(view.grown_from is not None for view in grown.views)
