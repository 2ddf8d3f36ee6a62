"""Wants: each missing hash once, bounded, with pauses and a limit."""

from __future__ import annotations

import tracemalloc

from dovetail.swarm.contacts import MAX_CONTACTS
from dovetail.swarm.pull import (
    CROWDED_US,
    FIRST_DELAY_US,
    MAX_ATTEMPTS,
    MAX_RETRY_US,
    QUICK_ATTEMPTS,
    RETRY_US,
    SOURCES,
    Wants,
)

NOW = 10**15
MOST = 4_096


def collect(wants: Wants, now: int, other: str | None = "other"):
    asks, given_up = wants.collect(now, lambda want: other, lambda: 0.0)
    return {peer: [want.msg_hash for want in found] for peer, found in asks.items()}, [w.msg_hash for w in given_up]


def test_a_message_that_is_only_late_is_not_pulled():
    wants = Wants(MOST)
    wants.add(b"a", "peer", NOW)
    assert collect(wants, NOW + FIRST_DELAY_US - 1) == ({}, [])
    assert wants.resolve(b"a").attempts == 0
    assert wants.next_due_us is None


def test_each_missing_hash_is_wanted_once_and_the_source_is_asked_first():
    wants = Wants(MOST)
    assert wants.add(b"a", "first", NOW, delay_us=0)
    assert not wants.add(b"a", "second", NOW, delay_us=0)
    assert collect(wants, NOW) == ({"first": [b"a"]}, [])
    assert collect(wants, NOW) == ({}, [])
    assert collect(wants, NOW + RETRY_US) == ({"second": [b"a"]}, [])
    assert collect(wants, NOW + 2 * RETRY_US) == ({"other": [b"a"]}, [])


def test_a_hash_that_never_comes_is_asked_for_so_often_and_given_up():
    wants = Wants(MOST)
    wants.add(b"a", "liar", NOW, delay_us=0)
    asked, now = 0, NOW
    while len(wants):
        now = wants.next_due_us
        asks, _ = collect(wants, now)
        asked += len(asks)
    assert asked == MAX_ATTEMPTS
    assert now - NOW < MAX_ATTEMPTS * MAX_RETRY_US
    assert not wants.add(b"a", "liar", now)
    assert wants.add(b"a", "somebody else", now)


def test_what_has_expired_is_not_asked_for():
    wants = Wants(MOST)
    wants.add(b"a", "peer", NOW, deadline_ms=(NOW + FIRST_DELAY_US) // 1000)
    assert collect(wants, NOW + FIRST_DELAY_US) == ({}, [b"a"])


def test_a_peer_that_invents_hashes_crowds_out_only_itself():
    wants = Wants(80)
    for number in range(1000):
        wants.add(number.to_bytes(8), "liar", NOW)
    assert len(wants) == 20
    assert wants.crowded_out == 980
    assert wants.add(b"real", "honest", NOW)
    for source in range(10):
        for number in range(15):
            wants.add(bytes([source, number]), f"peer {source}", NOW)
    assert len(wants) == 80


def test_what_was_asked_for_often_in_vain_gives_way_to_what_the_same_source_names_next():
    wants = Wants(8 * SOURCES)
    for number in range(8):
        wants.add(b"invented %d" % number, "relay", NOW, delay_us=0)
    now = NOW
    for _ in range(QUICK_ATTEMPTS - 1):
        collect(wants, now)
        now += RETRY_US
    assert not wants.add(b"real", "relay", now)
    collect(wants, now)
    assert wants.add(b"real", "relay", now)
    assert (b"invented 0" in wants, b"invented 1" in wants, len(wants)) == (False, True, 8)


def test_one_datagram_per_peer_at_a_time():
    wants = Wants(MOST)
    for number in range(400):
        wants.add(number.to_bytes(8), "peer", NOW, delay_us=0)
    sizes, now = [], NOW
    for _ in range(3):
        asks, _ = collect(wants, now)
        sizes.append(len(asks["peer"]))
        now += CROWDED_US
    assert sizes == [170, 170, 60]


def test_with_nobody_to_ask_the_want_waits_and_ends():
    wants = Wants(MOST)
    wants.add(b"a", "gone", NOW, delay_us=0)
    collect(wants, NOW)
    for _ in range(MAX_ATTEMPTS + 1):
        if wants.next_due_us is not None:
            collect(wants, wants.next_due_us, None)
    assert len(wants) == 0


def test_a_new_source_is_asked_at_once_when_the_pause_has_grown():
    wants = Wants(MOST)
    wants.add(b"a", "first", NOW, delay_us=0)
    now = NOW
    for _ in range(MAX_ATTEMPTS - 1):
        collect(wants, now)
        now = wants.next_due_us
    collect(wants, now - 1)
    wants.add(b"a", "fresh", now - RETRY_US * 2)
    assert wants.next_due_us == now - RETRY_US * 2


def test_when_all_room_is_taken_the_source_with_the_most_gives_way():
    wants = Wants(MOST)
    liars = [f"liar {number}" for number in range(SOURCES)]
    for number in range(MOST):
        assert wants.add(number.to_bytes(8), liars[number % len(liars)], NOW)
    assert not wants.add(b"one more", liars[0], NOW)
    honest = [f"honest {number}".encode() for number in range(100)]
    for msg_hash in honest:
        assert wants.add(msg_hash, "honest", NOW)
    assert all(msg_hash in wants for msg_hash in honest)
    assert len(wants) == MOST
    assert wants.has_room("honest")
    assert not wants.has_room(liars[0])
    for msg_hash in honest:
        assert wants.resolve(msg_hash) is not None
    asks, _ = collect(wants, NOW + FIRST_DELAY_US)
    assert set(asks) == set(liars)


def test_many_strangers_are_one_source():
    wants = Wants(80)
    for number in range(1_000):
        wants.add(number.to_bytes(8), f"spoofed {number}", NOW, share="strangers")
    assert len(wants) == 20
    assert all(wants.add(bytes([number]), "honest", NOW) for number in range(20))
    asks, _ = collect(wants, NOW + FIRST_DELAY_US)
    assert len(asks["honest"]) == 20
    assert len(asks) == 21, "each is still asked at its own endpoint"


def test_every_contact_but_one_may_invent_hashes_and_the_other_still_has_its_part():
    wants = Wants(MOST)
    for number in range(20_000):
        wants.add(number.to_bytes(8), f"liar {number % (MAX_CONTACTS - 1)}", NOW)
    parents = [bytes([number]) for number in range(MOST // MAX_CONTACTS)]
    assert all(wants.add(parent, "honest", NOW) for parent in parents)
    for number in range(20_000, 40_000):
        wants.add(number.to_bytes(8), f"liar {number % (MAX_CONTACTS - 1)}", NOW)
    assert all(parent in wants for parent in parents)
    assert len(wants) == MOST


def test_a_want_takes_at_most_four_kib():
    """In the worst case all peers that may be asked for it are remembered, as tried ones and as untried ones."""
    count = 512
    endpoints = [f"198.51.100.{number}:40000" for number in range(2 * MAX_ATTEMPTS)]
    tracemalloc.start()
    wants = Wants(count)
    for number in range(count):
        for endpoint in endpoints[:MAX_ATTEMPTS]:
            wants.add(number.to_bytes(8), endpoint, NOW, share=f"source {number % SOURCES}", delay_us=0)
    now = NOW
    for attempt in range(MAX_ATTEMPTS):
        while (due := wants.next_due_us) is not None and due <= now:
            collect(wants, now)
        now += RETRY_US // 2
        for number in range(count):
            wants.add(number.to_bytes(8), endpoints[-1 - attempt], now)
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(wants) == count
    assert size < 4_096 * count
