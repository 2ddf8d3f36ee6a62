"""Own messages are pushed again until another peer is known to have them."""

from __future__ import annotations

import itertools

from dovetail.swarm.own_messages import MAX_PUSH_AGAIN_US, PUSH_AGAIN_US, OwnMessages

START = 1_700_000_000_000_000


def test_own_messages_are_pushed_again_with_growing_pauses_until_confirmed():
    own = OwnMessages()
    own.add(b"a", START)
    times = []
    while len(times) < 9:
        now = own.next_due_us
        times.append(now - START)
        assert own.collect(now) == [b"a"]
    pauses = [later - at for at, later in itertools.pairwise(times)]
    assert times[0] == PUSH_AGAIN_US
    assert pauses == [min(MAX_PUSH_AGAIN_US, PUSH_AGAIN_US << number) for number in range(1, 9)]
    assert pauses[-1] == MAX_PUSH_AGAIN_US
    assert own.confirm(b"a")
    assert not own.confirm(b"a")
    assert own.next_due_us is None


def test_a_clock_that_is_set_back_pushes_soon_by_the_new_clock():
    own = OwnMessages()
    own.add(b"a", START)
    back = START - 3_600_000_000
    own.handle_clock_step(back)
    assert own.next_due_us == back + PUSH_AGAIN_US
