"""Late messages are listed to peers that pull a later time, for a while, in bounded numbers."""

from __future__ import annotations

import random

from dovetail.swarm.dag import Dag
from dovetail.swarm.gossip import OVERLAP_MS
from dovetail.swarm.late_messages import KEPT_US, LEAD_US, MAX_KEPT, MAX_LISTED, LateMessages
from swarm.test_swarm_dag import EPOCH, entry

NOW = 1_000_000_000
MAX_LEAD_MS = 60_000


def kept(*names: str, at_ms: int = 900_000) -> LateMessages:
    late = LateMessages(random.Random(1), MAX_LEAD_MS)
    for number, name in enumerate(names):
        late.note(entry(name, at_ms + number), NOW)
    return late


def named(late: LateMessages, start_ms: int, *, room: int = 170, now: int = NOW) -> list[str]:
    return [one.raw.decode() for one in late.before(start_ms, room, now)]


def test_what_came_late_is_named_where_the_range_begins_after_it():
    late = kept("b", "a")
    assert named(late, 900_002) == ["b", "a"]
    assert named(late, 900_001) == ["b"]
    assert named(late, 900_000) == []


def test_it_is_named_for_a_while():
    late = kept("a")
    assert named(late, 950_000, now=NOW + KEPT_US - 1) == ["a"]
    assert named(late, 950_000, now=NOW + KEPT_US) == []
    assert len(late) == 0


def test_nothing_expired_and_nothing_of_ttl_0_is_named():
    late, dag = kept(), Dag(EPOCH)
    for one in (entry("short", 900_000, ttl=1), entry("push only", 900_000, ttl=0)):
        dag.add(one)
        late.note(one, NOW)
    dag.expire(900_000 + EPOCH - 1)
    assert named(late, 950_000) == ["short"]
    dag.expire(900_000 + EPOCH)
    assert named(late, 950_000) == []


def test_of_many_a_bounded_number_is_remembered_and_named_and_all_have_their_turn():
    late = kept(*[f"m{number:04}" for number in range(MAX_KEPT + 100)])
    assert len(late) == MAX_KEPT
    lists = [named(late, 950_000) for _ in range(400)]
    assert {len(each) for each in lists} == {MAX_LISTED}
    assert all(each == sorted(each) for each in lists)
    assert len({name for each in lists for name in each}) == MAX_KEPT
    assert len(named(late, 950_000, room=3)) == 3
    assert named(late, 950_000, room=0) == named(late, 950_000, room=-30) == []


def test_late_is_what_is_late_by_the_clocks_of_those_who_ask():
    late = kept()
    assert late.from_age_ms == OVERLAP_MS
    late.note_asker(NOW // 1000 - 5_000, NOW)
    assert late.from_age_ms == OVERLAP_MS
    late.note_asker(NOW // 1000 + 20_000, NOW)
    late.note_asker(NOW // 1000 + 7_000, NOW)
    late.note_asker(NOW // 1000 + MAX_LEAD_MS + 1, NOW)
    assert late.from_age_ms == OVERLAP_MS - 20_000
    late.note_asker(NOW // 1000, NOW + LEAD_US)
    assert late.from_age_ms == OVERLAP_MS


def test_the_same_lead_again_is_remembered_from_then_on_and_one_of_a_millisecond_counts():
    late = kept()
    late.note_asker(NOW // 1000 + 1, NOW)
    assert late.from_age_ms == OVERLAP_MS - 1
    late.note_asker(NOW // 1000 + 1_000 + 1, NOW + 1_000_000)
    late.note_asker((NOW + LEAD_US) // 1000, NOW + LEAD_US)
    assert late.from_age_ms == OVERLAP_MS - 1


def test_a_clock_that_is_set_back_forgets_nothing():
    late = kept("a")
    back = NOW - 50_000_000
    late.handle_clock_step(back)
    assert named(late, 950_000, now=back + KEPT_US - 1) == ["a"]
    assert named(late, 950_000, now=back + KEPT_US) == []
