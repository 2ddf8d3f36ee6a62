"""The scenario `swarm`: all peers end with the same messages, and the play finds it where they do not."""

import pytest

from dovetail.sim.scenario import Setting, run_scenario
from dovetail.sim.swarm_play import SwarmPlay
from dovetail.sim.world import SECOND_US, World

MISFORTUNE = "crash,append_crash,partition,pause,disk,weather"


@pytest.mark.parametrize("seed", range(15))
def test_peers_end_with_the_same_messages(seed):
    setting = Setting(places=2 + seed % 5, duration_us=5 * SECOND_US)
    report = run_scenario("swarm", seed, setting=setting, faults=MISFORTUNE)
    assert report.findings == []
    assert report.is_settled
    assert report.facts["held by all"] > 5


def test_peer_that_is_cut_off_is_found():
    world = World(1)
    play = SwarmPlay(world, Setting(places=3, duration_us=5 * SECOND_US))
    world.partition([["peer-0002"]])
    world.run(20 * SECOND_US)
    assert not play.is_settled()
    assert {(finding.rule, finding.server) for finding in play.findings(world.hops())} > {("converged", "peer-0002")}
