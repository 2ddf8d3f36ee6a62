"""Properties of simulated worlds over seeds and fault schedules."""

from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.model.address import address_of
from dovetail.model.hop import Observation, Stage
from dovetail.model.wire import CloseLink, OpenLink, SendFrames
from dovetail.sim import SECOND_US, CrashPoint, Link, MemoryDisks, MemoryJournal, ProcessOptions, World
from dovetail.sim.clock import Clock
from dovetail.sim.disk import JournalFolder
from dovetail.sim.faults import (
    AppendCrash,
    ClockJump,
    Crash,
    DiskFailure,
    DiskFull,
    DiskSlow,
    Partition,
    Pause,
    Weather,
    decode_faults,
    encode_faults,
)
from dovetail.sim.invariants import check_journals
from dovetail.sim.scenario import Setting, run_scenario
from sim.pingpong import PINGPONG

PLACES = ("place-0000", "place-0001", "place-0002")
SPAN_US = SECOND_US

moments = st.integers(0, SPAN_US)
whiles = st.integers(1, SPAN_US)
names = st.sampled_from(PLACES)
chances = st.floats(0, 0.6)
links = st.builds(
    Link,
    latency_us=st.tuples(st.integers(0, 1000), st.integers(1000, 300_000)),
    loss=chances,
    duplicate=chances,
    reorder=chances,
)
faults = st.one_of(
    st.builds(Crash, at_us=moments, place=names, down_us=whiles),
    st.builds(
        AppendCrash, place=names, append=st.integers(1, 25), point=st.sampled_from(tuple(CrashPoint)), down_us=whiles
    ),
    st.builds(Partition, at_us=moments, groups=st.sampled_from([((name,),) for name in PLACES]), for_us=whiles),
    st.builds(Pause, at_us=moments, place=names, for_us=whiles),
    st.builds(ClockJump, at_us=moments, place=names, by_us=st.integers(-20 * SECOND_US, 20 * SECOND_US)),
    st.builds(DiskFull, at_us=moments, place=names, for_us=whiles),
    st.builds(DiskSlow, at_us=moments, place=names, commit_us=whiles, for_us=whiles),
    st.builds(DiskFailure, at_us=moments, place=names),
    st.builds(Weather, at_us=moments, link=links, for_us=whiles),
)
schedules = st.lists(faults, max_size=8)


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**64), schedule=schedules, link=links)
def test_ping_pong_keeps_its_promises_and_repeats(seed, schedule, link):
    setting = Setting(places=len(PLACES), duration_us=SPAN_US // 2)
    report = run_scenario(PINGPONG, seed, setting=setting, faults=schedule, link=link)
    assert report.findings == []
    assert decode_faults(encode_faults(schedule)) == schedule
    assert run_scenario(PINGPONG, seed, setting=setting, faults=schedule, link=link) == report


class Talker:
    """A stream core that talks to one peer and records by stream what it sent and received."""

    def __init__(self):
        self.came = {}
        self.ended = set()
        self._outgoing = []

    def receive_accepted(self, link, label, now):
        self.came[link] = []

    def receive_opened(self, link, now):
        self.came[link] = []

    def receive_frames(self, frames, now):
        for data, link, _ in frames:
            assert link not in self.ended, "nothing comes after the end"
            self.came[link].append(data)

    def receive_closed(self, link, now):
        assert link not in self.ended, "a link ends once"
        self.ended.add(link)

    def send(self, *items):
        self._outgoing.extend(items)

    def handle_timer(self, now):
        raise AssertionError("no timer was asked for")

    def next_timer(self):
        return None

    def events(self):
        return []

    def to_send(self):
        outgoing, self._outgoing = self._outgoing, []
        return outgoing


@settings(max_examples=100, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    link=links,
    cuts=st.lists(st.tuples(st.integers(0, 100), st.integers(1, 60)), max_size=3),
    pauses=st.lists(st.tuples(st.integers(0, 100), st.integers(1, 60)), max_size=2),
    crash_s=st.none() | st.integers(0, 100),
    close_s=st.none() | st.integers(0, 100),
)
def test_stream_delivers_a_prefix_and_all_of_it_unless_it_broke(seed, link, cuts, pauses, crash_s, close_s):
    world = World(seed, link=link)
    for name in ("a", "b"):
        options = ProcessOptions(on_accepted=Talker.receive_accepted)
        world.add_process(name, lambda boot: Talker(), server=f"https://{name}/won", options=options)
    first_life = world.processes["b"].core
    sent = [bytes([number]) for number in range(100)]
    world.command("a", lambda core, now: core.send(OpenLink("s", "b")))
    for number, data in enumerate(sent):
        world.command("a", lambda core, now, data=data: core.send(SendFrames(("s",), (data,))), number * SECOND_US)
    if close_s is not None:
        world.command("a", lambda core, now: core.send(CloseLink("s")), close_s * SECOND_US + 1)
        sent = sent[: close_s + 1]
    for at_s, for_s in cuts:
        world.schedule(at_s * SECOND_US, lambda for_s=for_s: heal_later(world, for_s))
    for at_s, for_s in pauses:
        world.schedule(at_s * SECOND_US, lambda for_s=for_s: world.pause("b", for_s * SECOND_US))
    if crash_s is not None:
        world.schedule(crash_s * SECOND_US, lambda: world.crash("b", SECOND_US))
    assert world.run(600 * SECOND_US)
    came = first_life.came.get("a~1", [])
    assert came == sent[: len(came)]
    if crash_s is None and not any(for_s >= 30 for _, for_s in cuts) and len(cuts) < 2:
        assert came == sent
    if world.processes["a"].core.ended or close_s is not None:
        assert world.links.live_count == 0


def heal_later(world, for_s):
    number = world.partition([["a"]])
    world.schedule(for_s * SECOND_US, lambda: world.heal(number))


observations = st.builds(
    lambda at_us, stage, text, counterparts, with_raw, size: Observation(
        at_us=at_us,
        stage=stage,
        message=address_of(text),
        counterparts=tuple(counterparts),
        raw=text if with_raw else None,
        size=size,
    ),
    st.integers(-1000, 1000),
    st.sampled_from([Stage.CREATED, Stage.ACCEPTED, Stage.PULLED]),
    st.sampled_from([b"x", b"y", b"z"]),
    st.lists(st.sampled_from("pqr"), max_size=3),
    st.booleans(),
    st.none() | st.integers(0, 9),
)


@given(st.lists(st.lists(observations, min_size=1, max_size=4), max_size=6), st.booleans())
def test_memory_journal_keeps_the_rules_whenever_it_is_read(groups, is_read_between):
    journal = MemoryJournal("swarm://test/a")
    for group in groups:
        assert journal.append(group) == journal.size
        if is_read_between:
            assert len(list(journal.hops())) == journal.size
    hops = list(journal.hops())
    assert check_journals([hops]) == []
    flat = [(seen, name) for group in groups for seen in group for name in seen.counterparts or (None,)]
    assert [(hop.message, hop.stage, hop.counterpart) for hop in hops] == [
        (seen.message, seen.stage, name) for seen, name in flat
    ]
    with_bytes = {seen.message for seen, _ in flat if seen.raw is not None or seen.size is not None}
    assert {hop.message for hop in hops if hop.raw is not None or hop.size is not None} == with_bytes


@settings(max_examples=25, deadline=None)
@given(st.lists(st.lists(observations, min_size=1, max_size=4), max_size=6))
def test_memory_journal_reads_like_the_real_one(groups):
    with TemporaryDirectory() as folder:
        memory, disk = (factory("a", "swarm://test/a") for factory in (MemoryDisks(), JournalFolder(Path(folder), 1)))
        for group in groups:
            assert memory.append(group) == disk.append(group)
        assert list(memory.hops()) == list(disk.hops())
        disk.close()


@given(
    start_us=st.integers(0, 2**51),
    skew_us=st.integers(-(2**40), 2**40),
    drift_ppm=st.integers(-900_000, 900_000),
    shown_us=st.integers(0, 2**51),
)
def test_clock_and_its_inverse_agree(start_us, skew_us, drift_ppm, shown_us):
    clock = Clock(start_us, skew_us, drift_ppm)
    world_us = clock.when(shown_us)
    assert clock.read(world_us) >= shown_us > clock.read(world_us - 1)
