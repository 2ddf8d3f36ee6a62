"""Whole runs: settled, checked, reproducible, and able to find faults."""

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

import dovetail
from dovetail.model.errors import UsageError
from dovetail.model.hop import Observation, Stage
from dovetail.sim import SECOND_US, CrashPoint, Link, MemoryDisks, Randomness, World
from dovetail.sim.faults import ALL, AppendCrash, Crash, encode_faults
from dovetail.sim.scenario import SCENARIOS, Setting, draw_schedule, find_builder, name_places, run_scenario
from sim.pingpong import PINGPONG, PingPong, PingPongScenario

SMALL = Setting(places=2, duration_us=SECOND_US // 2)


class HastyPingPong(PingPong):
    """Promises first and journals one turn later: the fault that the world must find."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self._late = []

    def events(self):
        events = super().events()
        late, self._late = self._late, [event for event in events if isinstance(event, Observation)]
        return late + [event for event in events if not isinstance(event, Observation)]


class HastyPlay(PingPongScenario):
    core_class = HastyPingPong


class CarelessPlay(PingPongScenario):
    """Always reports itself as settled."""

    def is_settled(self):
        return True


def test_quiet_world_delivers_everything_without_findings():
    report = run_scenario(PINGPONG, 1, setting=SMALL)
    assert report.is_settled
    assert report.findings == []
    assert report.facts == {"pings": 10, "delivered": 10, "acknowledged": 10}
    assert report.hops == 10 * 7
    assert 0 < report.virtual_us < SECOND_US
    assert list(report.digests) == ["place-0000", "place-0001"]


@pytest.mark.parametrize("seed", range(20))
def test_everything_arrives_once_whatever_goes_wrong(seed):
    report = run_scenario(PINGPONG, seed, setting=Setting(duration_us=2 * SECOND_US), faults="all=2")
    assert report.is_settled
    assert report.findings == []
    assert len(report.faults) == 2 * len(ALL)


@pytest.mark.parametrize("point", list(CrashPoint))
def test_crash_at_every_append_of_a_place(point):
    appends = run_scenario(PINGPONG, 5, setting=SMALL, link=Link(loss=0.2)).appends // 2
    assert appends > 10
    for append in range(1, appends + 1):
        fault = AppendCrash(place="place-0000", append=append, point=point, down_us=SECOND_US)
        report = run_scenario(PINGPONG, 5, setting=SMALL, link=Link(loss=0.2), faults=[fault])
        assert report.findings == [], f"append {append}"
        assert report.crashes == 1 or append > report.appends // 2


def test_core_that_promises_before_it_journals_is_found_out(monkeypatch):
    monkeypatch.setitem(SCENARIOS, "hasty", f"{__name__}:HastyPlay")
    reports = [run_scenario("hasty", seed, setting=SMALL, faults="append_crash=4") for seed in range(20)]
    rules = {finding.rule for report in reports for finding in report.findings}
    assert rules & {"acknowledged", "complete", "origin"}


def test_lost_and_doubled_hops_are_found():
    world = World(1)
    scenario = PingPongScenario(world, SMALL)
    world.run(10 * SECOND_US)
    hops = world.hops()
    assert scenario.findings(hops) == []
    lost = {name: [hop for hop in part if hop.stage is not Stage.DELIVERED] for name, part in hops.items()}
    assert [finding.rule for finding in scenario.findings(lost)] == ["acknowledged"] * 10 + ["complete"]
    doubled = hops | {"place-0000": hops["place-0000"] * 2}
    assert {finding.rule for finding in scenario.findings(doubled)} == {"taken_once"}


def test_world_that_never_settles_is_a_finding():
    report = run_scenario(PINGPONG, 1, setting=SMALL, link=Link(loss=1.0))
    assert not report.is_settled
    assert [finding.rule for finding in report.findings] == ["settled"]


def test_run_waits_until_all_places_are_up_again(monkeypatch):
    monkeypatch.setitem(SCENARIOS, "careless", f"{__name__}:CarelessPlay")
    fault = AppendCrash(place="place-0000", append=2, point=CrashPoint.AFTER_SEND, down_us=20 * SECOND_US)
    report = run_scenario("careless", 1, setting=SMALL, faults=[fault])
    assert report.virtual_us >= 20 * SECOND_US


def test_same_seed_same_report_and_another_seed_another():
    first, again, other = (run_scenario(PINGPONG, seed, faults="all") for seed in (3, 3, 4))
    assert first == again
    assert first.digest != other.digest


def test_schedule_of_a_report_replays_it():
    drawn = run_scenario(PINGPONG, 3, faults="all")
    assert run_scenario(PINGPONG, 3, faults=drawn.faults) == drawn


def test_journals_of_another_kind_change_nothing():
    opened = []
    disks = MemoryDisks()

    def open_journal(place, server):
        opened.append(place)
        return disks(place, server)

    faults = [Crash(at_us=100_000, place="place-0001", down_us=1000)]
    report = run_scenario(PINGPONG, 3, setting=SMALL, faults=faults, journal_factory=open_journal)
    assert opened == ["place-0000", "place-0001", "place-0001"]
    assert report == run_scenario(PINGPONG, 3, setting=SMALL, faults=faults)


@pytest.mark.parametrize("python_hash_seed", ["0", "1", "4242"])
def test_journals_are_the_same_under_another_python_hash_seed(python_hash_seed):
    program = (
        "from dovetail.sim.scenario import run_scenario, Setting\n"
        "import msgspec, sys\n"
        "report = run_scenario('sim.pingpong:build', 11, setting=Setting(places=4), faults='all=2')\n"
        "sys.stdout.buffer.write(msgspec.json.encode(report))"
    )
    environment = os.environ | {
        "PYTHONHASHSEED": python_hash_seed,
        "PYTHONPATH": os.pathsep.join([str(Path(dovetail.__file__).parents[1]), str(Path(__file__).parents[1])]),
    }
    run = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, check=True)
    here = run_scenario(PINGPONG, 11, setting=Setting(places=4), faults="all=2")
    assert run.stdout == msgspec.json.encode(here)
    assert here.crashes > 0


def test_report_is_plain_json():
    report = run_scenario(PINGPONG, 1, setting=SMALL, faults="weather")
    plain = msgspec.json.decode(msgspec.json.encode(report))
    assert plain["seed"] == 1
    assert encode_faults(report.faults).strip()[1:-1].strip() == msgspec.json.encode(plain["faults"][0])


def test_text_of_faults_is_kinds_and_counts():
    def kinds(text):
        faults = draw_schedule(text, Randomness(1), ["a", "b"], SECOND_US)
        return [type(fault).__name__ for fault in faults]

    assert kinds("none") == []
    assert kinds("crash=2, pause") == ["Crash", "Crash", "Pause"]
    assert len(kinds("all=2,crash")) == 2 * len(ALL) + 1


@pytest.mark.parametrize("text", ["", "flood", "crash=x", "crash=-1", "crash=²", "all=100000"])
def test_text_of_faults_that_makes_no_sense_is_refused(text):
    with pytest.raises(UsageError):
        draw_schedule(text, Randomness(1), ["a"], SECOND_US)


def test_unknown_scenario_is_refused_by_name():
    for name in ("chess", "no.such.module:build", "sim.pingpong:no_such_function", ":", ""):
        with pytest.raises(UsageError, match="expected pcp, won, swarm or module:function"):
            find_builder(name)


def test_every_scenario_of_the_table_can_be_found():
    assert all(callable(find_builder(name)) for name in SCENARIOS)


def test_place_names_sort_in_their_order():
    names = name_places("x", 1000)
    assert names == sorted(names)
    with pytest.raises(UsageError, match="0 places"):
        name_places("x", 0)
