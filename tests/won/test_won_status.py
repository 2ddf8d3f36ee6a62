"""A node in numbers."""

from __future__ import annotations

from dovetail.model.hop import Reason, Stage
from dovetail.won.atom import AtomState
from dovetail.won.chain import ChainState
from dovetail.won.connection import ConnectionState
from dovetail.won.links import LinkKind
from dovetail.won.vocabulary import MessageType as T
from won.won_samples import ALICE_CHAT, NODE_A, NODE_B
from won.won_world import Pair


def status(pair, party=None):
    return (party or pair.a).core.status(pair.world.now)


def test_chains_connections_links_and_keys_are_counted():
    pair = Pair().connect()
    pair.say()
    found = status(pair)
    assert found.atoms == {AtomState.ACTIVE: 1}
    assert found.connections == {ConnectionState.CONNECTED: 1}
    assert found.chains == {ChainState.ATOM: 1, ChainState.COMPLETE: 2, ChainState.AWAITING_RECIPIENT: 0}
    assert found.links == {LinkKind.OWNER: 1, LinkKind.NODE: 2}
    # its own key and alice's are pinned; those of bob and his node were fetched
    assert (found.keys_pinned, found.keys_fetched, found.links_waiting) == (2, 2, 0)


def test_hops_are_counted_by_stage_and_reason():
    pair = Pair().connect()
    before = status(pair).hops
    pair.say(T.CLOSE)
    pair.say()  # on a closed connection
    after = status(pair).hops
    grown = {key: count - before.get(key, 0) for key, count in after.items() if count != before.get(key, 0)}
    assert grown[Stage.REJECTED, Reason.WRONG_STATE] == 1
    assert grown[Stage.ECHOED, None] == 1
    observed = [o for o in pair.a.observations if o.stage is Stage.CREATED]
    assert after[Stage.CREATED, None] == len(observed)
    assert status(pair).chains[ChainState.FAILED] == 1


def test_what_is_owed_has_a_length_and_an_age_that_survive_a_restart():
    pair = Pair().connect()
    pair.world.unreachable.add(NODE_B)
    pair.world.cut(pair.b)
    for text in "12":
        pair.say(text=text)
        pair.world.pass_time(10)
    (queue,) = status(pair).queues
    assert (queue.node, queue.length, queue.oldest_ms, queue.is_open) == (NODE_B, 2, 20_000, False)
    pair.world.restart(pair.a)
    pair.world.pass_time(5)
    (queue,) = status(pair).queues
    assert (queue.length, queue.oldest_ms) == (2, 25_000)
    assert status(pair).chains[ChainState.AWAITING_RECIPIENT] == 2
    pair.world.unreachable.clear()
    pair.world.pass_time(90)
    (queue,) = status(pair).queues
    assert (queue.length, queue.oldest_ms, queue.is_open) == (0, 0, True)
    assert status(pair).chains[ChainState.COMPLETE] == 3


def test_link_that_waits_for_a_key_is_counted():
    pair = Pair()
    pair.world.dark.add(NODE_A)
    served, pair.world._serve = pair.world._serve, lambda party, uri: None
    pair.alice.core.send_message(T.CONNECT, ALICE_CHAT, pair.bob_chat, pair.world.now)
    pair.run()
    assert status(pair, pair.b).links_waiting == 1
    pair.world._serve = served
    pair.world.pass_time(11)
    assert status(pair, pair.b).links_waiting == 0
