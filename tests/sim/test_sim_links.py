"""Streams: order, opening, closing, and how they break."""

import pytest
from sim_cores import Frame, Line, Mailbox, add, send

from dovetail.model.errors import LocalProtocolError
from dovetail.model.wire import CloseLink, OpenLink
from dovetail.sim import SECOND_US, Link, World
from dovetail.sim.network import RETRANSMIT_US

TIMEOUT_US = 30 * SECOND_US


def world_with(*names, link=None, seed=1):
    world = World(seed, link=link or Link(latency_us=(1000, 5000)))
    for name in names:
        add(world, name, Line)
    return world


def log_of(world, name):
    return world.processes[name].core.log


def open_world(**options):
    """Two processes with one open stream, `s` at a and `a~1` at b."""
    world = world_with("a", "b", **options)
    send(world, "a", OpenLink("s", "b", "/path"))
    world.run(10 * SECOND_US)
    assert log_of(world, "a") == [("opened", "s")]
    assert log_of(world, "b") == [("accepted", "a~1", "/path")]
    return world


def test_frames_go_both_ways_in_order_whatever_the_latency():
    world = open_world(link=Link(latency_us=(0, 400_000), loss=0.2, reorder=0.5, duplicate=0.5))
    there = [bytes([number]) for number in range(100)]
    back = [bytes([number, number]) for number in range(100)]
    for number in range(100):
        send(world, "a", Frame("s", there[number]), after_us=number)
        send(world, "b", Frame("a~1", back[number]), after_us=number)
    world.run(60 * SECOND_US)
    assert world.processes["b"].core.frames() == there
    assert world.processes["a"].core.frames() == back
    assert world.links.counts.frames_lost == 0


def test_frames_may_follow_the_opening_at_once():
    world = world_with("a", "b")
    send(world, "a", OpenLink("s", "b"), Frame("s", b"1"), Frame("s", b"2"), CloseLink("s", 4001))
    world.run(SECOND_US)
    assert log_of(world, "b") == [
        ("accepted", "a~1", ""),
        ("frame", "a~1", b"1"),
        ("frame", "a~1", b"2"),
        ("closed", "a~1", 4001),
    ]
    assert log_of(world, "a") == []


def test_frame_after_close_is_lost_at_either_end():
    world = open_world()
    send(world, "b", CloseLink("a~1", 4000))
    send(world, "a", Frame("s", b"crosses the close"))
    world.run(SECOND_US)
    send(world, "a", Frame("s", b"after the close"))
    world.run(SECOND_US)
    assert log_of(world, "a")[1:] == [("closed", "s", 4000)]
    assert log_of(world, "b")[1:] == []
    assert world.links.counts.frames_lost == 2


def test_abort_loses_what_is_under_way():
    world = open_world()
    send(world, "a", Frame("s", b"x"), CloseLink("s", abort=True))
    world.run(SECOND_US)
    assert log_of(world, "b")[1:] == [("closed", "a~1", 1006)]
    assert log_of(world, "a")[1:] == []


def test_late_news_of_a_broken_stream_does_not_touch_a_new_one_of_the_same_name():
    world = open_world(link=Link(latency_us=(1000, 1000)))
    send(world, "b", CloseLink("a~1", abort=True))
    world.run(500)
    world.crash("a", restart_after_us=1)
    world.run(1)
    send(world, "a", OpenLink("s", "b"))
    world.run(SECOND_US)
    assert log_of(world, "a") == [("opened", "s")]


def test_loss_becomes_waiting_twice_as_long_each_time():
    world = open_world(link=Link(latency_us=(0, 0)))
    began = world.now
    world.network.set_link("a", "b", Link(latency_us=(7, 7), loss=1.0))
    send(world, "a", Frame("s", b"x"))
    world.run(60 * SECOND_US)
    assert world.processes["b"].core.times_us[-1] == began + 7 + RETRANSMIT_US * (1 + 2 + 4 + 8 + 16 + 32)


def test_abort_before_the_opening_arrived_is_never_seen():
    world = world_with("a", "b")
    send(world, "a", OpenLink("s", "b"), CloseLink("s", abort=True))
    world.run(SECOND_US)
    assert log_of(world, "a") == log_of(world, "b") == []


@pytest.mark.parametrize("destination", ["nobody", "down", "deaf"])
def test_stream_is_refused_by_nobody_by_a_dead_place_and_by_one_without_streams(destination):
    world = world_with("a", "down")
    add(world, "deaf", Mailbox)
    world.crash("down")
    send(world, "a", OpenLink("s", destination))
    world.run(SECOND_US)
    assert log_of(world, "a") == [("closed", "s", 1006)]
    assert world.links.counts.refused == 1


def test_name_in_use_is_an_error_of_ours_and_free_again_after_the_end():
    world = open_world()
    send(world, "b", CloseLink("a~1"))
    world.run(SECOND_US)
    send(world, "a", OpenLink("s", "b"))
    world.run(SECOND_US)
    assert log_of(world, "b")[-1] == ("accepted", "a~2", "")
    send(world, "a", OpenLink("s", "b"))
    with pytest.raises(LocalProtocolError, match="'s'"):
        world.run(SECOND_US)


def test_short_partition_only_delays():
    world = open_world()
    cut = world.partition([["a"], ["b"]])
    send(world, "a", Frame("s", b"1"), Frame("s", b"2"))
    send(world, "b", Frame("a~1", b"3"))
    world.run(TIMEOUT_US - SECOND_US)
    assert world.processes["b"].core.frames() == []
    world.heal(cut)
    send(world, "a", Frame("s", b"4"))
    world.run(2 * TIMEOUT_US)
    assert world.processes["b"].core.frames() == [b"1", b"2", b"4"]
    assert world.processes["a"].core.frames() == [b"3"]
    assert world.links.counts.broken == 0


def test_long_partition_breaks_both_ends_and_loses_what_was_held():
    world = open_world()
    world.partition([["a"], ["b"]])
    began = world.now
    send(world, "a", Frame("s", b"lost"))
    world.run(TIMEOUT_US + SECOND_US)
    world.heal()
    world.run(SECOND_US)
    assert log_of(world, "a")[1:] == [("closed", "s", 1006)]
    assert log_of(world, "b")[1:] == [("closed", "a~1", 1006)]
    assert world.processes["a"].core.times_us[-1] == began + TIMEOUT_US
    assert (world.links.counts.broken, world.links.counts.frames_lost) == (2, 1)


def test_two_short_partitions_are_not_one_long_one():
    world = open_world()
    for _ in range(3):
        cut = world.partition([["a"]])
        world.run(TIMEOUT_US * 2 // 3)
        world.heal(cut)
    world.run(2 * TIMEOUT_US)
    assert world.links.counts.broken == 0


def test_opening_across_a_partition_waits_and_gives_up():
    world = world_with("a", "b")
    cut = world.partition([["a"]])
    send(world, "a", OpenLink("heals", "b"), Frame("heals", b"x"))
    world.run(SECOND_US)
    world.heal(cut)
    world.run(SECOND_US)
    assert world.processes["b"].core.frames() == [b"x"]
    world.partition([["a"]])
    send(world, "a", OpenLink("never", "b"))
    world.run(TIMEOUT_US + SECOND_US)
    assert log_of(world, "a")[-1] == ("closed", "never", 1006)
    assert not any(entry[1] == "a~2" for entry in log_of(world, "b"))
    assert world.links.counts.broken == 3, "both ends of the first, the opener of the second"


def test_crash_tells_the_other_end_at_once_and_loses_what_is_under_way():
    world = open_world()
    send(world, "a", Frame("s", b"under way"), after_us=10)
    world.schedule(11, lambda: world.crash("a", restart_after_us=1))
    crash_at = world.now + 11
    world.run(SECOND_US)
    assert log_of(world, "b")[1:] == [("closed", "a~1", 1006)]
    assert world.processes["b"].core.times_us[-1] == crash_at
    assert log_of(world, "a") == [], "a new life knows nothing of the old stream"
    send(world, "a", OpenLink("s", "b"))
    world.run(SECOND_US)
    assert log_of(world, "b")[-1] == ("accepted", "a~2", "")


def test_crash_of_the_acceptor_while_the_stream_opens():
    world = world_with("a", "b", link=Link(latency_us=(1000, 1000)))
    send(world, "a", OpenLink("s", "b"))
    world.schedule(1500, lambda: world.crash("b"))
    world.run(SECOND_US)
    assert log_of(world, "a") == [("closed", "s", 1006)]


def test_crash_of_the_opener_while_the_stream_opens_is_never_seen():
    world = world_with("a", "b", link=Link(latency_us=(1000, 1000)))
    send(world, "a", OpenLink("s", "b"), Frame("s", b"x"))
    world.schedule(500, lambda: world.crash("a"))
    world.run(SECOND_US)
    assert log_of(world, "b") == []


@pytest.mark.parametrize("heals", [True, False])
def test_crash_behind_a_partition_is_heard_of_when_it_heals_or_times_out(heals):
    world = open_world()
    began = world.now
    world.partition([["a"]])
    send(world, "a", Frame("s", b"held, then lost"))
    world.schedule(SECOND_US, lambda: world.crash("a"))
    if heals:
        world.schedule(2 * SECOND_US, world.heal)
    world.run(2 * TIMEOUT_US)
    assert log_of(world, "b")[1:] == [("closed", "a~1", 1006)]
    heard_after = world.processes["b"].core.times_us[-1] - began
    assert 2 * SECOND_US < heard_after < 3 * SECOND_US if heals else heard_after == TIMEOUT_US
    assert world.links.counts.frames_lost == 1


def test_close_across_a_partition_arrives_when_it_heals():
    world = open_world()
    cut = world.partition([["a"]])
    send(world, "a", Frame("s", b"last"), CloseLink("s", 4003))
    world.run(SECOND_US)
    world.heal(cut)
    world.run(SECOND_US)
    assert log_of(world, "b")[1:] == [("frame", "a~1", b"last"), ("closed", "a~1", 4003)]


def test_paused_place_gets_frames_and_the_end_in_order_when_it_goes_on():
    world = open_world()
    world.pause("b", 5 * SECOND_US)
    send(world, "a", Frame("s", b"1"), Frame("s", b"2"))
    world.schedule(SECOND_US, lambda: world.crash("a"))
    world.run(SECOND_US * 2)
    assert log_of(world, "b")[1:] == []
    world.run(SECOND_US * 5)
    assert log_of(world, "b")[1:] == [("frame", "a~1", b"1"), ("frame", "a~1", b"2"), ("closed", "a~1", 1006)]


def test_streams_leave_nothing_behind():
    world = world_with("a", "b")
    for number in range(50):
        send(world, "a", OpenLink(f"s{number}", "b"), Frame(f"s{number}", b"x"), after_us=number * 100)
        send(world, "a", CloseLink(f"s{number}", abort=number % 2 == 0), after_us=number * 100 + SECOND_US)
    world.run(5 * SECOND_US)
    assert world.processes["a"].ends == world.processes["b"].ends == {}
    assert world.links.live_count == 0
