"""The ping-pong fabric: bytes in, events out, and in a small world."""

import pytest

from dovetail.model.address import address_of
from dovetail.model.hop import Observation, Reason, Stage
from dovetail.model.wire import Datagrams
from dovetail.sim import Boot, Link, MemoryJournal, ProcessOptions, World
from dovetail.sim.world import SECOND_US
from sim.pingpong import (
    RETRY_US,
    PingAcknowledged,
    PingDelivered,
    PingPong,
    decode_ping,
    decode_pong,
    encode_ping,
    encode_pong,
)


def stages(events):
    return [event.stage for event in events if isinstance(event, Observation)]


def test_ping_and_pong_come_back_from_their_bytes():
    assert decode_ping(encode_ping(7, "a")) == (7, "a")
    address = address_of(b"x")
    assert decode_pong(encode_pong(address)) == address


@pytest.mark.parametrize("data", [b"", b"P", b"P" + bytes(8), b"Q" + bytes(9), b"P" + bytes(300), b"A" + bytes(31)])
def test_what_is_neither_is_rejected(data):
    core = PingPong("a", [], count=0, interval_us=1, now=0)
    core.receive_frames([(data, "b", False)], 5)
    [event] = core.events()
    assert (event.stage, event.reason, event.raw) == (Stage.REJECTED, Reason.MALFORMED, data)
    assert core.to_send() == []


def test_ping_is_journaled_before_it_is_sent_and_repeated_until_the_pong():
    core = PingPong("a", ["b"], count=1, interval_us=1, now=0)
    core.handle_timer(0)
    assert stages(core.events()) == [Stage.CREATED, Stage.FORWARDED]
    [sent] = core.to_send()
    (ping,) = sent.datagrams
    assert sent.endpoint == "b"
    assert core.next_timer() == RETRY_US
    core.handle_timer(RETRY_US)
    assert core.events() == []
    assert core.to_send() == [Datagrams("b", (ping,))]
    core.receive_frames([(encode_pong(address_of(ping)), "b", False)], RETRY_US + 1)
    events = core.events()
    assert stages(events) == [Stage.ACCEPTED]
    assert events[-1] == PingAcknowledged(peer="b", address=address_of(ping))
    assert core.next_timer() is None


def test_second_copy_of_a_ping_is_answered_and_not_journaled():
    core = PingPong("b", [], count=0, interval_us=1, now=0)
    ping = encode_ping(0, "a")
    core.receive_frames([(ping, "a", False)], 1)
    events = core.events()
    assert stages(events) == [Stage.ACCEPTED, Stage.DELIVERED, Stage.CREATED, Stage.FORWARDED]
    assert events[-1] == PingDelivered(number=0, peer="a", address=address_of(ping))
    first = core.to_send()
    core.receive_frames([(ping, "a", False)], 2)
    assert core.events() == []
    assert core.to_send() == first == [Datagrams("a", (encode_pong(address_of(ping)),))]


def test_restored_core_repeats_what_is_unanswered_and_goes_on_counting():
    journal = MemoryJournal("swarm://pingpong/a")
    core = PingPong("a", ["b"], count=3, interval_us=10, now=0)
    core.handle_timer(10)
    journal.append([event for event in core.events() if isinstance(event, Observation)])
    first, second = (each.datagrams[0] for each in core.to_send())
    core.receive_frames([(encode_pong(address_of(first)), "b", False)], 11)
    journal.append([event for event in core.events() if isinstance(event, Observation)])

    again = PingPong("a", ["b"], count=3, interval_us=10, now=1000)
    again.restore(journal.hops(), 1000)
    again.handle_timer(1000)
    assert again.to_send() == [Datagrams("b", (encode_ping(2, "a"),)), Datagrams("b", (second,))]


def test_two_places_exchange_pings_over_a_bad_network():
    told = []

    def start(peer):
        def factory(boot: Boot):
            core = PingPong(boot.name, [peer], count=20, interval_us=10_000, now=boot.now)
            core.restore(boot.journal.hops(), boot.now)
            return core

        return factory

    world = World(1, link=Link(loss=0.3, duplicate=0.2, reorder=0.2))
    for name, peer in (("a", "b"), ("b", "a")):
        world.add_process(
            name,
            start(peer),
            server=f"swarm://pingpong/{name}",
            options=ProcessOptions(observer=lambda place, event, now: told.append((place, event))),
        )
    world.schedule(50_000, lambda: world.crash("b", restart_after_us=2 * SECOND_US))
    assert world.run(60 * SECOND_US), "no timer is left when all pings are answered"
    acknowledged = [event.address for _, event in told if isinstance(event, PingAcknowledged)]
    hops = world.hops()
    delivered = [hop.message for name in hops for hop in hops[name] if hop.stage is Stage.DELIVERED]
    assert len(delivered) == len(set(delivered)) == 40
    assert set(acknowledged) <= set(delivered)
    assert world.processes["b"].counts.crashes == 1
