"""Named deadlines against a plain dictionary."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dovetail.won.timers import Timers

steps = st.lists(st.tuples(st.sampled_from("abcdefgh"), st.none() | st.integers(0, 20)), max_size=300)


@given(steps, st.integers(0, 20))
def test_next_and_due_deadlines_are_those_of_a_dictionary(script, now):
    timers, model = Timers(), {}
    for name, due in script:
        timers.set(name, due)
        model.pop(name, None)
        if due is not None:
            model[name] = due
        assert timers.next() == min(model.values(), default=None)
        assert len(timers) == len(model)
    due = timers.pop_due(now)
    assert sorted(due) == sorted(name for name, when in model.items() if when <= now)
    assert [model[name] for name in due] == sorted(model[name] for name in due)
    assert timers.next() == min((when for when in model.values() if when > now), default=None)


def test_moving_a_deadline_a_thousand_times_leaves_no_trail():
    timers = Timers()
    timers.set("other", 10_000_000)
    for moment in range(100_000):
        timers.set("moved", moment)
    assert len(timers._heap) < 200
    assert timers.next() == 99_999
