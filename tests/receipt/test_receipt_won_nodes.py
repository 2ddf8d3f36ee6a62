"""Receipts of conversations between real won nodes: built from what their cores journal."""

from __future__ import annotations

import pytest

from dovetail.model.hop import Stage
from dovetail.receipt.verify import verify_receipt
from receipt import receipt_samples as samples
from receipt.independent_checker import check
from won.won_samples import ALICE, BOB, NODE_A, NODE_B
from won.won_world import Pair

TRUSTED = samples.verifiers(NODE_A, NODE_B)


@pytest.fixture
def spoken(tmp_path):
    """A pair that has exchanged messages; the journals of both nodes; one message in the middle."""
    pair = Pair().connect()
    for number in range(5):
        pair.say(text=f"earlier {number}")
    message = pair.say(text="the ladder is yours on Friday")
    pair.reply(text="thank you")
    journals = tuple(
        samples.write(tmp_path / f"{name}.journal", node, party.observations)
        for name, node, party in (("a", NODE_A, pair.a), ("b", NODE_B, pair.b))
    )
    return pair, samples.Case(message.address, journals)


def test_a_chain_between_real_nodes(spoken):
    _, case = spoken
    data = case.build()
    proof = verify_receipt(data, TRUSTED)
    assert len(proof.messages) == 3
    seen = {(hop.server, hop.stage, hop.counterpart) for hop in proof.hops if hop.message == case.address}
    assert {(NODE_A, Stage.ACCEPTED, ALICE), (NODE_A, Stage.FORWARDED, NODE_B)} <= seen
    assert {(NODE_B, Stage.ACCEPTED, NODE_A), (NODE_B, Stage.DELIVERED, BOB)} <= seen
    made = {hop.server for hop in proof.hops if hop.stage is Stage.CREATED}
    assert made == {NODE_A, NODE_B}
    assert check(data, {(key.name, key.public_key) for key in TRUSTED}) == list(proof.claims)
    assert len(data) < 30_000


@pytest.mark.exhaustive
def test_every_message_of_the_conversation_has_a_receipt(spoken):
    pair, case = spoken
    addresses = {seen.message for seen in (*pair.a.observations, *pair.b.observations)}
    assert len(addresses) > 20
    for address in addresses:
        proof = verify_receipt(samples.Case(address, case.journals).build(), TRUSTED)
        assert proof.subject == address
