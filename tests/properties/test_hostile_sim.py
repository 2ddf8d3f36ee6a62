"""Worlds with limits so small that traffic hits them all the time, outages of hours, and bad disks.

Whatever happens: one outcome for each recipient of each accepted message, memory within its budget, and no journal that
lost something continues as if it had not.
"""

import contextlib
import os
import tempfile
from collections import Counter
from pathlib import Path

import pytest

from dovetail.journal import continuity
from dovetail.journal.reader import JournalReader
from dovetail.journal.verify import verify_journal
from dovetail.model.errors import JournalError
from dovetail.model.hop import Reason, Stage
from dovetail.pcp.settings import PcpSettings
from dovetail.sim import won_scenario
from dovetail.sim.disk import JournalFolder
from dovetail.sim.pcp_scenario import BROKER, HOSTILE, PcpScenario, client_uri
from dovetail.sim.scenario import Setting, run_scenario
from dovetail.sim.swarm_scenario import SwarmScenario
from dovetail.sim.world import SECOND_US, World
from dovetail.swarm.peer import Peer

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


def test_what_a_link_that_breaks_during_a_commit_returns_is_no_excess():
    report = run("pcp", 14003785, places=2, seconds=2, faults="all=2")
    assert report.findings == []


def test_those_worlds_find_brokers_that_hold_more_than_their_budget(monkeypatch):
    for name in ("redelivery_messages", "sender_queue_messages", "queue_bytes"):
        monkeypatch.setitem(HOSTILE, name, 1 << 20)
    monkeypatch.setattr(PcpSettings, "queue_share", 1 << 30)
    rules = {finding.rule for seed in range(8) for finding in run("pcp", seed, places=4, seconds=3).findings}
    assert "memory" in rules


def test_the_tiny_queues_of_those_worlds_do_overflow():
    reasons = Counter()
    for seed in range(5):
        world = World(seed)
        PcpScenario(world, Setting(places=4, duration_us=3 * SECOND_US, is_hostile=True))
        world.run(15 * SECOND_US)
        reasons.update(hop.reason for hop in world.hops()[BROKER])
    assert reasons[Reason.REDELIVERY_OVERFLOW] > 10


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(50))
def test_nodes_with_tiny_limits_finish_every_chain(seed):
    report = run("won", seed, places=2, seconds=2, faults="all=1,outage")
    assert report.findings == []
    assert report.is_settled


@pytest.mark.exhaustive
def test_those_worlds_find_responses_that_reference_all_that_is_unconfirmed(monkeypatch):
    """Without a limit an outage makes a response too large for any node to accept, and the conversation stops there."""
    monkeypatch.setitem(won_scenario.HOSTILE, "max_references", (1000, 1000))
    monkeypatch.setattr(won_scenario, "IMPATIENT_SHARE", 0)  # a node that gives up soon has few unconfirmed messages
    rules = {
        finding.rule
        for seed in range(8)
        for finding in run("won", seed, places=2, seconds=6, faults="all=1,outage").findings
    }
    assert {"settled", "complete"} <= rules


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(50))
def test_peers_with_tiny_limits_converge_among_liars(seed):
    report = run("swarm", seed, places=3, seconds=3)
    assert report.findings == []
    assert report.is_settled


@pytest.mark.exhaustive
def test_inventions_that_honest_peers_relay_do_not_keep_out_what_exists():
    report = run("swarm", 226, places=4, seconds=2, faults="all=2")
    assert (report.findings, report.is_settled) == ([], True)


@pytest.mark.exhaustive
def test_the_tiny_limits_of_those_peers_are_reached():
    world = World(1)
    scenario = SwarmScenario(world, Setting(places=4, duration_us=5 * SECOND_US, is_hostile=True))
    world.run(20 * SECOND_US)
    statuses = [peer.status() for peer in scenario.peers().values() if isinstance(peer, Peer)]
    assert max(status.missing for status in statuses) == scenario.settings.max_wanted
    assert sum(status.crowded_out for status in statuses) > 10


@pytest.mark.soak
@pytest.mark.parametrize(
    ("scenario", "places", "share", "faults"),
    [("pcp", 4, 1, "all=2"), ("swarm", 4, 30, "all=2"), ("won", 3, 30, "all=2,outage")],
)
def test_thousands_of_hostile_seeds(scenario, places, share, faults):
    for seed in range(SOAK_SEEDS // share):
        report = run(scenario, seed, places=places, seconds=2, faults=faults)
        assert report.findings == [], seed


def run_on_bad_disks(scenario, seed, *, has_copies=True, faults="damage=8"):
    """The findings of a world whose disks are damaged, and the results for its journals."""
    in_memory = "/dev/shm" if Path("/dev/shm").is_dir() else None  # where fsync costs nothing
    with tempfile.TemporaryDirectory(dir=in_memory) as folder:
        disks = JournalFolder(Path(folder), seed, has_copies=has_copies)
        setting = Setting(places=3, duration_us=3 * SECOND_US)
        report = run_scenario(scenario, seed, setting=setting, faults=faults, journal_factory=disks)
        for path in Path(folder).glob("*.journal"):
            with contextlib.suppress(JournalError):  # pages that no server reads at its start may still be bad
                verify_journal(path)
        return report.findings, disks.outcomes


@pytest.mark.parametrize("seed", range(50))
def test_what_a_bad_disk_gives_back_is_repaired_refused_or_named(seed):
    """With a copy in the lake the broker keeps its promises; without one, the other peers repair the loss."""
    scenario, has_copies = (("pcp", True), ("swarm", False))[seed % 2]
    assert run_on_bad_disks(scenario, seed, has_copies=has_copies, faults="all=1,damage=6")[0] == []


def test_those_disks_are_bad_in_every_way():
    outcomes = Counter()
    for seed in range(6):
        outcomes += run_on_bad_disks("swarm", seed, has_copies=False)[1]
    assert all(outcomes[name] for name in ("whole", "recovered", "lost"))


def test_those_worlds_find_journals_that_go_on_after_they_lost_their_end(monkeypatch):
    """Without the high-water mark SQLite takes a damaged log for a shorter one."""
    monkeypatch.setattr(continuity, "_find_behind_mark", lambda reader, mark: ())
    monkeypatch.setattr(JournalReader, "marked_size", lambda reader: 0)
    rules = {finding.rule for seed in range(6) for finding in run_on_bad_disks("swarm", seed)[0]}
    assert "disk" in rules


@pytest.mark.soak
@pytest.mark.parametrize(
    ("scenario", "has_copies", "share"), [("pcp", True, 3), ("swarm", False, 3), ("won", True, 30)]
)
def test_thousands_of_bad_disks(scenario, has_copies, share):
    for seed in range(1000, 1000 + SOAK_SEEDS // share):
        assert run_on_bad_disks(scenario, seed, has_copies=has_copies, faults="all=2,damage=8")[0] == [], seed


@pytest.mark.parametrize("durability", ["full", "relaxed"])
def test_an_agent_that_is_away_for_hours_gets_what_may_wait_and_the_rest_is_named(durability):
    world = World(2)  # in which both speak version 1 in all their lives: what is sent in version 2 does not wait
    scenario = PcpScenario(world, Setting(places=2, duration_us=SECOND_US, durability=durability))
    away, sender = "client-0001", "client-0000"
    world.run(10 * SECOND_US)
    world.processes[BROKER].fill_link(client_uri(away), is_full=True)
    for number in range(WAITING):
        world.command(
            sender,
            scenario.make_sending([client_uri(away)], ttl_ms=4 * 3_600_000),
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
