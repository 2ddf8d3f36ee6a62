"""Worlds whose limits are so small that traffic runs into them all the time, and outages of hours.

Whatever happens: one outcome for each recipient of each accepted message, and memory within its budget.
"""

import os
from collections import Counter

import pytest

from dovetail.model.hop import Reason, Stage
from dovetail.sim.pcp_scenario import BROKER, MESSAGE_TYPE, PcpScenario, client_uri
from dovetail.sim.scenario import Setting, run_scenario
from dovetail.sim.world import SECOND_US, World

SOAK_SEEDS = int(os.environ.get("DOVETAIL_SOAK_SEEDS", "3000"))
HOUR_US = 3600 * SECOND_US
WAITING = 2_000


def run(scenario, seed, *, places, seconds, faults="all=1"):
    setting = Setting(places=places, duration_us=int(seconds * SECOND_US), is_hostile=True)
    return run_scenario(scenario, seed, setting=setting, faults=faults)


@pytest.mark.parametrize("seed", range(50))
def test_broker_with_tiny_queues_keeps_every_promise(seed):
    report = run("pcp", seed, places=4, seconds=3)
    assert report.findings == []


def test_the_tiny_queues_of_those_worlds_do_overflow():
    reasons = Counter()
    for seed in range(5):
        world = World(seed)
        PcpScenario(world, Setting(places=4, duration_us=3 * SECOND_US, is_hostile=True))
        world.run(15 * SECOND_US)
        reasons.update(hop.reason for hop in world.hops()[BROKER])
    assert reasons[Reason.REDELIVERY_OVERFLOW] > 10


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(4))
def test_nodes_with_tiny_limits_finish_every_chain(seed):
    report = run("won", seed, places=2, seconds=1)
    assert report.findings == []
    assert report.is_settled


@pytest.mark.soak
@pytest.mark.parametrize(("scenario", "places", "share"), [("pcp", 4, 1), ("won", 3, 30)])
def test_thousands_of_hostile_seeds(scenario, places, share):
    for seed in range(SOAK_SEEDS // share):
        report = run(scenario, seed, places=places, seconds=2, faults="all=2")
        assert report.findings == [], seed


@pytest.mark.parametrize("durability", ["full", "relaxed"])
def test_an_agent_that_is_away_for_hours_gets_what_may_wait_and_the_rest_is_named(durability):
    world = World(1)
    scenario = PcpScenario(world, Setting(places=2, duration_us=SECOND_US, durability=durability))
    away, sender = "client-0001", "client-0000"
    world.run(10 * SECOND_US)
    world.processes[BROKER].fill_link(client_uri(away), is_full=True)
    for number in range(WAITING):
        world.command(
            sender,
            lambda core, now: core.send(MESSAGE_TYPE, [client_uri(away)], b"{}", ttl_ms=4 * 3_600_000, now=now),
            after_us=number * 10_000,
        )
    world.run(WAITING * 10_000 + SECOND_US)
    world.crash(away, restart_after_us=2 * HOUR_US)
    world.processes[BROKER].fill_link(client_uri(away), is_full=False)
    world.schedule(HOUR_US, lambda: world.crash(BROKER, SECOND_US))
    world.run(3 * HOUR_US)
    hops = world.hops()
    assert scenario.findings(hops) == []
    outcomes = Counter((hop.stage, hop.reason) for hop in hops[BROKER] if hop.counterpart == client_uri(away))
    kept = scenario.settings.redelivery_messages
    assert outcomes[Stage.REDELIVERED, None] >= kept
    assert outcomes[Stage.EXPIRED, Reason.REDELIVERY_OVERFLOW] >= WAITING - kept
