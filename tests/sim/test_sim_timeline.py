"""The order of events."""

from dovetail.sim.timeline import Timeline


def test_events_happen_by_time_and_then_in_the_order_of_planning():
    timeline = Timeline(1000)
    happened = []

    def act(name, _):
        happened.append((timeline.now, name))

    for at_us, name in ((1030, "d"), (1010, "a"), (1020, "b"), (1020, "c"), (1030, "e")):
        timeline.push(at_us, act, name, None)
    assert timeline.run(1030)
    assert happened == [(1010, "a"), (1020, "b"), (1020, "c"), (1030, "d"), (1030, "e")]
    assert timeline.happened == 5


def test_what_is_planned_for_the_past_happens_now():
    timeline = Timeline(1000)
    happened = []
    timeline.push(1, lambda a, b: happened.append(timeline.now), None, None)
    timeline.run(1000)
    assert happened == [1000]


def test_run_stops_before_what_comes_later_and_goes_on_from_there():
    timeline = Timeline(0)
    happened = []
    timeline.push(10, lambda a, b: happened.append(timeline.now), None, None)
    assert not timeline.run(9)
    assert (timeline.now, timeline.last_us, happened) == (9, 0, [])
    assert timeline.run(20)
    assert (timeline.now, timeline.last_us, happened) == (20, 10, [10])


def test_arguments_are_never_compared():
    timeline = Timeline(0)
    timeline.push(5, lambda a, b: None, object(), {})
    timeline.push(5, lambda a, b: None, object(), {})
    assert timeline.run(5)
