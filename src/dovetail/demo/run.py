"""Runs a demo from its first process to the comparison."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

from dovetail.audit.session import require_spark
from dovetail.demo.audit import run_audit, seal_all, tamper, write_trust
from dovetail.demo.comparison import Comparison, compare
from dovetail.demo.evidence import Tables
from dovetail.demo.layout import Layout
from dovetail.demo.next_steps import NextStep, suggest
from dovetail.demo.plan import Plan
from dovetail.demo.report import write_report
from dovetail.demo.screen import Screen
from dovetail.demo.world import World


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a demo leaves behind."""

    comparison: Comparison
    report: Path
    next_steps: list[NextStep]


def run_demo(out: Path, seed: int, scale: float, screen: Screen, *, keep: bool) -> Outcome:
    """Run everything. If it ends early, also by Ctrl-C, its processes and files are removed, unless `keep`."""
    require_spark()
    layout = Layout(out.absolute())
    layout.prepare()
    try:
        world = World(layout, Plan.of(scale), seed, screen)
        asyncio.run(world.run())
        _seal_and_tamper(layout, world, seed, screen)
        screen.phase("audit on Spark, without knowledge of the faults")
        run_audit(layout, world.ended_us, screen)
        screen.phase("report and comparison")
        write_report(layout)
        tables = Tables(layout.tables)
        comparison = compare(world.ledger, tables)
        comparison.save(layout.comparison)
        screen.status(comparison.verdict)
        next_steps = suggest(Layout(out), world.ledger, tables) if comparison.is_fine else []
    except BaseException:
        if not keep:
            layout.clear()
        raise
    if not keep:
        layout.tidy()
    return Outcome(comparison=comparison, report=Layout(out).report, next_steps=next_steps)


def _seal_and_tamper(layout: Layout, world: World, seed: int, screen: Screen) -> None:
    ledger = world.ledger
    screen.phase("seal the journals into the lake")
    write_trust(layout)
    screen.status(f"{seal_all(layout)} hops")
    screen.phase("tamper with the lake")
    _, _, south = world.nodes  # the journal that lacks the lost response must be known without a gap
    for fault in tamper(layout, ledger, south, world.peers[1], seed):
        ledger.note(fault)
        screen.note(f"injected: {fault.what}")
    ledger.save(layout.faults)
