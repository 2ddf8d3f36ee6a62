"""The tables equal the oracle's for worlds that the simulator runs with the real cores and its faults."""

from __future__ import annotations

from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from audit.audit_worlds import open_test_session
from dovetail.audit.run import Audit
from dovetail.audit.settings import AuditSettings
from dovetail.journal.journal import Journal, JournalOptions
from dovetail.lake.layout import server_slug
from dovetail.lake.seal import seal_journal
from dovetail.lake.store import LocalStore
from dovetail.model.address import address_of
from dovetail.model.hop import Hop, Observation
from dovetail.sim import SECOND_US, Link, World
from dovetail.sim.faults import apply_faults
from dovetail.sim.scenario import Setting, draw_schedule
from dovetail.sim.won_scenario import WonScenario
from dovetail.swarm.acceptance import read_entry
from dovetail.swarm.content import HASH_BYTES
from dovetail.tlog.keys import Signer
from dovetail.won.signing import SigningKey
from oracle.audit_answers import ask_oracle, ask_tables
from properties.test_pcp_sim import run_world as run_pcp
from swarm.swarm_world import SETTINGS as SWARM
from swarm.swarm_world import SwarmWorld

pytestmark = pytest.mark.timeout(900)
FAULTS = "all=1"
SEALINGS = 2


def swarm_hops(seed: int) -> dict[str, list[Hop]]:
    """Four peers that lose many datagrams, one of them away for a while; recorded before all has settled."""
    swarm = SwarmWorld(seed, 4, loss=0.4, skews_us=[0, 40_000, -30_000, 0])
    swarm.traffic(6, per_second=2)
    swarm.world.crash("peer-2", restart_after_us=4 * SECOND_US)
    swarm.traffic(6, per_second=2)
    swarm.run(0.05)
    return swarm.world.hops()


def has_gap(hops: dict[str, list[Hop]]) -> bool:
    """True if a peer lacks a message that one of its own refers to."""
    for journal in hops.values():
        held = {hop.message[:HASH_BYTES] for hop in journal}
        entries = [read_entry(hop.raw, hop.message, SWARM.epoch_ms) for hop in journal if hop.raw is not None]
        if any(referred not in held for entry in entries for referred in entry.refers):
            return True
    return False


def swarm_hops_with_gaps(seed: int) -> dict[str, list[Hop]]:
    """The first world from this seed on that was recorded while a peer lacked something."""
    return next(hops for number in range(100) if has_gap(hops := swarm_hops(seed + 1_000 * number)))


def won_hops(seed: int) -> tuple[dict[str, list[Hop]], dict[str, bytes]]:
    """Two nodes under faults, and their keys; owners keep journals too, but those are not sealed."""
    world = World(seed, link=Link(latency_us=(5_000, 150_000)))
    setting = Setting(places=2, duration_us=3 * SECOND_US)
    scenario = WonScenario(world, setting)
    apply_faults(world, draw_schedule(FAULTS, world.randomness, list(world.processes), setting.duration_us))
    world.run(setting.duration_us)
    keys = {uri: world.randomness.derive_key(uri) for uri in scenario.nodes.values()}
    return {name: hops for name, hops in world.hops().items() if name in scenario.nodes}, keys


def write_journals(root: Path, hops: list[Hop], key: bytes) -> None:
    """The journal of one server, sealed in two parts."""
    server = hops[0].server
    path = root / f"{server_slug(server)}.journal"
    signer = Signer(server, Ed25519PrivateKey.from_private_bytes(key))
    for part in range(SEALINGS):
        journal = Journal.open(path, server=server, signer=signer, options=JournalOptions(durability="relaxed"))
        own = hops[part * len(hops) // SEALINGS : (part + 1) * len(hops) // SEALINGS]
        if own:
            journal.append([observe(hop) for hop in own])
        journal.close()
        seal_journal(path, LocalStore(root / "lake"))


def observe(hop: Hop) -> Observation:
    return Observation(
        at_us=hop.at_us,
        stage=hop.stage,
        message=hop.message,
        counterparts=() if hop.counterpart is None else (hop.counterpart,),
        reason=hop.reason,
        raw=hop.raw,
        size=hop.size,
    )


def check(root: Path, seed: int) -> None:
    nodes, keys = won_hops(seed)
    pcp, _ = run_pcp(seed)
    everything = [*swarm_hops_with_gaps(seed).values(), *nodes.values(), pcp.hops()["broker"]]
    for hops in everything:
        write_journals(root, hops, keys.get(hops[0].server, address_of(hops[0].server.encode())))
    public = {uri: SigningKey(key).public for uri, key in keys.items()}
    expected = ask_oracle(root, epoch_ms=SWARM.epoch_ms, node_keys=public)
    assert all(expected[name] for name in ("deliveries", "chains", "gaps", "coverage", "signatures"))
    settings = AuditSettings(agreements={"": SWARM.agreement})
    summary = Audit(spark=open_test_session(), lake=root / "lake", tables=root / "out", settings=settings).run()
    found = ask_tables(root / "out")
    for name in expected:
        assert found[name] == expected[name], name
    assert {server.verdict for server in summary.servers} == {"proven"}


@pytest.mark.soak
def test_spark_agrees_with_the_oracle_on_a_simulated_world(tmp_path):
    check(tmp_path, 11)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(200, 220))
def test_spark_agrees_with_the_oracle_on_many_simulated_worlds(tmp_path, seed):
    check(tmp_path, seed)
