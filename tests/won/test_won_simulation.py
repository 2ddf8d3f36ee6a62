"""Worlds of nodes and owners under loss, partitions, crashes: every acknowledged message is everywhere, once."""

from __future__ import annotations

import os

import pytest

from dovetail.sim import SECOND_US, Link
from dovetail.sim.scenario import Setting, run_scenario

ROUGH = Link(latency_us=(5_000, 150_000))
SOAK_SEEDS = int(os.environ.get("DOVETAIL_SOAK_SEEDS", "3000"))


def run(seed, *, nodes, seconds, faults):
    return run_scenario(
        "won", seed, setting=Setting(places=nodes, duration_us=int(seconds * SECOND_US)), faults=faults, link=ROUGH
    )


def assert_everything_is_everywhere(report):
    assert report.is_settled, report.findings[:5]
    assert report.findings == []
    assert report.facts["complete"] > 0
    assert set(report.facts) <= {"complete", "atom", "failed"}, "failed are those to an atom that does not exist"


@pytest.mark.exhaustive
def test_calm_world_completes_every_chain():
    assert_everything_is_everywhere(run(1, nodes=2, seconds=5, faults="none"))


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(50))
def test_any_misfortune_leaves_all_parties_with_the_same_chains(seed):
    assert_everything_is_everywhere(run(seed, nodes=2 + seed % 4, seconds=1.2, faults="all=1"))


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


@pytest.mark.soak
@pytest.mark.parametrize("block", range(0, SOAK_SEEDS, 50))
def test_thousands_of_seeds(block):
    for seed in range(1000 + block, 1050 + block):
        assert_everything_is_everywhere(run(seed, nodes=2 + seed % 4, seconds=5, faults="all=2"))
