"""A node handles one message at a time per connection, however many arrive at once."""

from __future__ import annotations

import pytest

from dovetail.model.hop import Reason
from dovetail.won.chain import ChainState
from dovetail.won.trig import encode_bundle
from dovetail.won.vocabulary import MessageType as T
from won.won_order import assert_one_at_a_time
from won.won_samples import ALICE, ALICE_CHAT, NODE_A
from won.won_world import Pair


def link_of(party, node):
    return next(link for link, (other, _) in party.peers.items() if other is node)


@pytest.mark.parametrize("same_node", [False, True])
def test_frames_of_both_sides_in_one_turn_are_stored_and_answered_one_by_one(same_node):
    pair = Pair(same_node=same_node).connect()
    second = pair.world.owner(ALICE, 3, is_created=True)
    second.core.start(pair.world.now)
    pair.run()
    said = []
    for number in range(5):
        for name, owner, own, target in (
            ("first", pair.alice, ALICE_CHAT, pair.bob_chat),
            ("second", second, ALICE_CHAT, pair.bob_chat),
            ("bob", pair.bob, pair.bob_chat, ALICE_CHAT),
        ):
            said.append(owner.core.send_message(T.CONNECTION, own, target, pair.world.now, f"{name} {number}"))
    pair.run()
    entries = assert_one_at_a_time(pair.a.hops(), NODE_A)
    assert {len(stored) for stored in entries.values()} == {2 + len(said)}
    assert all(pair.state(pair.bob, message) is ChainState.COMPLETE for message in said)


def test_second_frame_of_a_turn_finds_the_connection_as_the_first_left_it():
    pair = Pair().connect()
    last = pair.say(T.CLOSE, run=False)
    late = pair.say(text="too late", run=False)
    link = link_of(pair.alice, pair.a)
    pair.alice.core.events()
    pair.alice.core.to_send()
    _, name = pair.alice.peers[link]
    for message in (last, late):
        pair.a.core.receive_frame(encode_bundle((message,)), name, pair.world.now)
    pair.run()
    assert pair.state(pair.alice, last) is ChainState.COMPLETE
    assert pair.state(pair.alice, late) is ChainState.FAILED
    assert pair.a.rejections() == [Reason.WRONG_STATE]
    assert_one_at_a_time(pair.a.hops(), NODE_A)


def test_message_that_waits_for_a_key_holds_back_those_behind_it():
    pair = Pair()
    served, pair.world._serve = pair.world._serve, lambda party, uri: None
    connect = pair.say(T.CONNECT)
    again = pair.say(T.CONNECT, text="and again")
    assert pair.b.core.ledger.connections == {}
    pair.world._serve = served
    for uri in (ALICE, NODE_A):
        served(pair.b, uri)
    served(pair.alice, pair.b.core.uri)
    pair.run()
    (stored,) = assert_one_at_a_time(pair.b.hops(), pair.b.core.uri).values()
    assert [message.uri for message, _, _ in stored] == [connect.uri, again.uri]
