"""A demo from its first process to the comparison."""

from __future__ import annotations

import asyncio
from pathlib import Path

from dovetail.demo.audit import run_audit, seal_all, tamper, write_trust
from dovetail.demo.comparison import Comparison, compare
from dovetail.demo.layout import Layout
from dovetail.demo.plan import Plan
from dovetail.demo.screen import Screen
from dovetail.demo.sightings import Tables
from dovetail.demo.world import World


def run_demo(out: Path, seed: int, scale: float, screen: Screen, *, keep: bool) -> Comparison:
    """Run it all. Whatever ends it early, Ctrl-C included, takes its processes and files with it, unless `keep`."""
    layout = Layout(out.absolute())
    layout.prepare()
    try:
        world = World(layout, Plan.of(scale), seed, screen)
        asyncio.run(world.run())
        ledger = world.ledger
        screen.phase("seal the journals into the lake")
        write_trust(layout)
        screen.status(f"{seal_all(layout)} hops")
        screen.phase("tamper with the lake")
        for fault in tamper(layout, ledger, world.nodes[0], world.peers[1], seed):
            ledger.note(fault)
            screen.note(f"injected: {fault.what}")
        ledger.save(layout.faults)
        screen.phase("audit on Spark, which knows nothing of all this")
        run_audit(layout, world.ended_us, screen)
        screen.phase("compare")
        comparison = compare(ledger, Tables(layout.tables))
        comparison.save(layout.comparison)
    except BaseException:
        if not keep:
            layout.clear()
        raise
    if not keep:
        layout.tidy()
    return comparison
