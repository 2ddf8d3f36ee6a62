"""What other nodes have yet to answer: outages, lifetimes and bounds."""

from __future__ import annotations

import pytest

from counting import count_calls
from dovetail.model.hop import Reason, Stage
from dovetail.model.wire import OpenLink, SendFrames
from dovetail.won.chain import ChainState
from dovetail.won.integrity import check_conversation
from dovetail.won.links import LinkKind
from dovetail.won.message import decode_bundle, decode_message
from dovetail.won.settings import WonSettings
from dovetail.won.vocabulary import MessageType as T
from won.won_samples import ALICE, BOB, KEYS, NODE_A, NODE_B
from won.won_world import Pair, conversation_raws

PUBLIC = {name: KEYS[name].public for name in (NODE_A, NODE_B, ALICE, BOB)}


def cut_off(pair):
    pair.world.unreachable.add(NODE_B)
    pair.world.cut(pair.b)


def connect_to(pair, number, owner=None):
    owner = owner or pair.alice
    socket = f"https://gone-{number}.example/won/resource/atom/x#chat"
    message = owner.core.send_message(T.CONNECT, f"{owner.core.atom}#chat", socket, pair.world.now)
    pair.run()
    return message


@pytest.mark.parametrize("which", ["a", "b"])
def test_outage_with_many_messages_waiting_completes_and_both_nodes_start_again(which):
    """With references to everything unconfirmed, a response soon has more statements than a reader accepts."""
    settings = WonSettings(max_references=8, max_message_quads=40, window=16)
    pair = Pair(settings).connect()
    cut_off(pair)
    messages = [pair.say(text=str(number)) for number in range(200)]
    pair.world.unreachable.clear()
    pair.world.pass_time(60)
    assert {pair.state(pair.alice, m) for m in messages} == {ChainState.COMPLETE}
    assert {pair.state(pair.bob, m) for m in messages} == {ChainState.COMPLETE}
    pair.world.restart(getattr(pair, which))
    pair.world.pass_time(60)
    after = [pair.say(text="after"), pair.reply(text="after too")]
    assert {pair.state(pair.alice, m) for m in after} == {ChainState.COMPLETE}
    for party in (pair.a, pair.b, pair.alice, pair.bob):
        assert party.rejections() == []
        raws = conversation_raws(party)
        assert max(len(decode_message(raw).previous) for raw in raws) <= 8
        assert check_conversation(raws, PUBLIC) == []


@pytest.mark.exhaustive
def test_outage_with_thousands_of_messages_waiting_completes():
    pair = Pair().connect()
    cut_off(pair)
    messages = [pair.say(text=str(number), run=number % 50 == 0) for number in range(2_500)]
    pair.run()
    pair.world.unreachable.clear()
    pair.world.pass_time(60)
    assert {pair.state(pair.alice, m) for m in messages} == {ChainState.COMPLETE}
    stored = sum(len(o.raw) for o in pair.b.observations if o.raw)
    assert stored < 20_000 * len(messages), "what is stored of a message does not grow with the messages that wait"
    pair.world.restart(pair.b)
    assert pair.state(pair.alice, pair.say()) is ChainState.COMPLETE


def test_message_that_is_not_taken_in_its_lifetime_has_failed_and_its_owner_is_told():
    pair = Pair(WonSettings(message_lifetime_ms=3_600_000)).connect()
    cut_off(pair)
    message = pair.say()
    pair.world.pass_time(3_500)
    assert pair.state(pair.alice, message) is ChainState.AWAITING_RECIPIENT
    pair.world.pass_time(200)
    assert pair.state(pair.alice, message) is ChainState.FAILED
    detail = pair.alice.core.conversations.deliveries[message.uri].detail
    assert detail == f"unreachable_node: {NODE_B} did not answer within 3600 s"
    assert (Stage.UNDELIVERABLE.value, BOB) in pair.a.stages(message)
    assert pair.a.core.ledger.sent == {}
    assert check_conversation(conversation_raws(pair.alice), PUBLIC) == []
    assert pair.a.core.next_timer() is None, "nothing is tried again"


@pytest.mark.parametrize("is_restarted", [False, True])
def test_node_that_is_back_takes_what_is_sent_after_a_failure(is_restarted):
    pair = Pair(WonSettings(message_lifetime_ms=60_000)).connect()
    cut_off(pair)
    lost = pair.say(text="lost")
    pair.world.pass_time(100)
    assert pair.state(pair.alice, lost) is ChainState.FAILED
    if is_restarted:
        pair.world.restart(pair.a)
        assert pair.a.core.ledger.sent == {}
        pair.world.pass_time(60)
    pair.world.unreachable.clear()
    message = pair.say(text="taken")
    pair.world.pass_time(30)
    assert pair.state(pair.alice, message) is ChainState.COMPLETE
    assert pair.state(pair.alice, lost) is ChainState.FAILED
    assert check_conversation(conversation_raws(pair.alice), PUBLIC) == []
    assert check_conversation(conversation_raws(pair.bob), PUBLIC) == []


@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize("is_refused", [False, True])
def test_response_that_comes_after_its_message_was_given_up_still_counts(is_restarted, is_refused):
    pair = Pair(WonSettings(message_lifetime_ms=60_000)).connect()
    if is_refused:
        pair.bob.core.change(T.DEACTIVATE, pair.world.now)
        pair.run()
    message = pair.say(T.CONNECT, run=False)
    while pair.world.step(pair.alice) or pair.world.step(pair.a):
        pass
    frames = [item.frames[0] for item in pair.b.core.to_send() if isinstance(item, SendFrames)]
    pair.world.cut(pair.b)
    pair.world.unreachable.add(NODE_B)
    pair.world.pass_time(200)
    assert pair.state(pair.alice, message) is ChainState.FAILED
    if is_restarted:
        pair.world.restart(pair.a)
    pair.a.core.receive_accepted("late", LinkKind.NODE, pair.world.now)
    second = next(data for data in frames if len(decode_bundle(data).messages) == 1)
    pair.a.core.receive_frame(second, "late", pair.world.now)
    pair.world.pass_time(120)
    assert pair.state(pair.alice, message) is (ChainState.FAILED if is_refused else ChainState.COMPLETE)
    detail = pair.alice.core.conversations.deliveries[message.uri].detail
    assert detail == (f"atom_inactive: {BOB} is not active" if is_refused else None)
    assert pair.a.rejections() == [Reason.UNREACHABLE_NODE], "the reason why it was undeliverable"
    assert pair.alice.rejections() == []


def test_dead_destinations_are_dialled_a_few_at_a_time():
    pair = Pair(WonSettings(max_dials=3))
    answer, pair.world._carry = pair.world._carry, None
    dials = []
    pair.world._carry = lambda party, item: dials.append(item) if is_dial(item) else answer(party, item)
    for number in range(10):
        connect_to(pair, number)
    assert len(dials) == 3
    for item in dials:
        pair.a.core.receive_closed(item.link, pair.world.now)
    pair.run()
    assert len(dials) == 6


def test_many_dead_destinations_do_not_delay_a_new_one():
    pair = Pair(WonSettings(max_dials=2))
    answer, dials = pair.world._carry, []
    pair.world._carry = lambda party, item: dials.append(item) if is_dial(item) else answer(party, item)
    for number in range(40):
        connect_to(pair, number)
    tried = 0

    def fail_next():
        nonlocal tried
        pair.a.core.receive_closed(dials[tried].link, pair.world.now)
        tried += 1
        pair.run()

    while len(dials) < 40:
        fail_next()
    pair.world.pass_time(5)  # all are to be tried again
    connect_to(pair, 40)
    fail_next()
    fail_next()
    new, again = sorted(dials[40:], key=lambda item: "gone-40" not in item.destination)
    assert ("gone-40" in new.destination, "gone-40" in again.destination) == (True, False)


def count_dials(pair, dials):
    """The world, which cannot reach these nodes, and a list of who was dialled."""
    answer = pair.world._carry

    def carry(party, item):
        dials.extend([item.destination] if is_dial(item) else [])
        answer(party, item)

    pair.world._carry = carry


def test_dead_destinations_are_tried_again_at_a_bounded_rate():
    pair, dials = Pair(WonSettings(max_retries_per_s=2)), []
    count_dials(pair, dials)
    for number in range(50):
        connect_to(pair, number)
    assert len(dials) >= 50, "the first attempt does not wait"
    dials.clear()
    pair.world.pass_time(60)
    assert 100 <= len(dials) <= 125
    assert len(set(dials)) == 50, "all have their turn"


def test_destination_that_failed_once_does_not_wait_for_many_that_failed_often():
    pair, dials = Pair(WonSettings(max_retries_per_s=1, max_retry_ms=20_000)), []
    count_dials(pair, dials)
    for number in range(60):
        connect_to(pair, number)
    pair.world.pass_time(600)
    connect_to(pair, 60)
    dials.clear()
    pair.world.pass_time(10)
    assert sum("gone-60." in node for node in dials) >= 2


def test_retries_go_on_when_the_clock_was_set_back():
    pair, dials = Pair(WonSettings(max_retries_per_s=1)), []
    count_dials(pair, dials)
    for number in range(10):
        connect_to(pair, number)
    pair.world.pass_time(5)
    dials.clear()
    pair.world.now -= 1_200_000_000
    pair.a.core.handle_timer(pair.world.now)
    pair.world.pass_time(60)
    assert len(dials) >= 40


def test_search_for_a_destination_to_drop_costs_the_same_however_many_are_busy():
    def cost(count):
        pair = Pair(WonSettings(max_destinations=2 * count))
        for number in range(count):
            connect_to(pair, number)
        return count_calls(lambda: pair.a.core._outboxes.make_room("https://another.example/won/resource", ALICE))

    assert cost(100) <= cost(10)


def is_dial(item):
    return isinstance(item, OpenLink) and "gone" in item.destination


@pytest.mark.parametrize("is_restarted", [False, True])
def test_destinations_are_bounded_and_one_owner_leaves_half_of_them_to_others(is_restarted):
    pair = Pair(WonSettings(max_destinations=8, message_lifetime_ms=3_600_000))
    carol = pair.world.owner(f"{NODE_A}/atom/carol", 5)
    carol.core.create([f"{carol.core.atom}#chat"], pair.world.now)
    carol.core.start(pair.world.now)
    pair.run()
    states = [pair.state(pair.alice, connect_to(pair, number)) for number in range(6)]
    assert states == [ChainState.AWAITING_RECIPIENT] * 4 + [ChainState.FAILED] * 2
    if is_restarted:
        pair.world.restart(pair.a)
        pair.world.pass_time(60)
        assert pair.state(pair.alice, connect_to(pair, 6)) is ChainState.FAILED
    others = [pair.state(carol, connect_to(pair, number, carol)) for number in (0, 10, 11, 12)]
    assert others == [ChainState.AWAITING_RECIPIENT] * 3 + [ChainState.FAILED], "the first was there already"
    assert set(pair.a.rejections()) == {Reason.QUEUE_FULL}
    pair.world.pass_time(4_000)
    assert pair.state(pair.alice, connect_to(pair, 20)) is ChainState.AWAITING_RECIPIENT, "failed ones hold nothing"


def test_link_without_traffic_gives_way_to_another_destination():
    pair = Pair(WonSettings(max_destinations=1)).connect()
    assert [q.node for q in pair.a.core.status(pair.world.now).queues] == [NODE_B]
    message = connect_to(pair, 1)
    assert pair.state(pair.alice, message) is ChainState.AWAITING_RECIPIENT
    assert [q.length for q in pair.a.core.status(pair.world.now).queues] == [1]


def test_destination_is_forgotten_when_everything_for_it_has_failed():
    pair = Pair(WonSettings(message_lifetime_ms=60_000))
    connect_to(pair, 1)
    pair.world.pass_time(400)
    assert pair.a.core.status(pair.world.now).queues == []


def test_cost_of_a_message_does_not_depend_on_how_many_destinations_are_dead():
    pair = Pair(WonSettings(max_dials=2000)).connect()

    def chain():
        pair.say(text="the same words")
        pair.a.core.next_timer()

    chain()
    before = count_calls(chain)
    for number in range(300):
        connect_to(pair, number)
    pair.world.pass_time(5)
    chain()
    assert count_calls(chain) <= before * 1.1


def test_node_that_accepts_links_and_ends_them_is_not_dialled_ever_faster():
    pair = Pair().connect()
    pair.world.dark |= {NODE_A, ALICE}
    pair.b.core.keys._fetched.clear()
    pair.say()
    attempts = pair.a.core._outboxes._opened
    pair.world.pass_time(600)
    assert pair.a.core._outboxes._opened - attempts < 20


def test_retries_do_not_wait_for_a_clock_that_was_set_back():
    pair = Pair().connect()
    cut_off(pair)
    message = pair.say()
    pair.world.pass_time(5)
    pair.world.unreachable.clear()
    pair.world.now -= 1_200_000_000
    pair.a.core.handle_timer(pair.world.now)  # a shell's timer fires after the time it was set for, whatever the clock
    pair.world.pass_time(600)
    assert pair.state(pair.alice, message) is ChainState.COMPLETE


def test_owners_do_not_wait_for_a_clock_that_was_set_back():
    pair = Pair().connect()
    pair.world.cut(pair.alice)
    pair.world.now -= 1_200_000_000
    pair.alice.core.handle_timer(pair.world.now)
    message = pair.say()
    pair.world.pass_time(5)
    assert pair.state(pair.alice, message) is ChainState.COMPLETE


@pytest.mark.parametrize("dead", [0, 60])
def test_node_that_writes_to_us_is_tried_soon(dead):
    pair = Pair(WonSettings(max_retries_per_s=1, max_retry_ms=20_000)).connect()
    for number in range(dead):
        connect_to(pair, number)
    cut_off(pair)
    message = pair.say()
    pair.world.pass_time(3_600)
    pair.world.unreachable.clear()
    pair.bob.core.stop()
    pair.bob.core.start(pair.world.now)
    pair.reply()
    pair.world.pass_time(1)
    assert pair.state(pair.alice, message) is ChainState.COMPLETE
