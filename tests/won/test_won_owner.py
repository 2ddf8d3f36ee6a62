"""An owner's client: outbox, registration, reconnect, what it refuses to request."""

from __future__ import annotations

import pytest

from dovetail.model.errors import LocalProtocolError
from dovetail.model.wire import CloseLink, OpenLink
from dovetail.won.chain import ChainState
from dovetail.won.conversation_text import read_conversation
from dovetail.won.events import MessageReceived, RegistrationConfirmed
from dovetail.won.links import LinkKind
from dovetail.won.message import decode_message
from dovetail.won.trig import encode_bundle
from dovetail.won.vocabulary import MessageType as T
from won.won_samples import ALICE, ALICE_CHAT, BOB_CHAT, NODE_A
from won.won_world import Pair, World


def test_message_made_while_away_goes_out_with_the_next_link():
    pair = Pair().connect()
    pair.alice.core.stop()
    pair.run()
    message = pair.say()
    assert pair.state(pair.alice, message) is ChainState.AWAITING_SENDER
    assert pair.alice.core.unanswered == (message.uri,)
    pair.alice.core.start(pair.world.now)
    pair.run()
    assert pair.state(pair.alice, message) is ChainState.COMPLETE
    assert pair.alice.core.unanswered == ()


def test_lost_answer_is_not_a_second_message():
    pair = Pair().connect()
    message = pair.say(run=False)
    pair.world.step(pair.alice)
    pair.world.cut(pair.alice)
    pair.world.pass_time(30)
    assert pair.state(pair.alice, message) is ChainState.COMPLETE
    assert len([s for s in pair.a.stages(message) if s[0] == "accepted"]) == 1


def test_owner_rebuilt_from_its_journal_has_the_same_conversations():
    pair = Pair().connect()
    messages = [pair.say(text=str(i)) for i in range(3)]
    before = pair.alice.core
    pair.world.restart(pair.alice)
    after = pair.alice.core
    assert after.position == before.position
    assert after.is_created
    assert all(after.conversations.state_of(m.uri) is ChainState.COMPLETE for m in messages)
    after.start(pair.world.now)
    pair.run()
    assert pair.state(pair.alice, pair.say()) is ChainState.COMPLETE


def test_node_that_is_away_is_tried_again_with_growing_pauses():
    world = World()
    owner = world.owner(ALICE, 3)
    owner.core.create([ALICE_CHAT], world.now)
    owner.core.start(world.now)
    world.run()
    pauses = []
    for _ in range(4):
        due = owner.core.next_timer()
        pauses.append(due - world.now)
        world.now = due
        owner.core.handle_timer(due)
        world.run()
    assert pauses[0] < pauses[1] < pauses[2] < pauses[3]


def test_stopped_owner_closes_its_link_and_stays_closed():
    pair = Pair()
    pair.alice.core.stop()
    assert any(isinstance(item, CloseLink) for item in pair.alice.core.to_send())
    assert pair.alice.core.next_timer() is None


def test_owner_is_told_what_the_other_side_says():
    pair = Pair().connect()
    pair.say(text="are you there?")
    received = pair.bob.told(MessageReceived)[-1]
    assert (received.sender, received.text) == (ALICE, "are you there?")


def test_registration_is_confirmed_once_per_link():
    pair = Pair().connect()
    before = len(pair.alice.told(RegistrationConfirmed))
    pair.say()
    pair.say(text="2")
    assert len(pair.alice.told(RegistrationConfirmed)) == before


def test_same_words_twice_are_two_messages():
    pair = Pair().connect()
    assert pair.say(text="ok").uri != pair.say(text="ok").uri


def test_key_that_cannot_be_found_hangs_up_and_comes_back():
    pair = Pair()
    pair.world.dark.add(f"{pair.bob_uri}")
    pair.alice.core.keys._fetched.pop(pair.bob_uri, None)
    pair.say(T.CONNECT)
    pair.reply(T.CONNECT)
    before = pair.alice.core.position
    pair.world.dark.clear()
    pair.world.pass_time(30)
    assert pair.alice.core.position == before + 1
    assert pair.alice.rejections() == []


@pytest.mark.parametrize(
    "ask",
    [
        lambda owner: owner.create([ALICE_CHAT], 1),
        lambda owner: owner.change(T.CREATE, 1),
        lambda owner: owner.change(T.CONNECT, 1),
        lambda owner: owner.send_message(T.DELETE, ALICE_CHAT, BOB_CHAT, 1),
        lambda owner: owner.send_message(T.CONNECT, BOB_CHAT, ALICE_CHAT, 1),
        lambda owner: owner.send_message(T.CONNECT, ALICE_CHAT, "https://elsewhere.example/x", 1),
    ],
)
def test_illegal_requests_are_our_own_mistake(ask):
    pair = Pair()
    with pytest.raises(LocalProtocolError):
        ask(pair.alice.core)


def test_create_that_is_refused_has_failed_and_is_told_to_nobody_else():
    world = World()
    node = world.node(NODE_A, 1)
    owner = world.owner(ALICE, 3)
    message = owner.core.create([ALICE_CHAT], world.now + 3_600_000_000)
    owner.core.start(world.now)
    world.run()
    assert owner.core.conversations.state_of(message.uri) is ChainState.FAILED
    assert owner.core.conversations.deliveries[message.uri].detail.startswith("clock_skew")
    assert not owner.core.is_created
    assert node.core.ledger.atoms == {}
    world.restart(node)
    assert node.core.ledger.first == {}


def test_first_thing_an_owner_does_is_to_open_a_link_to_its_node():
    world = World()
    owner = world.owner(ALICE, 3)
    owner.core.start(world.now)
    assert owner.core.to_send() == [OpenLink("owner 1", NODE_A, "owner")]


def test_transcript_shows_how_far_each_message_got():
    pair = Pair().connect()
    pair.say(text="one")
    pair.say(T.CLOSE, "bye")
    pair.say(text="too late")
    raws = [o.raw for o in pair.alice.observations if o.raw]
    records = list(read_conversation(ALICE, raws).records())
    assert [r["state"] for r in records] == ["atom", "complete", "complete", "complete", "complete", "failed"]
    assert records[-1]["failed"].startswith("wrong_state")
    lines = list(read_conversation(ALICE, raws, BOB_CHAT).lines())
    assert len(lines) == 5
    assert "✓✓ me  ConnectionMessage  one" in lines[2]
    assert "✗" in lines[-1]


def test_forwarded_messages_are_named_and_known_to_all_parties():
    pair = Pair().connect()
    first, second = pair.say(text="one"), pair.reply(text="two")
    pair.run()
    message = pair.alice.core.send_message(
        T.CONNECTION, ALICE_CHAT, pair.bob_chat, pair.world.now, "see", [second.uri, first.uri]
    )
    pair.run()
    assert message.forwarded == tuple(sorted((first.uri, second.uri)))
    assert pair.state(pair.bob, message) is ChainState.COMPLETE
    for party in (pair.a, pair.b, pair.alice, pair.bob):
        kept = [decode_message(o.raw) for o in party.observations if o.raw and o.message == message.address]
        assert kept[0].forwarded == message.forwarded
    raws = [o.raw for o in pair.bob.observations if o.raw]
    records = {record["address"]: record for record in read_conversation(pair.bob_uri, raws).records()}
    assert records[message.uri]["forwarded"] == list(message.forwarded)
    assert "forwarded" not in records[first.uri]


def test_only_what_the_owner_has_can_be_forwarded_and_only_by_a_connection_message():
    pair = Pair().connect()
    known = pair.say()
    with pytest.raises(LocalProtocolError, match="cannot forward"):
        pair.alice.core.send_message(T.CONNECTION, ALICE_CHAT, pair.bob_chat, pair.world.now, "x", ["wm:/QmNever"])
    with pytest.raises(LocalProtocolError, match="cannot forward"):
        pair.alice.core.send_message(T.CLOSE, ALICE_CHAT, pair.bob_chat, pair.world.now, "x", [known.uri])


def test_owner_that_was_offline_for_days_sends_what_it_wrote():
    pair = Pair().connect()
    pair.alice.core.stop()
    pair.run()
    written = pair.say(text="written offline")
    pair.world.pass_time(3 * 86_400)
    pair.alice.core.start(pair.world.now)
    pair.run()
    assert pair.state(pair.alice, written) is pair.state(pair.bob, written) is ChainState.COMPLETE
    (stored,) = [decode_message(o.raw) for o in pair.b.observations if o.raw and o.message == written.address]
    assert stored.timestamp_ms == written.timestamp_ms


def test_old_message_sent_again_is_stored_once():
    pair = Pair().connect()
    message = pair.say()
    pair.world.pass_time(3 * 86_400)
    before = len(pair.a.observations), len(pair.b.observations)
    pair.a.core.receive_accepted("replay", LinkKind.OWNER, pair.world.now)
    pair.a.core.receive_frame(encode_bundle([message]), "replay", pair.world.now)
    pair.run()
    assert (len(pair.a.observations), len(pair.b.observations)) == before
