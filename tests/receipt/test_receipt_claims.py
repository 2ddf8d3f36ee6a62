from __future__ import annotations

import pytest

from dovetail.model.address import Address
from dovetail.model.hop import Hop, Reason, Relation, Stage
from dovetail.receipt.claims import describe_hop, describe_message, name_messages, quote, state_limits, time_text
from receipt import receipt_samples as samples


def hop(stage: Stage, **fields) -> Hop:
    return Hop(
        server=samples.BROKER,
        seq=3,
        at_us=samples.T0,
        fabric="pcp",
        stage=stage,
        message=Address(bytes(32)),
        **fields,
    )


@pytest.mark.parametrize("stage", Stage)
def test_every_stage_has_words(stage):
    with_one = describe_hop("the message", hop(stage, counterpart="x"))
    assert with_one.startswith(f"{samples.BROKER} ")
    assert with_one.endswith('"x" at 2025-11-15T20:00:00.000000Z')
    assert describe_hop("the message", hop(stage)).endswith(" at 2025-11-15T20:00:00.000000Z")


def test_a_refusal_says_why():
    text = describe_hop("the message", hop(Stage.REJECTED, reason=Reason.TOO_LARGE))
    assert text == f"{samples.BROKER} refused the message at 2025-11-15T20:00:00.000000Z, because: too_large"


def test_a_peers_text_cannot_pose_as_part_of_a_sentence():
    lie = 'bob" at 2025-01-01; pcp://bank/server accepted the message from "x'
    assert quote(lie) in describe_hop("the message", hop(Stage.DELIVERED, counterpart=lie))
    assert quote(lie).count('"') - quote(lie).count('\\"') == 2
    assert quote("\x1b[2J\u202e") == '"\\u001b[2J\\u202e"'


def test_times_have_microseconds():
    assert time_text(0) == "1970-01-01T00:00:00.000000Z"
    assert time_text(samples.T0 + 1) == "2025-11-15T20:00:00.000001Z"


def test_messages_are_told_apart():
    assert name_messages([None, Relation.RESPONDING_TO, Relation.PREVIOUS, Relation.RESPONDING_TO]) == [
        "the message",
        "response 1",
        "successor 1",
        "response 2",
    ]
    text = "00" * 32
    assert describe_message("the message", text, None, 5) == f"the message is {text}; its 5 bytes are here"
    assert describe_message("response 1", text, Relation.RESPONDING_TO, None) == (
        f"response 1 is {text}, which responds to the message; its bytes are left out"
    )


def test_what_is_not_proven_depends_on_what_was_seen():
    accepted = state_limits("pcp", [hop(Stage.ACCEPTED)], is_redacted=False, unwitnessed=[])
    delivered = state_limits("pcp", [hop(Stage.DELIVERED)], is_redacted=True, unwitnessed=["pcp://b/server"])
    assert not any("received" in limit for limit in accepted)
    assert any("received" in limit for limit in delivered)
    assert any("left out" in limit for limit in delivered)
    assert any("pcp://b/server" in limit for limit in delivered)
