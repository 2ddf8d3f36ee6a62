"""Worlds of nodes and owners under loss, partitions, crashes: every acknowledged message is everywhere, once."""

from __future__ import annotations

import os

import pytest

from dovetail.model.hop import Stage
from dovetail.sim import SECOND_US, Link
from dovetail.sim.scenario import Setting, run_scenario
from dovetail.sim.won_scenario import WonScenario
from dovetail.sim.world import World
from dovetail.won.message import decode_message
from dovetail.won.vocabulary import MessageType

ROUGH = Link(latency_us=(5_000, 150_000))
HOUR_US = 3600 * SECOND_US
SOAK_SEEDS = int(os.environ.get("DOVETAIL_SOAK_SEEDS", "3000"))


def run(seed, *, nodes, seconds, faults):
    return run_scenario(
        "won", seed, setting=Setting(places=nodes, duration_us=int(seconds * SECOND_US)), faults=faults, link=ROUGH
    )


def assert_everything_is_everywhere(report):
    assert report.is_settled, report.findings[:5]
    assert report.findings == []
    assert report.facts["complete"] > 0
    assert set(report.facts) <= {"complete", "atom", "failed"}, "failed are those that a node refused"


@pytest.mark.exhaustive
def test_calm_world_completes_every_chain():
    assert_everything_is_everywhere(run(1, nodes=2, seconds=5, faults="none"))


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(50))
def test_any_misfortune_leaves_all_parties_with_the_same_chains(seed):
    assert_everything_is_everywhere(run(seed, nodes=2 + seed % 4, seconds=1.2, faults="all=1"))


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", [30, 50, 66, 80])
def test_nodes_whose_clocks_are_set_close_and_notify_each_time_anew(seed):
    """In these worlds owners deactivate their atoms again while the clock of their node is behind."""
    report = run_scenario("won", seed, setting=Setting(places=2, duration_us=4 * SECOND_US), faults="clock=6")
    assert (report.findings, report.is_settled) == ([], True)


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(3))
def test_crashes_at_every_step(seed):
    report = run(seed, nodes=2, seconds=3, faults="append_crash=12,crash=6")
    assert report.crashes >= 6
    assert_everything_is_everywhere(report)


@pytest.mark.exhaustive
def test_registrations_that_overtake_the_log_do_not_stop_it():
    assert_everything_is_everywhere(run(1057, nodes=3, seconds=5, faults="all=2"))


@pytest.mark.exhaustive
def test_same_seed_same_journals():
    assert run(7, nodes=3, seconds=2, faults="all=1").digest == run(7, nodes=3, seconds=2, faults="all=1").digest


def write_through_an_outage(away, waiting):
    """An owner writes to another for hours while a node is away; its own node crashes in the middle of it."""
    world = World(3)
    scenario = WonScenario(world, Setting(places=2, duration_us=2 * SECOND_US))
    world.run(20 * SECOND_US)
    one, other = "owner-0-0", "owner-1-0"
    sockets = [f"{scenario.atoms[name]}#chat" for name in (one, other)]
    for sender, pair in ((one, sockets), (other, sockets[::-1])):
        world.command(sender, lambda core, now, pair=pair: core.send_message(MessageType.CONNECT, *pair, now))
    world.run(20 * SECOND_US)
    world.crash(away, restart_after_us=3 * HOUR_US)
    for number in range(waiting):
        world.command(
            one,
            lambda core, now: core.send_message(MessageType.CONNECTION, *sockets, now, "words"),
            after_us=number * SECOND_US,
        )
    world.schedule(HOUR_US, lambda: world.crash(one, HOUR_US // 2))
    world.schedule(HOUR_US, lambda: away == "node-0" or world.crash("node-0", SECOND_US))
    world.run(3 * HOUR_US)
    unanswered = scenario.owners()[one].unanswered if away == "node-0" else scenario.node("node-0").ledger.sent
    assert len(unanswered) >= waiting
    world.run(3000 * SECOND_US)
    assert scenario.is_settled()
    assert scenario.findings(world.hops()) == []


@pytest.mark.exhaustive
@pytest.mark.parametrize("away", ["node-1", "node-0"])
def test_a_node_that_is_away_for_hours_gets_what_waited_and_all_chains_complete(away):
    """Where it is the sender's own node, the owner wrote most of it longer ago than clocks may be off."""
    write_through_an_outage(away, 300)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("away", ["node-1", "node-0"])
def test_thousands_of_messages_that_waited_for_hours_complete(away):
    write_through_an_outage(away, 2_100)


@pytest.mark.exhaustive
@pytest.mark.parametrize("outcomes", [0, 2])
def test_a_message_without_an_outcome_or_with_two_is_found(outcomes):
    world = World(1)
    scenario = WonScenario(world, Setting(places=2, duration_us=SECOND_US))
    world.run(20 * SECOND_US)
    hops = {name: list(journal) for name, journal in world.hops().items()}
    assert scenario.findings(hops) == []
    atoms = set(scenario.atoms.values())
    name, delivered = next(
        (name, hop)
        for name in scenario.nodes
        for hop in hops[name]
        if hop.stage is Stage.DELIVERED and hop.counterpart in atoms and hop.message in _connection_messages(hops[name])
    )
    hops[name].remove(delivered)
    hops[name] += [delivered] * outcomes
    assert "one_outcome" in {finding.rule for finding in scenario.findings(hops)}


def _connection_messages(journal):
    raws = [hop.raw for hop in journal if hop.raw is not None and hop.stage is Stage.ACCEPTED]
    return {message.address for raw in raws if (message := decode_message(raw)).type is MessageType.CONNECT}


@pytest.mark.soak
@pytest.mark.parametrize("block", range(0, SOAK_SEEDS, 50))
def test_thousands_of_seeds(block):
    for seed in range(1000 + block, 1050 + block):
        assert_everything_is_everywhere(run(seed, nodes=2 + seed % 4, seconds=5, faults="all=2"))
