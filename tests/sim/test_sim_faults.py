"""Fault schedules: drawn from a seed, printed, replayed, and their effect on a world."""

import pytest
from sim_cores import Mailbox, add, note, send

from dovetail.model.errors import UsageError
from dovetail.sim import SECOND_US, CrashPoint, Link, Randomness, World
from dovetail.sim.faults import (
    KINDS,
    MAX_FAULTS,
    MAX_SCHEDULE_BYTES,
    AppendCrash,
    ClockJump,
    Crash,
    DiskFull,
    Partition,
    Pause,
    Weather,
    apply_faults,
    decode_faults,
    draw_faults,
    encode_faults,
    end_of,
)

PLACES = ["a", "b", "c"]
SPAN_US = 10 * SECOND_US


def draw(seed=1, kinds=tuple(KINDS), count=20, places=PLACES):
    return draw_faults(Randomness(seed), places, span_us=SPAN_US, kinds=kinds, count=count)


def test_the_seed_decides():
    assert draw() == draw()
    assert draw(1) != draw(2)


def test_a_kind_more_does_not_shift_the_others():
    assert [fault for fault in draw() if isinstance(fault, Pause)] == draw(kinds=["pause"])


def test_all_that_is_drawn_lies_within_the_span_and_names_places():
    faults = draw(kinds=[kind for kind in KINDS if kind != "outage"], count=200)
    assert len(faults) == 200 * (len(KINDS) - 1)
    for fault in faults:
        if isinstance(fault, Partition):
            assert sorted([*fault.groups[0], *fault.groups[1]]) == PLACES
            assert fault.groups[0]
            assert fault.groups[1]
        elif not isinstance(fault, Weather):
            assert fault.place in PLACES
        if not isinstance(fault, AppendCrash):
            assert 0 <= fault.at_us < SPAN_US
        if isinstance(fault, Partition | Pause | DiskFull | Weather):
            assert 1 <= fault.for_us <= SPAN_US - fault.at_us
    assert {fault.point for fault in faults if isinstance(fault, AppendCrash)} == set(CrashPoint)


def test_an_outage_lasts_hours():
    for fault in draw(kinds=["outage"], count=50):
        assert len(fault.groups[0]) == 1
        assert 3_600_000_000 <= fault.for_us <= 14_400_000_000


def test_one_place_alone_can_be_partitioned_from_nobody():
    [fault] = draw(kinds=["partition"], count=1, places=["a"])
    assert sorted(fault.groups) == [(), ("a",)]


def test_schedule_comes_back_from_its_json():
    faults = draw()
    text = encode_faults(faults)
    assert decode_faults(text) == faults
    assert text.count(b"\n") == len(faults) + 2
    assert decode_faults(encode_faults([])) == []


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"{", "fault schedule: "),
        (b'[{"fault":"earthquake"}]', "earthquake"),
        (b'[{"fault":"pause","at_us":-1,"place":"a","for_us":1}]', ">= 0"),
        (b'[{"fault":"append_crash","append":0,"place":"a","point":"mid_send","down_us":1}]', ">= 1"),
        (b'[{"fault":"weather","at_us":1,"for_us":1,"link":{"loss":2}}]', "loss is 2"),
        (b" " * (MAX_SCHEDULE_BYTES + 1), "at most"),
        (b"[" + b",".join([b'{"fault":"clock","at_us":1,"place":"a","by_us":1}'] * (MAX_FAULTS + 1)) + b"]", "10001"),
    ],
)
def test_schedule_that_cannot_be_used_says_why(data, says):
    with pytest.raises(UsageError, match=says):
        decode_faults(data)


def test_unknown_kinds_and_too_many_are_refused():
    with pytest.raises(UsageError, match="'flood'"):
        draw(kinds=["flood"])
    with pytest.raises(UsageError, match="at most 10000"):
        draw(count=MAX_FAULTS)


def test_end_is_when_the_last_fault_is_over():
    faults = [
        Crash(at_us=5, place="a", down_us=10),
        Pause(at_us=1, place="a", for_us=20),
        ClockJump(at_us=19, place="a", by_us=100),
        AppendCrash(place="a", append=1, point=CrashPoint.MID_SEND, down_us=1000),
    ]
    assert end_of([]) == 0
    assert end_of(faults) == 21
    assert end_of([*faults, Weather(at_us=1, link=Link(), for_us=30)]) == 31


def world_of_places(core_factory=Mailbox):
    world = World(1, link=Link(latency_us=(1000, 1000)))
    for name in PLACES:
        add(world, name, core_factory)
    return world


def test_faults_strike_at_their_time_and_pass():
    world = world_of_places()
    apply_faults(
        world,
        [
            Crash(at_us=10_000, place="a", down_us=5_000),
            Partition(at_us=20_000, groups=(("a",), ("b",)), for_us=5_000),
            ClockJump(at_us=30_000, place="b", by_us=77),
            Weather(at_us=40_000, link=Link(loss=1.0), for_us=5_000),
        ],
    )

    def state():
        send(world, "c", ("b", b"?"))
        world.run(1000)
        got = len(world.processes["b"].core.received)
        return world.processes["a"].is_up, world.network.is_cut("a", "b"), world.processes["b"].clock.skew_us, got

    seen = []
    for _ in range(10):
        world.run(4000 - 1000)
        seen.append(state())
        world.run(1000)
    assert [row[0] for row in seen] == [True, True, False, True, True, True, True, True, True, True]
    assert [row[1] for row in seen] == [False, False, False, False, True, False, False, False, False, False]
    assert [row[2] for row in seen] == [0, 0, 0, 0, 0, 0, 77, 77, 77, 77]
    # during the partition c reaches no process named in it; in the weather nothing arrives
    assert [row[3] for row in seen] == [1, 2, 3, 4, 4, 5, 6, 7, 7, 8]


def test_pause_full_disk_and_crash_on_append_strike():
    world = world_of_places(lambda: Mailbox(is_journaling=True))
    apply_faults(
        world,
        [
            Pause(at_us=0, place="a", for_us=10_000),
            DiskFull(at_us=0, place="b", for_us=10_000),
            AppendCrash(place="c", append=2, point=CrashPoint.BEFORE_COMMIT, down_us=1000),
        ],
    )
    world.run(1)
    for name in PLACES:
        world.command(name, lambda core, now: core.tell(note("x", now)))
    world.command("c", lambda core, now: core.tell(note("y", now)), after_us=1)
    world.run(9_000)
    assert [world.processes[name].journal.size for name in PLACES] == [0, 0, 1]
    world.run(SECOND_US)
    assert [world.processes[name].journal.size for name in PLACES] == [1, 1, 1]
    assert [world.processes[name].counts.crashes for name in PLACES] == [0, 0, 1]


def test_fault_of_a_stranger_is_refused():
    with pytest.raises(UsageError, match="Pause names 'x'"):
        apply_faults(world_of_places(), [Pause(at_us=0, place="x", for_us=1)])
    with pytest.raises(UsageError, match="Partition names 'x'"):
        apply_faults(world_of_places(), [Partition(at_us=0, groups=(("x",),), for_us=1)])
