"""Which clients get the entries of an atom's log: those that registered, and those that only sent something."""

from __future__ import annotations

import pytest

from dovetail.model.hop import Stage
from dovetail.model.wire import SendFrames
from dovetail.won import compose as c
from dovetail.won.chain import role_of
from dovetail.won.links import LinkKind
from dovetail.won.message import decode_bundle
from dovetail.won.settings import WonSettings
from dovetail.won.trig import encode_bundle
from dovetail.won.vocabulary import Direction
from dovetail.won.vocabulary import MessageType as T
from won.won_samples import ALICE, ALICE_CHAT, BOB_CHAT, KEYS, NODE_B
from won.won_world import Pair


class PlainClient:
    """Does only what the seed says: it sends messages and never registers."""

    def __init__(self, pair, name):
        self.pair = pair
        self.name = name
        self.got = []
        pair.a.core.receive_accepted(name, LinkKind.OWNER, pair.world.now)
        carry, self._carry = pair.world._carry, None
        pair.world._carry = lambda party, item: self.take(item) if is_for(item, name) else carry(party, item)

    def take(self, item):
        parts = decode_bundle(item.frames[0])
        assert parts.position is None, "positions are for clients that register"
        self.got.append(tuple("m" if not part.is_response else role_of(part).value for part in parts.messages))

    def send(self, message):
        self.pair.a.core.receive_frame(encode_bundle([message]), self.name, self.pair.world.now)
        self.pair.run()
        got, self.got = self.got, []
        return got


def is_for(item, link):
    return isinstance(item, SendFrames) and item.links == (link,)


def compose(pair, kind=T.CONNECTION, text="from a plain client"):
    envelope = c.socket_pair(ALICE_CHAT, BOB_CHAT) if kind is T.CONNECTION else [(c.v.P_ATOM, f"<{ALICE}>")]
    return c.compose(
        type=kind,
        direction=Direction.OWNER,
        signer=ALICE,
        key=KEYS[ALICE],
        timestamp_ms=pair.world.now // 1000,
        envelope=envelope,
        content=c.text_content(text) if kind is T.CONNECTION else (),
    )


@pytest.fixture
def pair():
    return Pair().connect()


def test_client_that_never_registered_gets_m_s1_and_s2(pair):
    assert PlainClient(pair, "plain").send(compose(pair)) == [("m", "s1"), ("s2",)]


@pytest.mark.parametrize("kind", [T.DEACTIVATE, T.ACTIVATE])
def test_client_that_never_registered_gets_m_s(pair, kind):
    got = PlainClient(pair, "plain").send(compose(pair, kind))
    assert got[0] == ("m", "s")


def test_client_that_sent_something_gets_what_others_send_from_then_on(pair):
    plain = PlainClient(pair, "plain")
    plain.send(compose(pair))
    pair.say()
    pair.reply()
    assert plain.got == [("m", "s1"), ("s2",), ("m", "s1", "s2")]


def test_message_that_is_known_opens_no_log_to_whoever_repeats_it(pair):
    """The partner has all of alice's messages to it; repeating one must not show it her other conversations."""
    message = pair.say()
    partner = PlainClient(pair, "partner")
    assert partner.send(message) == [("m", "s1"), ("s2",)]
    pair.say()
    assert partner.got == []


def test_message_repeated_before_its_second_response_gets_that_too(pair):
    pair.world.unreachable.add(NODE_B)
    pair.world.cut(pair.b)
    message = compose(pair)
    PlainClient(pair, "first").send(message)
    again = PlainClient(pair, "again")
    assert again.send(message) == [("m", "s1")]
    pair.world.unreachable.clear()
    pair.world.pass_time(60)
    assert again.got == [("s2",)]


def test_client_that_repeats_its_own_message_gets_the_second_response_once(pair):
    pair.world.unreachable.add(NODE_B)
    pair.world.cut(pair.b)
    message = compose(pair)
    client = PlainClient(pair, "plain")
    client.send(message)
    client.send(message)
    pair.world.unreachable.clear()
    pair.world.pass_time(60)
    assert client.got == [("s2",)]


def test_repeating_an_unanswered_message_takes_memory_once_and_only_while_the_link_is_open(pair):
    pair.world.unreachable.add(NODE_B)
    pair.world.cut(pair.b)
    message = compose(pair)
    PlainClient(pair, "first").send(message)
    again = PlainClient(pair, "again")
    for _ in range(5):
        again.send(message)
    fanout = pair.a.core._fanout
    assert fanout._awaiting == {message.uri: {"again"}}
    pair.a.core.receive_closed("again", pair.world.now)
    assert (fanout._awaiting, fanout._asked) == ({}, {})


def test_log_is_caught_up_with_in_pages_of_so_many_bytes_and_at_least_one_entry():
    pair = Pair(WonSettings(burst_bytes=12_000)).connect()
    pair.alice.core.stop()
    pair.run()
    for size in (4_000, 4_000, 4_000, 30_000, 10):
        pair.reply(text="x" * size)
    atom = pair.a.core.ledger.atoms[ALICE]
    missed = len(atom.log) - 5
    pages = []
    while atom.links.get("late", missed) < len(atom.log):
        pair.a.core._fanout.register(atom, "late", missed, pair.world.now)
        pages.append([len(item.frames[0]) for item in pair.a.core.to_send()])
    assert all(sum(page[:-1]) < 12_000 for page in pages)
    assert sum(map(len, pages)) == 5
    assert len(pages) >= 3
    pair.alice.core.start(pair.world.now)
    pair.run()
    assert pair.alice.core.position == len(atom.log)


def test_refused_message_is_answered_to_its_sender(pair):
    pair.say(T.CLOSE)
    assert PlainClient(pair, "plain").send(compose(pair)) == [("m", "failure")]


def test_client_that_left_is_forgotten(pair):
    plain = PlainClient(pair, "plain")
    plain.send(compose(pair))
    pair.a.core.receive_closed("plain", pair.world.now)
    pair.say()
    assert plain.got == []
    assert pair.a.core.ledger.atoms[ALICE].followers == set()


def test_entry_that_only_a_plain_client_got_is_delivered_once():
    pair = Pair().connect()
    pair.alice.core.stop()
    pair.run()
    missed = pair.reply(text="missed")
    plain = PlainClient(pair, "plain")
    message = compose(pair)
    plain.send(message)
    before = pair.a.stages(message)
    assert [stage for stage, *_ in before].count(Stage.ECHOED.value) == 1
    pair.alice.core.start(pair.world.now)
    pair.run()
    assert pair.a.stages(message) == before
    assert (Stage.DELIVERED.value, ALICE) in pair.a.stages(missed)
    pair.world.restart(pair.a)
    assert pair.a.core.ledger.atoms[ALICE].delivered.mark == len(pair.a.core.ledger.atoms[ALICE].log)


def test_plain_client_that_registers_gets_the_whole_log(pair):
    plain = PlainClient(pair, "plain")
    plain.send(compose(pair))
    atom = pair.a.core.ledger.atoms[ALICE]
    pair.a.core._fanout.register(atom, "plain", 0, pair.world.now)
    frames = [item for item in pair.a.core.to_send() if is_for(item, "plain")]
    assert len(frames) == len(atom.log)
    assert "plain" not in atom.followers
