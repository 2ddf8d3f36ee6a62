"""The scenario `swarm`: all peers end with the same messages, and the scenario reports it if they do not."""

import pytest

from dovetail.model.hop import Stage
from dovetail.sim.faults import ClockJump, Crash, Partition
from dovetail.sim.scenario import Setting, run_scenario
from dovetail.sim.swarm_scenario import SwarmScenario
from dovetail.sim.world import SECOND_US, World

MISFORTUNE = "all=1"


@pytest.mark.parametrize("seed", range(20))
def test_peers_end_with_the_same_messages(seed):
    setting = Setting(places=2 + seed % 5, duration_us=5 * SECOND_US)
    report = run_scenario("swarm", seed, setting=setting, faults=MISFORTUNE)
    assert report.findings == []
    assert report.is_settled
    assert report.facts["held by all"] > 3


@pytest.mark.parametrize("seed", [2, 18, 50, 112])
def test_messages_expire_while_peers_are_apart_and_clocks_are_set(seed):
    setting = Setting(places=3, duration_us=40 * SECOND_US)
    report = run_scenario("swarm", seed, setting=setting, faults="partition=3,crash=1,clock=2")
    assert (report.findings, report.is_settled) == ([], True)


def test_a_maker_that_does_not_say_that_nobody_has_its_message_is_found():
    world = World(4)
    scenario = SwarmScenario(world, Setting(places=2, duration_us=5 * SECOND_US, durability="full"))
    number = world.partition([["peer-0000"]])
    world.run(30 * SECOND_US)
    world.heal(number)
    world.run(60 * SECOND_US)
    assert scenario.findings(world.hops()) == []
    silent = {name: [hop for hop in hops if hop.stage is not Stage.EXPIRED] for name, hops in world.hops().items()}
    assert {finding.rule for finding in scenario.findings(silent)} >= {"told"}


def test_some_worlds_have_peers_that_speak_only_the_seed():
    setting = Setting(places=4, duration_us=SECOND_US)
    counts = [run_scenario("swarm", seed, setting=setting).facts["seed peers"] for seed in range(8)]
    assert 0 in counts
    assert max(counts) >= 2


def test_a_world_whose_clock_was_set_back_settles():
    report = run_scenario("swarm", 18, setting=Setting(places=3, duration_us=5 * SECOND_US), faults="all=1")
    assert (report.findings, report.is_settled) == ([], True)


def test_messages_dated_before_the_last_questions_reach_a_peer_that_asks_only_for_later_ones():
    setting = Setting(duration_us=5 * SECOND_US)
    faults = [
        ClockJump(at_us=2 * SECOND_US, place="peer-0000", by_us=-15 * SECOND_US),
        Partition(at_us=2 * SECOND_US, groups=(("peer-0000",),), for_us=30 * SECOND_US),
        # now peer-0001 learns what was published behind the partition, and peer-0002 only later
        Partition(at_us=32 * SECOND_US, groups=(("peer-0002",),), for_us=20 * SECOND_US),
        Crash(at_us=51 * SECOND_US, place="peer-0000", down_us=200 * SECOND_US),
    ]
    report = run_scenario("swarm", 2, setting=setting, faults=faults)
    assert (report.findings, report.is_settled) == ([], True)


def test_peer_that_is_cut_off_is_found():
    world = World(1)
    scenario = SwarmScenario(world, Setting(places=3, duration_us=5 * SECOND_US))
    world.partition([["peer-0002"]])
    world.run(20 * SECOND_US)
    assert not scenario.is_settled()
    assert {(finding.rule, finding.server) for finding in scenario.findings(world.hops())} > {
        ("converged", "peer-0002")
    }
