"""UEP-12, Directed Acyclic Graph of Messages and Message Life-Cycle, on the graph alone."""

from __future__ import annotations

import itertools

import pytest

from dovetail.swarm import dag as dag_module
from dovetail.swarm.acceptance import Entry
from dovetail.swarm.dag import Dag

EPOCH = 60_000


def entry(name: str, at: int, *refers: str, ttl: int = 10, msg_hash: bytes | None = None) -> Entry:
    address = name.encode().ljust(8, b".").ljust(32, b"-")
    return Entry(
        address=address,
        msg_hash=msg_hash or address[:8],
        timestamp_ms=at,
        expires_ms=at + max(1, ttl) * EPOCH,
        ttl_epochs=ttl,
        refers=tuple(other.encode().ljust(8, b".") for other in refers),
        raw=name.encode(),
    )


def tips(dag: Dag) -> list[str]:
    return sorted(tip.raw.decode() for tip in dag.tips)


def chosen(dag: Dag, at: int, ttl: int = 10) -> list[str]:
    return [edge.msg_hash.rstrip(b".").decode() for edge in dag.choose_references(at, at + ttl * EPOCH)]


def test_missing_references_are_reported_and_counted_when_they_come():
    dag = Dag(EPOCH)
    added = dag.add(entry("b", 2, "a", "x"))
    assert added.missing == (b"a.......", b"x.......")
    dag.add(entry("a", 1))
    assert tips(dag) == ["b"]


def test_references_are_fewest_referred_then_newest_and_at_most_four():
    dag = Dag(EPOCH)
    for number, name in enumerate("abcdef"):
        dag.add(entry(name, number))
    assert chosen(dag, 100) == ["f", "e", "d", "c"]
    dag.add(entry("g", 50, "f", "e", "d", "c"))
    assert chosen(dag, 100) == ["g", "b", "a", "f"]


def test_references_leave_nothing_unreferred():
    dag = Dag(EPOCH)
    for number in range(30):
        dag.add(entry(f"m{number}", number))
    for number in range(30, 45):
        names = chosen(dag, number)
        dag.add(entry(f"m{number}", number, *names))
    assert len(tips(dag)) <= 1


def test_references_are_strictly_older_and_not_ttl_0():
    dag = Dag(EPOCH)
    dag.add(entry("same", 100))
    dag.add(entry("newer", 101))
    dag.add(entry("passing", 50, ttl=0))
    assert chosen(dag, 100) == []
    assert chosen(dag, 101) == ["same"]


def test_references_prefer_what_expires_no_later():
    dag = Dag(EPOCH)
    dag.add(entry("old long", 1, ttl=10))
    dag.add(entry("new long", 5, ttl=100))
    assert chosen(dag, 10, ttl=10) == ["old long", "new long"]


def test_what_expires_at_the_same_time_does_not_expire_later():
    dag = Dag(EPOCH)
    dag.add(entry("earlier", 1, ttl=9))
    dag.add(entry("the same", 5, ttl=10))
    assert [edge.msg_hash for edge in dag.choose_references(10, 5 + 10 * EPOCH)] == [b"the same", b"earlier."]


def test_epoch_diff_of_a_reference():
    dag = Dag(EPOCH)
    dag.add(entry("a", 0, ttl=10))
    assert dag.choose_references(1, 1 + 12 * EPOCH)[0].epoch_diff == 2
    assert dag.choose_references(1, 1 + 9 * EPOCH)[0].epoch_diff == -1


def test_an_edge_that_breaks_the_timestamp_rule_is_kept_but_not_counted():
    dag = Dag(EPOCH)
    dag.add(entry("a", 10))
    assert dag.add(entry("b", 10, "a")).missing == ()
    assert tips(dag) == ["a", "b"]


def test_ttl_0_is_known_once_never_listed_and_its_references_do_not_count():
    dag = Dag(EPOCH)
    dag.add(entry("a", 1))
    passing = entry("p", 2, "a", "missing", ttl=0)
    assert dag.add(passing).missing == ()
    assert passing.address in dag
    assert list(dag.between(0, 10)) == [dag.by_hash(b"a.......")[0]]
    assert not dag.by_hash(b"p.......")
    assert tips(dag) == ["a"]
    dag.expire(2 + EPOCH)
    assert passing.address not in dag


def test_expiry_removes_at_the_millisecond_and_nothing_pins():
    dag = Dag(EPOCH)
    dag.add(entry("a", 0, ttl=1))
    dag.add(entry("b", 10, "a", ttl=5))
    assert dag.expire(EPOCH - 1) == []
    assert dag.expire(EPOCH) == [entry("a", 0).address]
    assert tips(dag) == ["b"]
    assert list(dag.between(0, EPOCH)) == [dag.by_hash(b"b.......")[0]]


def test_a_message_that_only_leads_to_a_cycle_is_not_part_of_it():
    dag = Dag(EPOCH)
    dag.add(entry("a", 10, "b"))
    assert len(dag.add(entry("b", 11, "a")).cycle) == 2
    dag.add(entry("newest", 13, "start"))
    assert dag.add(entry("start", 12, "a")).cycle == ()


@pytest.mark.parametrize("at", [4, 5])
def test_expiry_takes_back_only_edges_that_were_counted(at):
    """Neither one against the order of time nor one to a message that never came was."""
    dag = Dag(EPOCH)
    referee = entry("a", 5)
    dag.add(referee)
    dag.add(entry("b", at, "a", "gone", ttl=1))
    dag.add(entry("c", 6, "a"))
    assert dag.expire(EPOCH + at) == [entry("b", at).address]
    assert (referee.referred, tips(dag)) == (1, ["c"])


def test_what_has_expired_leaves_no_trace_in_the_room():
    dag = Dag(EPOCH)
    for ttl in (0, 1, 2):
        dag.add(entry(f"m{ttl}", 0, ttl=ttl))
    assert dag.room.messages == 3
    dag.expire(2 * EPOCH)
    assert (dag.room.messages, dag.room.bytes) == (0, 0)


def test_what_only_an_expired_message_referred_to_becomes_a_tip_again():
    dag = Dag(EPOCH)
    dag.add(entry("a", 0, ttl=9))
    dag.add(entry("b", 1, "a", ttl=1))
    assert tips(dag) == ["b"]
    dag.expire(2 * EPOCH)
    assert tips(dag) == ["a"]


def test_a_collision_of_eight_bytes_is_reported_and_both_are_kept():
    dag = Dag(EPOCH)
    first, second = entry("a", 1, msg_hash=b"12345678"), entry("b", 2, msg_hash=b"12345678")
    dag.add(first)
    assert dag.add(second).collides_with == (first.address,)
    assert list(dag.by_hash(b"12345678")) == [first, second]
    dag.expire(1 + 10 * EPOCH)
    assert list(dag.by_hash(b"12345678")) == [second]


def test_three_that_collide_are_kept_and_go_one_by_one():
    dag = Dag(EPOCH)
    first, second, third = three = [
        entry(name, at, msg_hash=b"12345678", ttl=ttl) for name, at, ttl in (("a", 1, 2), ("b", 2, 1), ("c", 3, 3))
    ]
    for one in three:
        dag.add(one)
    assert list(dag.by_hash(b"12345678")) == three
    assert dag.expire(2 + EPOCH) == [second.address]
    assert list(dag.by_hash(b"12345678")) == [first, third]
    dag.expire(1 + 2 * EPOCH)
    assert list(dag.by_hash(b"12345678")) == [third]
    dag.expire(3 + 3 * EPOCH)
    assert list(dag.by_hash(b"12345678")) == []


@pytest.mark.parametrize("order", [*itertools.permutations("abcd")], ids="".join)
def test_a_cycle_is_reported_once_whatever_the_order_of_arrival(order):
    # honest history behind every message of the cycle must not mislead the walk
    dag = Dag(EPOCH)
    for number in range(1000):
        dag.add(entry(f"h{number}", number, *[f"h{number - back}" for back in (1, 2, 3) if number >= back]))
    circle = {
        "a": entry("a", 2001, "h999", "h998", "d"),
        "b": entry("b", 2002, "h999", "h997", "a"),
        "c": entry("c", 2003, "h996", "h999", "b"),
        "d": entry("d", 2004, "c", "h999", "h998"),
    }
    found = [cycle for cycle in [dag.add(circle[name]).cycle for name in order] if cycle]
    assert len(found) == 1
    names = [chr(address[0]) for address in found[0]]
    assert names[0] == order[-1]
    assert "".join(names) in "dcbadcba"
    assert len(dag) == 1004


def test_messages_with_uncounted_edges_are_bounded_and_go_when_they_expire(monkeypatch):
    monkeypatch.setattr(dag_module, "MAX_UNCOUNTED", 10)
    dag = Dag(EPOCH)
    dag.add(entry("late", 10_000))
    for number in range(100):
        dag.add(entry(f"m{number}", number, "late", ttl=1))
    assert len(dag._uncounted) == 10
    dag.expire(100 + EPOCH)
    assert dag._uncounted == {}


def test_no_cycle_is_seen_where_a_late_message_breaks_the_timestamp_rule_only():
    dag = Dag(EPOCH)
    dag.add(entry("b", 5, "a"))
    assert dag.add(entry("a", 9)).cycle == ()


def test_unresolvable_references_are_remembered_within_bounds(monkeypatch):
    monkeypatch.setattr(dag_module, "MAX_AWAITED", 100)
    dag = Dag(EPOCH)
    for number in range(1000):
        dag.add(entry(f"m{number}", number, f"x{number}", f"y{number}"))
    assert len(dag._awaited) == 100


def test_a_missing_message_is_counted_for_all_that_referred_to_it_within_the_bound(monkeypatch):
    monkeypatch.setattr(dag_module, "MAX_REFERRERS", 3)
    dag = Dag(EPOCH)
    for number in range(5):
        dag.add(entry(f"m{number}", 10 + number, "late"))
    late = entry("late", 1)
    dag.add(late)
    assert late.referred == 3


def test_messages_are_listed_by_time_then_hash_both_ends_included():
    dag = Dag(EPOCH)
    for name, at in (("z", 5), ("a", 5), ("m", 4), ("q", 6), ("old", 3), ("late", 5_000_000)):
        dag.add(entry(name, at, ttl=600))
    assert [one.raw for one in dag.between(4, 6)] == [b"m", b"a", b"z", b"q"]
    assert [one.raw for one in dag.between(0, 1 << 47)] == [b"old", b"m", b"a", b"z", b"q", b"late"]
    assert list(dag.between(7, 4_999_999)) == []
