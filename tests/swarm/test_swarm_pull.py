"""Wants: each missing hash once, bounded, with pauses and an end."""

from __future__ import annotations

from dovetail.swarm import pull
from dovetail.swarm.pull import FIRST_DELAY_US, MAX_ATTEMPTS, MAX_RETRY_US, RETRY_US, Wants

NOW = 10**15


def collect(wants: Wants, now: int, other: str | None = "other"):
    asks, given_up = wants.collect(now, lambda want: other, lambda: 0.0)
    return {peer: [want.msg_hash for want in found] for peer, found in asks.items()}, [w.msg_hash for w in given_up]


def test_a_message_that_is_only_late_is_not_pulled():
    wants = Wants()
    wants.add(b"a", "peer", NOW)
    assert collect(wants, NOW + FIRST_DELAY_US - 1) == ({}, [])
    assert wants.resolve(b"a").attempts == 0
    assert wants.next_due_us is None


def test_each_missing_hash_is_wanted_once_and_the_source_is_asked_first():
    wants = Wants()
    assert wants.add(b"a", "first", NOW, delay_us=0)
    assert not wants.add(b"a", "second", NOW, delay_us=0)
    assert collect(wants, NOW) == ({"first": [b"a"]}, [])
    assert collect(wants, NOW) == ({}, [])
    assert collect(wants, NOW + RETRY_US) == ({"second": [b"a"]}, [])
    assert collect(wants, NOW + 2 * RETRY_US) == ({"other": [b"a"]}, [])


def test_a_hash_that_never_comes_is_asked_for_so_often_and_given_up():
    wants = Wants()
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
    wants = Wants()
    wants.add(b"a", "peer", NOW, deadline_ms=(NOW + FIRST_DELAY_US) // 1000)
    assert collect(wants, NOW + FIRST_DELAY_US) == ({}, [b"a"])


def test_a_peer_that_invents_hashes_crowds_out_only_itself(monkeypatch):
    monkeypatch.setattr(pull, "MAX_WANTED", 50)
    monkeypatch.setattr(pull, "MAX_WANTED_PER_SOURCE", 20)
    wants = Wants()
    for number in range(1000):
        wants.add(number.to_bytes(8), "liar", NOW)
    assert len(wants) == 20
    assert wants.crowded_out == 980
    assert wants.add(b"real", "honest", NOW)
    for source in range(10):
        for number in range(10):
            wants.add(bytes([source, number]), f"peer {source}", NOW)
    assert len(wants) == 50


def test_one_datagram_per_peer_at_a_time():
    wants = Wants()
    for number in range(400):
        wants.add(number.to_bytes(8), "peer", NOW, delay_us=0)
    sizes, now = [], NOW
    for _ in range(3):
        asks, _ = collect(wants, now)
        sizes.append(len(asks["peer"]))
        now += pull.CROWDED_US
    assert sizes == [170, 170, 60]


def test_with_nobody_to_ask_the_want_waits_and_ends():
    wants = Wants()
    wants.add(b"a", "gone", NOW, delay_us=0)
    collect(wants, NOW)
    for _ in range(MAX_ATTEMPTS + 1):
        if wants.next_due_us is not None:
            collect(wants, wants.next_due_us, None)
    assert len(wants) == 0


def test_a_new_source_is_asked_at_once_when_the_pause_has_grown():
    wants = Wants()
    wants.add(b"a", "first", NOW, delay_us=0)
    now = NOW
    for _ in range(MAX_ATTEMPTS - 1):
        collect(wants, now)
        now = wants.next_due_us
    collect(wants, now - 1)
    wants.add(b"a", "fresh", now - RETRY_US * 2)
    assert wants.next_due_us == now - RETRY_US * 2
