"""Links of a node: bounds, order, and frames that wait for keys."""

from __future__ import annotations

import sys

import pytest

from dovetail.model.hop import Reason
from dovetail.model.wire import CloseLink
from dovetail.won.chain import ChainState
from dovetail.won.events import KeyWanted
from dovetail.won.links import CLOSE_TRY_AGAIN, LinkKind
from dovetail.won.message import decode_bundle, decode_message
from dovetail.won.settings import WonSettings
from dovetail.won.vocabulary import MessageType as T
from won.won_samples import ALICE, NODE_A
from won.won_world import Pair, World


def late_keys(pair):
    """Documents that alice's node serves are requested and do not arrive."""
    asked = []
    serve = pair.world._serve
    pair.world._serve = lambda party, uri: asked.append(uri) if uri in (ALICE, NODE_A) else serve(party, uri)
    pair.b.core.keys._fetched.clear()
    return asked


def test_links_are_bounded():
    pair = Pair(WonSettings(max_links=3))
    before = sum(pair.a.core.status(pair.world.now).links.values())
    for number in range(before, 5):
        pair.a.core.receive_accepted(f"extra {number}", LinkKind.NODE, pair.world.now)
    closed = [item for item in pair.a.core.to_send() if isinstance(item, CloseLink)]
    assert [item.code for item in closed] == [CLOSE_TRY_AGAIN] * 2
    assert sum(pair.a.core.status(pair.world.now).links.values()) == 3


def test_bytes_that_wait_for_keys_are_bounded():
    pair = Pair(WonSettings(max_held_bytes=80_000)).connect()
    late_keys(pair)
    for number in range(8):
        pair.say(text=str(number) * 2_000)
    assert Reason.QUEUE_FULL in pair.b.rejections()
    assert pair.b.core._links._held_bytes == 0, "the link was closed, and what it held is gone"


def test_frame_that_waited_for_a_key_is_decoded_once():
    pair = Pair().connect()
    asked = late_keys(pair)
    message = pair.say(run=False)
    decoded = []

    def observe(frame, event, _argument):
        if event == "call" and frame.f_code is decode_bundle.__code__:
            decoded.append(frame.f_locals["data"])

    sys.setprofile(observe)
    try:
        pair.run()
        for uri in list(asked):
            World._serve(pair.world, pair.b, uri)
        pair.run()
    finally:
        sys.setprofile(None)
    assert pair.state(pair.alice, message) is ChainState.COMPLETE
    assert decoded.count(pair.b.frames_in[-1]) == 1


def crowded(pair):
    """Five more links with the frame that waits for keys on the one between the nodes; returns the names of all six."""
    late_keys(pair)
    pair.b.events.clear()
    pair.say()
    names = [pair.b.told(KeyWanted)[0].link, *(f"other {number}" for number in range(5))]
    frame = pair.b.frames_in[-1]
    for name in names[1:]:
        pair.world.now += 1_000_000
        pair.b.core.receive_accepted(name, LinkKind.NODE, pair.world.now)
        pair.b.core.receive_frame(frame, name, pair.world.now)
    pair.run()
    return names


def test_every_link_that_waits_for_a_key_says_so_once():
    pair = Pair().connect()
    names = crowded(pair)
    asked = [(event.uri, event.link) for event in pair.b.told(KeyWanted)]
    assert sorted(asked) == sorted((uri, name) for name in names for uri in {uri for uri, _ in asked})
    assert pair.b.core.status(pair.world.now).links_waiting == 6
    for name in names:
        pair.b.core.receive_closed(name, pair.world.now)
    assert pair.b.core._links._wanted == {}, "nobody waits for an answer"


def test_link_goes_on_with_a_key_that_came_too_late_for_one_that_asked_before():
    pair = Pair().connect()
    names = crowded(pair)
    asked = {event.uri for event in pair.b.told(KeyWanted)}
    pair.world.pass_time(6)
    waiting = pair.b.core.status(pair.world.now).links_waiting
    assert 0 < waiting < len(names)
    refused = pair.b.rejections().count(Reason.UNKNOWN_KEY)
    for uri in asked:
        World._serve(pair.world, pair.b, uri)
    assert pair.b.core.status(pair.world.now).links_waiting == 0
    pair.world.pass_time(20)
    assert pair.b.rejections().count(Reason.UNKNOWN_KEY) == refused


@pytest.mark.parametrize("kind", [T.CREATE, T.REPLACE, T.ACTIVATE, T.DEACTIVATE, T.DELETE])
def test_atom_specific_message_from_a_node_is_refused(kind):
    """They are sent only between an owner and its node."""
    pair = Pair().connect()
    owner = pair.alice.core
    if kind is T.CREATE:
        made = next(m for m in (decode_message(o.raw) for o in pair.a.observations if o.raw) if m.type is kind)
    elif kind is T.REPLACE:
        made = owner.replace([f"{ALICE}#chat"], pair.world.now)
    else:
        made = owner.change(kind, pair.world.now)
    owner.events(), owner.to_send()
    before = pair.b.core.ledger.atoms.keys() | pair.b.core.ledger.connections.keys()
    link = next(name for name, (other, _) in pair.b.peers.items() if other is pair.a)
    pair.b.core.receive_frame(made.raw, link, pair.world.now)
    pair.run()
    assert pair.b.rejections() == [Reason.INVALID_SCHEMA]
    assert pair.b.core.ledger.atoms.keys() | pair.b.core.ledger.connections.keys() == before
