"""A node, clause by clause: delivery, echo, states, resends, restarts, outages."""

from __future__ import annotations

import random
import sys

import pytest

from dovetail.model.hop import Reason
from dovetail.won import compose as c
from dovetail.won import vocabulary as v
from dovetail.won.atom import AtomState
from dovetail.won.chain import ChainState, role_of
from dovetail.won.connection import TRANSITIONS, ConnectionState, Input
from dovetail.won.events import ChainAdvanced, DestinationChanged
from dovetail.won.message import decode_bundle, decode_message
from dovetail.won.node import Node
from dovetail.won.settings import WonSettings
from dovetail.won.trig import encode_bundle
from dovetail.won.vocabulary import MessageType as T
from won.won_samples import ALICE, ALICE_CHAT, BOB, BOB_CHAT, KEYS, NODE_A, NODE_B, build
from won.won_world import Pair


@pytest.fixture
def pair():
    return Pair().connect()


def bundles(party, *messages):
    """The (role or m) tuples of the frames a party got about a message, in order."""
    found = []
    for data in party.frames_in:
        parts = decode_bundle(data).messages
        if any(messages[0].uri in (part.uri, part.responding_to) for part in parts):
            found.append(tuple("m" if not part.is_response else role_of(part).value for part in parts))
    return found


def test_atom_specific_delivery_m_to_m_s():
    pair = Pair()
    message = pair.alice.core.change(T.DEACTIVATE, pair.world.now)
    pair.run()
    assert bundles(pair.a, message) == [("m",)]
    assert bundles(pair.alice, message) == [("m", "s")]
    assert pair.state(pair.alice, message) is ChainState.ATOM


@pytest.mark.parametrize("kind", sorted(v.ATOM_TYPES))
def test_every_atom_specific_message_gets_m_s_and_is_kept_in_the_atoms_container(kind):
    """One dataset, a response that names the atom and references the previous one; a rebuilt node has the same."""
    pair = Pair()
    if kind is T.CREATE:
        message = decode_bundle(pair.alice.frames_in[0]).messages[0]
    else:
        act = pair.alice.core.replace if kind is T.REPLACE else None
        sockets = [ALICE_CHAT, f"{ALICE}#more"]
        message = act(sockets, pair.world.now) if act else pair.alice.core.change(kind, pair.world.now)
        pair.run()
    assert bundles(pair.alice, message) == [("m", "s")]
    atom = pair.a.core.ledger.atoms[ALICE]
    stored = [decode_message(pair.a.core.ledger.archive.raw(address)) for address in atom.messages]
    assert [each.type for each in stored] == [T.CREATE, T.SUCCESS] + [kind, T.SUCCESS] * (kind is not T.CREATE)
    response = stored[-1]
    assert (response.responding_to, response.atom, response.sender_socket) == (message.uri, ALICE, None)
    assert response.previous == (() if kind is T.CREATE else (stored[1].uri,))
    assert pair.a.stages(message) == [("accepted", ALICE), ("echoed", ALICE)]
    states = {T.DEACTIVATE: AtomState.INACTIVE, T.DELETE: AtomState.DELETED}
    assert atom.state is states.get(kind, AtomState.ACTIVE)
    assert atom.sockets == ({ALICE_CHAT, f"{ALICE}#more"} if kind is T.REPLACE else {ALICE_CHAT})
    rebuilt = Node(NODE_A, KEYS[NODE_A], random.Random(1))
    rebuilt.restore(pair.a.hops(), pair.world.now)
    again = rebuilt.ledger.atoms[ALICE]
    for name in ("messages", "state", "sockets", "document", "log"):
        assert getattr(again, name) == getattr(atom, name), name
    assert again.confirmations.unconfirmed == atom.confirmations.unconfirmed == (response.uri,)


@pytest.mark.parametrize("kind", sorted(v.ATOM_TYPES))
def test_a_node_may_not_send_atom_specific_messages(kind):
    """They are between an owner and its own node; one sent by another node is refused, and nothing changes."""
    pair = Pair().connect()
    before = pair.a.core.ledger.atoms[ALICE].state
    message = build(kind, timestamp_ms=pair.world.now // 1000 + 1)
    (link,) = [name for name in pair.b.peers if name.startswith("to ")]
    _, there = pair.b.peers[link]
    pair.a.core.receive_frame(encode_bundle((message,)), there, pair.world.now)
    pair.run()
    assert pair.a.rejections() == [Reason.INVALID_SCHEMA]
    assert pair.a.core.ledger.atoms[ALICE].state is before
    assert message.address not in pair.a.core.ledger.first


def test_connection_specific_delivery_steps_1_to_6_each_bundle_in_one_dataset(pair):
    message = pair.say()
    assert bundles(pair.a, message) == [("m",), ("s2",)]
    assert bundles(pair.b, message) == [("m", "s1")]
    assert bundles(pair.bob, message) == [("m", "s1", "s2")]
    assert bundles(pair.alice, message) == [("m", "s1"), ("s2",)]


def test_all_four_parties_end_with_m_s1_s2(pair):
    message = pair.say()
    parties = (pair.a, pair.b, pair.alice, pair.bob)
    copies = []
    for party in parties:
        raws = [o.raw for o in party.observations if o.raw]
        chain = [m for m in map(decode_message, raws) if message.uri in (m.uri, m.responding_to)]
        copies.append({m.uri: m.raw for m in chain})
        assert sorted(role_of(m).value for m in chain if m.is_response) == ["s1", "s2"]
    assert all(copy == copies[0] for copy in copies)
    assert pair.state(pair.alice, message) is pair.state(pair.bob, message) is ChainState.COMPLETE


def test_echo_goes_to_every_client_of_the_sending_atom_and_s2_too(pair):
    second = pair.world.owner(ALICE, 3, is_created=True)
    second.core.start(pair.world.now)
    pair.run()
    message = pair.say()
    assert bundles(second, message) == [("m", "s1"), ("s2",)]
    assert second.core.conversations.state_of(message.uri) is ChainState.COMPLETE


def test_second_client_catches_up_with_everything_page_by_page():
    pair = Pair(WonSettings(catch_up_page=2)).connect()
    messages = [pair.say(text=str(i)) for i in range(7)]
    second = pair.world.owner(ALICE, 3, is_created=True)
    second.core.start(pair.world.now)
    pair.run()
    assert second.core.position == pair.alice.core.position
    assert all(second.core.conversations.state_of(m.uri) is ChainState.COMPLETE for m in messages)


def test_a_registration_that_comes_late_does_not_stop_the_log():
    pair = Pair(WonSettings(catch_up_page=2)).connect()
    for i in range(7):
        pair.say(text=str(i))
    owner, has_all = pair.alice.core, pair.alice.core.position
    owner._position = 1  # as if it had registered before it got what is in flight
    owner._register(pair.world.now)
    owner._position = has_all
    pair.run()
    message = pair.say(text="afterwards")
    assert owner.position > has_all
    assert owner.conversations.state_of(message.uri) is ChainState.COMPLETE


def test_s1_names_the_senders_connection_and_socket_twice(pair):
    message = pair.say()
    s1, s2 = (decode_message(o.raw) for o in pair.alice.observations[-2:])
    assert (s1.sender_socket, s1.recipient_socket, s1.signer) == (ALICE_CHAT, ALICE_CHAT, NODE_A)
    assert s1.connection.startswith(f"{ALICE}/c/")
    assert (s2.sender_socket, s2.recipient_socket, s2.signer) == (BOB_CHAT, ALICE_CHAT, NODE_B)
    assert s2.connection.startswith(f"{BOB}/c/")
    assert s1.responding_to == s2.responding_to == message.uri
    assert s1.uri in s2.previous


def test_stored_before_sent_every_frame_follows_its_observation(pair):
    pair.alice.core.send_message(T.CONNECTION, ALICE_CHAT, BOB_CHAT, pair.world.now, "x")
    while pair.world.step(pair.alice):
        pass
    events = pair.a.core.events()
    journaled = {e.message for e in events if hasattr(e, "stage")}
    for item in pair.a.core.to_send():
        assert {m.address for m in decode_bundle(item.frames[0]).messages} <= journaled


def test_two_atoms_on_one_node_nothing_is_shortened():
    pair = Pair(same_node=True).connect()
    message = pair.say()
    assert bundles(pair.alice, message) == [("m", "s1"), ("s2",)]
    assert bundles(pair.bob, message) == [("m", "s1", "s2")]
    ledger = pair.a.core.ledger
    here = ledger.find_connection(ALICE_CHAT, pair.bob_chat)
    there = ledger.find_connection(pair.bob_chat, ALICE_CHAT)
    assert here.uri != there.uri
    assert message.address in here.messages
    assert message.address in there.messages
    assert ledger.sent == {}


def test_refusal_within_one_node_reaches_the_sender():
    pair = Pair(same_node=True)
    pair.bob.core.change(T.DEACTIVATE, pair.world.now)
    pair.run()
    message = pair.say(T.CONNECT)
    assert pair.state(pair.alice, message) is ChainState.FAILED
    assert pair.a.core.ledger.sent == {}
    pair.world.restart(pair.a)
    assert pair.a.core.ledger.sent == {}


def test_resend_gets_the_same_response_and_stores_nothing_twice(pair):
    message = pair.say()
    before = len(pair.a.observations), len(pair.b.observations)
    stranger = pair.world.owner(ALICE, 3)
    stranger.core._outbox[message.uri] = message
    stranger.core.conversations.take(message)
    stranger.core.start(pair.world.now)
    pair.world.run()
    answer = decode_bundle(stranger.frames_in[0]).messages
    assert answer[0].uri == message.uri
    assert answer[1].uri == pair.alice.core.conversations.deliveries[message.uri].chain.first
    assert len(pair.b.observations) == before[1]
    assert len(pair.a.observations) == before[0]


def test_second_delivery_to_the_other_node_gets_the_same_s2(pair):
    message = pair.say()
    frame = pair.b.frames_in[-1]
    link = next(name for name, (other, _) in pair.b.peers.items() if other is pair.a)
    stored = len(pair.b.observations)
    pair.b.core.receive_frame(frame, link, pair.world.now)
    (item,) = pair.b.core.to_send()
    (answer,) = decode_bundle(item.frames[0]).messages
    assert answer.uri == pair.alice.core.conversations.deliveries[message.uri].chain.second
    assert pair.b.core.events() == []
    assert len(pair.b.observations) == stored


def test_s2_that_comes_again_changes_nothing(pair):
    message = pair.say()
    frame = pair.a.frames_in[-1]
    assert [role_of(each).value for each in decode_bundle(frame).messages] == ["s2"]
    link = next(name for name, (other, _) in pair.a.peers.items() if other is pair.b)
    pair.a.core.receive_frame(frame, link, pair.world.now)
    assert (pair.a.core.events(), pair.a.core.to_send()) == ([], [])
    assert bundles(pair.alice, message) == [("m", "s1"), ("s2",)]


SENT, RECEIVED, CONNECTED, CLOSED = ConnectionState


@pytest.mark.parametrize(
    ("state", "owner_connect", "partner_connect", "close", "talk"),
    [
        (None, SENT, RECEIVED, None, None),
        (SENT, SENT, CONNECTED, CLOSED, None),
        (RECEIVED, CONNECTED, RECEIVED, CLOSED, None),
        (CONNECTED, CONNECTED, CONNECTED, CLOSED, CONNECTED),
        (CLOSED, SENT, RECEIVED, CLOSED, None),
    ],
)
def test_state_table_has_every_allowed_pair_and_no_other(state, owner_connect, partner_connect, close, talk):
    after = [TRANSITIONS.get((state, each)) for each in Input]
    assert after == [owner_connect, partner_connect, close, talk]


def test_connect_both_ways_then_close_then_connect_again():
    pair = Pair()
    pair.say(T.CONNECT)
    here = pair.a.core.ledger.find_connection(ALICE_CHAT, BOB_CHAT)
    there = pair.b.core.ledger.find_connection(BOB_CHAT, ALICE_CHAT)
    assert (here.state, there.state) == (ConnectionState.REQUEST_SENT, ConnectionState.REQUEST_RECEIVED)
    pair.reply(T.CONNECT)
    assert here.state is there.state is ConnectionState.CONNECTED
    pair.reply(T.CLOSE)
    assert here.state is there.state is ConnectionState.CLOSED
    pair.say(T.CONNECT)
    assert (here.state, there.state) == (ConnectionState.REQUEST_SENT, ConnectionState.REQUEST_RECEIVED)
    assert len(pair.a.core.ledger.connections) == 1


def test_message_before_connected_is_refused_by_the_own_node():
    pair = Pair()
    message = pair.say()
    assert pair.state(pair.alice, message) is ChainState.FAILED
    told = "wrong_state: ConnectionMessage is not allowed in state none"
    assert pair.alice.core.conversations.deliveries[message.uri].detail == told
    assert Reason.WRONG_STATE in pair.a.rejections()
    assert pair.b.core.ledger.connections == {}


def test_failure_responses_are_never_referenced(pair):
    pair.say(T.CLOSE)
    failed = pair.say()
    assert pair.state(pair.alice, failed) is ChainState.FAILED
    failure = pair.alice.core.conversations.deliveries[failed.uri].chain.failure
    pair.say(T.CONNECT)
    pair.reply(T.CONNECT)
    pair.say()
    for observation in pair.a.observations:
        if observation.raw and observation.reason is None:
            assert failure not in decode_message(observation.raw).previous


def test_inactive_atom_takes_no_new_connection():
    pair = Pair()
    pair.bob.core.change(T.DEACTIVATE, pair.world.now)
    pair.run()
    message = pair.say(T.CONNECT)
    assert pair.state(pair.alice, message) is ChainState.FAILED
    assert pair.b.rejections() == [Reason.ATOM_INACTIVE]
    pair.bob.core.change(T.ACTIVATE, pair.world.now)
    pair.run()
    assert pair.state(pair.alice, pair.say(T.CONNECT, "again")) is ChainState.COMPLETE


def test_inactive_atom_makes_no_new_connection():
    pair = Pair()
    pair.alice.core.change(T.DEACTIVATE, pair.world.now)
    pair.run()
    assert pair.state(pair.alice, pair.say(T.CONNECT)) is ChainState.FAILED
    assert pair.a.rejections() == [Reason.ATOM_INACTIVE]
    assert pair.b.core.ledger.connections == {}


def test_socket_that_was_not_declared_makes_no_connection():
    pair = Pair()
    message = pair.alice.core.send_message(T.CONNECT, f"{ALICE}#door", BOB_CHAT, pair.world.now)
    pair.run()
    assert pair.state(pair.alice, message) is ChainState.FAILED
    assert pair.a.rejections() == [Reason.UNKNOWN_SOCKET]


def test_connection_of_an_inactive_atom_can_be_closed_again_by_both_sides(pair):
    """A Close that crosses the one of the node is no new connection."""
    pair.alice.core.change(T.DEACTIVATE, pair.world.now)
    pair.run()
    assert pair.state(pair.alice, pair.say(T.CLOSE)) is ChainState.COMPLETE
    message = pair.reply(T.CLOSE)
    assert pair.state(pair.bob, message) is ChainState.COMPLETE
    assert pair.a.rejections() == []


@pytest.mark.parametrize(("kind", "state"), [(T.DEACTIVATE, AtomState.INACTIVE), (T.DELETE, AtomState.DELETED)])
def test_deactivate_and_delete_make_the_node_close_the_connections(pair, kind, state):
    pair.alice.core.change(kind, pair.world.now)
    pair.run()
    here = pair.a.core.ledger.find_connection(ALICE_CHAT, BOB_CHAT)
    there = pair.b.core.ledger.find_connection(BOB_CHAT, ALICE_CHAT)
    assert here.state is there.state is ConnectionState.CLOSED
    assert pair.a.core.ledger.atoms[ALICE].state is state
    close = decode_bundle(pair.bob.frames_in[-1]).messages[0]
    assert (close.type, close.direction, close.signer) == (T.CLOSE, v.Direction.SYSTEM, NODE_A)
    assert pair.state(pair.bob, close) is ChainState.COMPLETE


@pytest.mark.parametrize("kind", [T.DEACTIVATE, T.DELETE])
def test_deactivate_and_delete_close_what_was_only_requested_and_leave_what_is_closed(kind):
    pair = Pair()
    pair.say(T.CONNECT)
    pair.alice.core.change(T.DEACTIVATE, pair.world.now)
    pair.run()
    here = pair.a.core.ledger.find_connection(ALICE_CHAT, BOB_CHAT)
    there = pair.b.core.ledger.find_connection(BOB_CHAT, ALICE_CHAT)
    assert here.state is there.state is ConnectionState.CLOSED
    stored = len(here.messages)
    pair.alice.core.change(kind, pair.world.now)
    pair.run()
    assert len(here.messages) == stored


def test_closing_again_within_the_same_millisecond_is_another_message(pair):
    closes = []
    for _ in range(2):
        pair.alice.core.change(T.DEACTIVATE, pair.world.now)
        pair.run()
        assert pair.b.core.ledger.find_connection(BOB_CHAT, ALICE_CHAT).state is ConnectionState.CLOSED
        closes.append(decode_bundle(pair.bob.frames_in[-1]).messages[0])
        pair.alice.core.change(T.ACTIVATE, pair.world.now)
        pair.run()
        pair.connect()
    assert closes[0].uri != closes[1].uri
    pair.world.pass_time(60)
    pair.alice.core.change(T.DEACTIVATE, pair.world.now)
    pair.run()
    last = decode_bundle(pair.bob.frames_in[-1]).messages[0]
    assert last.type is T.CLOSE
    assert last.timestamp_ms - pair.world.now // 1000 in (0, 1)


def test_response_to_a_message_of_the_node_itself_is_not_older_than_that(pair):
    pair.alice.core.change(T.DEACTIVATE, pair.world.now)
    pair.run()
    close, response = decode_bundle(pair.bob.frames_in[-1]).messages[:2]
    assert (close.type, response.responding_to) == (T.CLOSE, close.uri)
    assert response.timestamp_ms == close.timestamp_ms


def test_replace_says_nothing_on_a_connection_that_was_only_requested():
    pair = Pair()
    pair.say(T.CONNECT)
    here = pair.a.core.ledger.find_connection(ALICE_CHAT, BOB_CHAT)
    stored = len(here.messages)
    pair.alice.core.replace([ALICE_CHAT, f"{ALICE}#more"], pair.world.now)
    pair.run()
    assert (here.state, len(here.messages)) == (ConnectionState.REQUEST_SENT, stored)


def test_replace_notifies_connected_partners(pair):
    pair.alice.core.replace([ALICE_CHAT, f"{ALICE}#more"], pair.world.now)
    pair.run()
    notification = decode_bundle(pair.bob.frames_in[-1]).messages[0]
    assert (notification.type, notification.signer) == (T.CHANGE, NODE_A)
    assert pair.a.core.ledger.atoms[ALICE].sockets == {ALICE_CHAT, f"{ALICE}#more"}


def test_replace_closes_the_connections_of_sockets_that_it_removes(pair):
    pair.alice.core.replace([f"{ALICE}#more"], pair.world.now)
    pair.run()
    here = pair.a.core.ledger.find_connection(ALICE_CHAT, BOB_CHAT)
    there = pair.b.core.ledger.find_connection(BOB_CHAT, ALICE_CHAT)
    assert here.state is there.state is ConnectionState.CLOSED
    close = decode_bundle(pair.bob.frames_in[-1]).messages[0]
    assert (close.type, close.direction, close.signer) == (T.CLOSE, v.Direction.SYSTEM, NODE_A)


def test_replace_cannot_change_the_key(pair):
    content = c.atom_content(ALICE, [ALICE_CHAT], KEYS["mallory"].public)
    message = pair.alice.core._submit(T.REPLACE, [(v.P_ATOM, f"<{ALICE}>")], content, pair.world.now)
    pair.run()
    assert pair.state(pair.alice, message) is ChainState.FAILED


def test_replace_cannot_declare_a_socket_of_another_atom(pair):
    content = c.atom_content(ALICE, [BOB_CHAT], KEYS[ALICE].public)
    message = pair.alice.core._submit(T.REPLACE, [(v.P_ATOM, f"<{ALICE}>")], content, pair.world.now)
    pair.run()
    assert pair.state(pair.alice, message) is ChainState.FAILED
    assert pair.a.core.ledger.atoms[ALICE].sockets == {ALICE_CHAT}


def test_deleted_atom_refuses_everything(pair):
    pair.alice.core.change(T.DELETE, pair.world.now)
    pair.run()
    for message in (pair.alice.core.change(T.ACTIVATE, pair.world.now), pair.say(T.CONNECT)):
        pair.run()
        assert pair.state(pair.alice, message) is ChainState.FAILED


def test_unreachable_node_gets_everything_when_it_comes_back_without_new_traffic(pair):
    pair.world.unreachable.add(NODE_B)
    pair.world.cut(pair.b)
    messages = [pair.say(text=str(i)) for i in range(5)]
    pair.world.pass_time(600)
    assert all(pair.state(pair.alice, m) is ChainState.AWAITING_RECIPIENT for m in messages)
    assert [e.is_reachable for e in pair.a.told(DestinationChanged)][-1] is False
    pair.world.unreachable.clear()
    pair.world.pass_time(300)
    assert all(pair.state(pair.alice, m) is ChainState.COMPLETE for m in messages)
    assert all(pair.state(pair.bob, m) is ChainState.COMPLETE for m in messages)


def test_pauses_between_tries_grow_and_are_bounded(pair):
    pair.world.unreachable.add(NODE_B)
    pair.world.cut(pair.b)
    pair.say()
    pauses = []
    for _ in range(12):
        due = pair.a.core.next_timer()
        pauses.append(due - pair.world.now)
        pair.world.now = due
        pair.a.core.handle_timer(due)
        pair.run()
    settings = pair.world.settings
    assert settings.retry_ms * 500 <= pauses[0] <= settings.retry_ms * 1000
    assert max(pauses) <= settings.max_retry_ms * 1000
    assert pauses[-1] >= settings.max_retry_ms * 500


@pytest.mark.parametrize("which", ["a", "b"])
def test_node_rebuilt_from_its_journal_goes_on_where_it_was(pair, which):
    pair.world.unreachable.add(NODE_B)
    pair.world.cut(pair.b)
    waiting = pair.say(text="while away")
    pair.world.unreachable.clear()
    party = getattr(pair, which)
    before = party.core.ledger
    pair.world.restart(party)
    after = party.core.ledger
    assert after.first == before.first
    assert after.second == before.second
    assert after.acknowledged == before.acknowledged
    assert after.sent.keys() == before.sent.keys()
    for uri, atom in before.atoms.items():
        assert after.atoms[uri].log == atom.log
        assert after.atoms[uri].state is atom.state
        assert after.atoms[uri].delivered.mark == atom.delivered.mark
        assert after.atoms[uri].confirmations.unconfirmed == atom.confirmations.unconfirmed
    for uri, connection in before.connections.items():
        assert after.connections[uri].confirmations.unconfirmed == connection.confirmations.unconfirmed
        assert after.connections[uri].messages == connection.messages
        assert after.connections[uri].state is connection.state
    pair.world.pass_time(120)
    assert pair.state(pair.alice, waiting) is ChainState.COMPLETE
    assert pair.state(pair.alice, pair.say()) is ChainState.COMPLETE


def test_owner_that_was_away_is_told_everything_in_order(pair):
    pair.bob.core.stop()
    pair.run()
    messages = [pair.say(text=str(i)) for i in range(3)]
    assert pair.state(pair.alice, messages[2]) is ChainState.COMPLETE
    pair.bob.core.start(pair.world.now)
    pair.run()
    received = [e.uri for e in pair.bob.told(ChainAdvanced) if e.state is ChainState.COMPLETE]
    assert received[-3:] == [m.uri for m in messages]
    delivered = [s for s in pair.b.stages(messages[0]) if s[0] == "delivered"]
    assert delivered == [("delivered", BOB)]


def count_work(pair):
    """Calls and bytes that one chain costs all four parties: a measure unaffected by other processes."""
    calls = 0

    def count(frame, event, argument):
        nonlocal calls
        calls += event in ("call", "c_call")

    parties = (pair.a, pair.b, pair.alice, pair.bob)
    for party in parties:
        party.frames_in.clear()
    message = pair.say(text="the same words", run=False)
    sys.setprofile(count)
    try:
        pair.run()
    finally:
        sys.setprofile(None)
    assert pair.state(pair.alice, message) is ChainState.COMPLETE
    return calls, sum(len(data) for party in parties for data in party.frames_in)


@pytest.mark.exhaustive
def test_long_conversation_costs_no_more_per_message_than_a_short_one(pair):
    for number in range(20):
        pair.say(text=str(number))
    calls, size = count_work(pair)
    for number in range(150):
        (pair.reply if number % 7 == 0 else pair.say)(text=str(number))
    for number in range(20):
        pair.say(text=str(number))
    later_calls, later_size = count_work(pair)
    assert later_calls <= calls * 1.02
    assert later_size <= size * 1.02


def test_window_bounds_what_is_under_way():
    pair = Pair(WonSettings(window=2)).connect()
    pair.world.unreachable.add(NODE_B)
    pair.world.cut(pair.b)
    messages = [pair.say(text=str(i)) for i in range(9)]
    pair.world.unreachable.clear()
    pair.world.pass_time(60)
    assert all(pair.state(pair.alice, m) is ChainState.COMPLETE for m in messages)


def test_full_queue_refuses_with_a_failure_response():
    pair = Pair(WonSettings(max_queue=2)).connect()
    pair.world.unreachable.add(NODE_B)
    pair.world.cut(pair.b)
    messages = [pair.say(text=str(i)) for i in range(3)]
    assert pair.state(pair.alice, messages[2]) is ChainState.FAILED
    assert pair.a.rejections() == [Reason.QUEUE_FULL]
