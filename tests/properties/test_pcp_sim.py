"""A broker and its clients in the simulated world: streams that break, a broker that crashes and restarts.

The claims, whatever happens: no one gets a message twice, no one gets one that the journal does not record as
delivered, and once every lifetime is over each accepted message has exactly one outcome per target.
"""

from collections import Counter

import pytest

from dovetail.model.hop import Reason, Stage
from dovetail.pcp.fabric import FABRIC
from dovetail.sim.core import CrashPoint
from dovetail.sim.faults import AnyFault, AppendCrash, Crash, apply_faults
from dovetail.sim.pcp_scenario import BROKER, PcpScenario
from dovetail.sim.scenario import Setting, run_scenario
from dovetail.sim.world import SECOND_US, World

SETTING = Setting(places=4, duration_us=6 * SECOND_US)


def draw_crashes(seed: int) -> list[AnyFault]:
    """The broker crashes amid traffic at three points of a turn, two clients in between."""
    points = list(CrashPoint)
    appends = [
        AppendCrash(place=BROKER, append=append, point=points[(seed + append) % len(points)], down_us=300_000)
        for append in (15, 41, 70)
    ]
    clients = [Crash(place=f"client-000{seed % 4}", at_us=at * SECOND_US, down_us=200_000) for at in (2, 4)]
    return [*appends, *clients]


@pytest.mark.parametrize("seed", range(12))
def test_nothing_twice_and_one_outcome_each_through_crashes(seed):
    report = run_scenario("pcp", seed, setting=SETTING, faults=draw_crashes(seed))
    assert report.findings == []
    assert report.is_settled
    assert report.crashes == 5
    assert report.facts["accepted"] > 50


@pytest.mark.parametrize("seed", range(20))
def test_any_misfortune(seed):
    report = run_scenario("pcp", seed, setting=SETTING, faults="all=2")
    assert report.findings == []
    assert report.facts["accepted"] > 0


def run_world(seed: int) -> tuple[World, PcpScenario]:
    world = World(seed)
    scenario = PcpScenario(world, SETTING)
    apply_faults(world, draw_crashes(seed))
    world.run(30 * SECOND_US)
    return world, scenario


def test_what_was_held_when_the_broker_crashed_is_redelivered():
    stages = Counter(hop.stage for seed in range(12) for hop in run_world(seed)[0].hops()[BROKER])
    assert stages[Stage.REDELIVERED] > 10


def test_clients_of_both_versions_write_to_each_other_and_change_their_version():
    crossings, reasons, changes = set(), set(), 0
    for seed in range(6):
        hops = run_world(seed)[0].hops()[BROKER]
        read = {hop.message: FABRIC.read(hop.raw) for hop in hops if hop.raw is not None}
        spoken = {}
        for hop in hops:
            if hop.stage is Stage.ACCEPTED:
                spoken.setdefault(hop.counterpart, set()).add(read[hop.message].version)
        changes += sum(len(versions) > 1 for versions in spoken.values())
        reasons |= {hop.reason for hop in hops}
        crossings |= {
            (read[hop.message].version, *spoken[hop.counterpart])
            for hop in hops
            if hop.stage in (Stage.DELIVERED, Stage.REDELIVERED) and len(spoken.get(hop.counterpart, ())) == 1
        }
    assert crossings >= {("1", "1"), ("1", "2"), ("2", "1"), ("2", "2")}
    assert changes
    assert Reason.NOT_TRANSLATABLE in reasons


def test_play_finds_a_message_that_came_twice_or_unannounced():
    world, scenario = run_world(1)
    assert scenario.findings(world.hops()) == []
    twice, (_, uri) = scenario.got[0], scenario.got[1]
    scenario.got += [twice, ("nobody knows", uri)]
    assert [finding.rule for finding in scenario.findings(world.hops())] == ["once", "journaled_first"]


def test_play_finds_a_message_without_outcome():
    world, scenario = run_world(1)
    hops = {name: list(journal) for name, journal in world.hops().items()}
    lost = next(hop for hop in hops[BROKER] if hop.stage is Stage.EXPIRED or hop.stage is Stage.UNDELIVERABLE)
    hops[BROKER].remove(lost)
    assert "one_outcome" in {finding.rule for finding in scenario.findings(hops)}


def test_the_same_seed_gives_the_same_journal():
    assert run_world(3)[0].digests() == run_world(3)[0].digests()
