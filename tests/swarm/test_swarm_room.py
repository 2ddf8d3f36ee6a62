"""Room for messages: bounded in number and bytes, shared among sources, and what a full peer still does."""

from __future__ import annotations

import itertools
import random

from dovetail.model.hop import Reason
from dovetail.model.wire import Datagrams
from dovetail.sim import SECOND_US
from dovetail.swarm.content import Content, Reference, encode_content
from dovetail.swarm.packet import SwarmSigner, encode_packet
from dovetail.swarm.pow import HashlibSearch, solve
from dovetail.swarm.room import OVERHEAD_BYTES, Room
from dovetail.swarm.settings import PeerSettings, SwarmSettings
from swarm.peers import Bench
from swarm.swarm_world import SETTINGS, SwarmWorld

MIB = 1 << 20
FREE = SwarmSettings(name="test", work=1, max_ttl_epochs=1440)


def fill(room: Room, source: str, size: int = 100) -> int:
    """What one source can add."""
    count = 0
    while room.admits(source, size):
        room.take(source, size)
        count += 1
    return count


def test_one_source_takes_half_and_the_next_half_of_the_rest():
    room = Room(1_000, 1 << 40)
    assert [fill(room, "first"), fill(room, "second"), fill(room, "third")] == [500, 250, 125]
    assert room.messages == 875


def test_sources_that_come_together_get_the_same():
    room = Room(1_000, 1 << 40)
    held = dict.fromkeys(["a", "b", "c"], 0)
    for source in itertools.islice(itertools.cycle(held), 3_000):
        if room.admits(source, 1):
            room.take(source, 1)
            held[source] += 1
    assert set(held.values()) == {250}


def test_bytes_are_bounded_with_what_a_message_takes_besides_them():
    room = Room(10**9, MIB)
    assert fill(room, "first", 10_000) == 48
    assert room.bytes == 48 * (10_000 + OVERHEAD_BYTES)
    for number in range(1_000):
        fill(room, f"source {number}", 1)
    assert MIB - 2 * OVERHEAD_BYTES < room.bytes <= MIB


def test_what_expires_makes_room_and_leaves_nothing_behind():
    room = Room(100, MIB)
    count = fill(room, "first")
    for _ in range(count):
        room.release("first", 100)
    assert (room.messages, room.bytes, room._shares) == (0, 0, {})


def test_own_messages_are_counted_and_always_held():
    bench = Bench(FREE, peer_settings=PeerSettings(max_held_messages=64))
    for number in range(100):
        bench.peer.publish_solved(bench.content(b"%d" % number), bench.now)
    assert bench.peer.status().messages == 100
    bench.feed(bench.content(b"theirs"))
    bench.assert_refused(Reason.QUEUE_FULL)


def test_messages_of_ttl_0_are_counted_until_they_expire():
    bench = Bench(FREE, peer_settings=PeerSettings(max_held_messages=64))
    bench.link("192.0.2.1:9", 1)
    for number in range(100):
        bench.feed(bench.content(b"%d" % number, ttl=0), "192.0.2.1:9")
    assert bench.peer.status().refused == {Reason.QUEUE_FULL: 68}
    bench.wait(61)
    assert bench.peer.status().held_bytes == 0
    bench.feed(bench.content(b"again", ttl=0), "192.0.2.1:9")
    assert bench.peer.status().held_bytes == OVERHEAD_BYTES


def test_a_refused_message_is_neither_relayed_nor_wanted_until_there_is_room():
    bench = Bench(FREE, peer_settings=PeerSettings(max_held_messages=64))
    for number in (1, 2):
        bench.link(f"192.0.2.{number}:9", number)
    for number in range(32):
        assert bench.feed(bench.content(b"%d" % number, ttl=1), "192.0.2.1:9")
    late = bench.content(b"late", ttl=3)
    assert bench.feed(late, "192.0.2.1:9") == []
    bench.assert_refused(Reason.QUEUE_FULL)
    bench.wait(61)
    bench.feed(late, "192.0.2.1:9")
    assert bench.peer.status().messages == 1


def test_any_number_of_unproven_addresses_is_one_source():
    bench = Bench(FREE, peer_settings=PeerSettings(max_held_messages=64))
    bench.link("192.0.2.1:9", 1)
    for number in range(300):
        bench.feed(bench.content(b"%d" % number), f"198.51.100.{number % 250}:{number + 1}")
    assert bench.peer.status().messages == 32
    for number in range(16):
        bench.feed(bench.content(b"honest %d" % number), "192.0.2.1:9")
    assert bench.peer.status().messages == 48


class Inventor:
    """A peer with valid work that refers to messages nobody has, as fast as it is let."""

    def __init__(self, victims: list[str], chance: random.Random, now: int, per_turn: int) -> None:
        self._victims = victims
        self._chance = chance
        self._due_us = now
        self._per_turn = per_turn
        self._signer = SwarmSigner(SETTINGS.key, SETTINGS.slot_slack)
        self._outgoing: list[Datagrams] = []

    def receive_frames(self, frames, now: int) -> None:
        """It reads nothing."""

    def handle_timer(self, now: int) -> None:
        self._due_us = now + SECOND_US // 10
        for victim in self._victims:
            made = tuple(encode_packet(self._make(now), self._signer, now // 1000, 3) for _ in range(self._per_turn))
            self._outgoing.append(Datagrams(victim, made))

    def next_timer(self) -> int:
        return self._due_us

    def events(self) -> list[object]:
        return []

    def to_send(self) -> list[Datagrams]:
        outgoing, self._outgoing = self._outgoing, []
        return outgoing

    def _make(self, now: int) -> bytes:
        edges = tuple(Reference(self._chance.getrandbits(64).to_bytes(8), 0) for _ in range(4))
        content = Content(timestamp_ms=now // 1000, ttl_epochs=60, references=edges, payload=b"invented")
        solved = solve(
            encode_content(content), SETTINGS.rules.pow_target, self._chance.getrandbits(53), HashlibSearch(), run=64
        )
        assert solved is not None
        return solved


SMALL = PeerSettings(max_wanted=64, max_held_messages=200, max_held_bytes=MIB)


def run_under_attack() -> SwarmWorld:
    """Five peers with traffic and loss, one of them flooded by two inventors."""
    swarm = SwarmWorld(5, 5, loss=0.2, peer_settings=SMALL)
    swarm.run(10)
    for name in ("inventor-0", "inventor-1"):
        swarm.world.add_process(
            name,
            lambda boot: Inventor(swarm.names[:1], boot.random, boot.now, 5),
            server=f"swarm://{SETTINGS.name}/{name}",
        )
    swarm.traffic(15)
    return swarm


def test_inventions_stay_within_the_bounds_and_honest_messages_are_repaired_meanwhile():
    swarm = run_under_attack()
    for peer in swarm.peers:
        status = peer.status()
        assert status.messages <= SMALL.max_held_messages
        assert status.held_bytes <= SMALL.max_held_bytes
        assert status.missing <= SMALL.max_wanted
    status = swarm.peers[0].status()
    assert status.refused[Reason.QUEUE_FULL] > 1_000
    assert status.crowded_out > 100
    assert swarm.seconds_to_converge(30, step=1) < 30


def test_if_the_room_were_not_shared_by_source_they_would_not_be(monkeypatch):
    monkeypatch.setattr(Room, "admits", lambda room, source, size: room.messages < room._max_messages)
    assert run_under_attack().seconds_to_converge(30, step=1) >= 30
