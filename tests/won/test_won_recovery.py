"""Restarting with a partly unreadable journal."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from dovetail.model.address import address_of, won_uri
from dovetail.model.errors import RemoteProtocolError
from dovetail.model.hop import Stage
from dovetail.won import vocabulary as v
from dovetail.won.canonical import encode_lines, join_lines, rename
from dovetail.won.chain import ChainState
from dovetail.won.events import HopUnreadable
from dovetail.won.message import compute_address, decode_message
from won.won_world import Pair


def hops_with(party, change):
    """The party's hops, with bytes changed by `change(number, raw)`."""
    return [replace(hop, raw=change(number, hop.raw)) if hop.raw else hop for number, hop in enumerate(party.hops())]


def restart_with(pair, party, hops):
    """The events of restarting the party from these hops."""
    party.hops = lambda: hops
    party.events.clear()
    pair.world.restart(party)
    pair.run()
    return party.told(HopUnreadable)


def stored_hops(party):
    return [n for n, hop in enumerate(party.hops()) if hop.raw and hop.stage in (Stage.ACCEPTED, Stage.CREATED)]


PAIR = Pair().connect()
PAIR.say(), PAIR.reply()
UNREADABLE = [(name, number) for name in ("a", "b", "alice") for number in stored_hops(getattr(PAIR, name))]


@pytest.mark.parametrize(("name", "broken"), UNREADABLE)
@pytest.mark.parametrize("damage", [lambda raw: b"garbage", lambda raw: None], ids=["garbage", "gone"])
def test_one_unreadable_hop_does_not_keep_a_party_from_starting(name, broken, damage):
    pair = Pair().connect()
    pair.say(), pair.reply()
    party = getattr(pair, name)
    hops = hops_with(party, lambda number, raw: damage(raw) if number == broken else raw)
    told = restart_with(pair, party, hops)
    assert hops[broken].seq in [event.seq for event in told]


def test_readable_journal_gives_no_such_event():
    pair = Pair().connect()
    for party in (pair.a, pair.b, pair.alice, pair.bob):
        assert restart_with(pair, party, party.hops()) == []


def enlarged(raw, count):
    """A response as earlier versions made it: with a reference to each of many unconfirmed responses."""
    message = decode_message(raw)
    quads = rename(message.quads, message.uri, v.SELF)
    names = [won_uri(address_of(str(number).encode())) for number in range(count)]
    quads += [(f"<{v.SELF}>", v.P_PREVIOUS, f"<{name}>", f"<{v.SELF}{v.ENVELOPE}>") for name in names]
    address = compute_address(quads)[0]
    return address, join_lines(encode_lines(rename(quads, v.SELF, won_uri(address))))


def test_response_with_more_references_than_others_accept_is_read_from_the_own_journal():
    pair = Pair().connect()
    pair.say()
    hops = pair.b.hops()
    last = max(number for number in stored_hops(pair.b) if hops[number].stage is Stage.CREATED)
    address, raw = enlarged(hops[last].raw, 7_000)
    with pytest.raises(RemoteProtocolError):
        decode_message(raw)
    hops = [replace(hop, message=address, raw=raw) if number == last else hop for number, hop in enumerate(hops)]
    assert restart_with(pair, pair.b, hops) == []


def test_conversation_goes_on_after_a_response_was_lost():
    pair = Pair().connect()
    pair.say()
    lost = max(number for number in stored_hops(pair.b) if pair.b.hops()[number].stage is Stage.CREATED)
    hops = hops_with(pair.b, lambda number, raw: b"garbage" if number == lost else raw)
    assert [event.seq for event in restart_with(pair, pair.b, hops)] == [lost]
    pair.world.pass_time(60)
    assert pair.state(pair.alice, pair.say()) is ChainState.COMPLETE
