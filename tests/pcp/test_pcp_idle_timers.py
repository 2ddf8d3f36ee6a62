"""Two time limits: to associate, and to send anything at all."""

from dovetail.pcp.idle_timers import Timeouts
from dovetail.pcp.session import Mount, Session


def session(number: int, version: int, now: int) -> Session:
    return Session(str(number), None, Mount(version, None), now)


def test_who_has_not_associated_in_time_is_told_once():
    timeouts = Timeouts(association_us=30, idle_us=1_000)
    late, associated, closing, modern = (session(number, 1 + number // 3, 0) for number in range(4))
    for one in (late, associated, closing, modern):
        timeouts.watch(one, 0)
    associated.associate("pcp://a/agent")
    closing.is_closing = True
    assert timeouts.next_us() == 30
    assert timeouts.take_unassociated(29) == []
    assert timeouts.take_unassociated(30) == [late]
    assert timeouts.take_unassociated(31) == []
    assert timeouts.next_us() == 100  # the next sweep


def test_who_was_silent_is_found_by_the_next_sweep():
    timeouts = Timeouts(association_us=5_000, idle_us=1_000)
    silent, alive = session(1, 2, 0), session(2, 2, 0)
    for one in (silent, alive):
        timeouts.watch(one, 0)
    alive.last_seen_us = 500
    assert timeouts.take_idle([silent, alive], 99) == []
    assert timeouts.take_idle([silent, alive], 1_000) == [silent]
    assert timeouts.next_us() == 1_100


def test_without_sessions_nothing_is_due():
    timeouts = Timeouts(association_us=5_000, idle_us=1_000)
    assert timeouts.next_us() is None
    timeouts.watch(session(1, 2, 0), 0)
    assert timeouts.take_idle([], 100) == []
    assert timeouts.next_us() is None
