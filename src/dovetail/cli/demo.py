"""`dovetail demo`: a world with faults goes through journal, verify and seal; what was injected is found again."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from dovetail.sim.scenario import Report

app = typer.Typer()

_SECOND_US = 1_000_000


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Where journals and lake go.", metavar="DIR")] = Path("demo-out"),
    seed: Annotated[int, typer.Option(help="Where all chance comes from.", min=0)] = 1,
    scale: Annotated[int, typer.Option(help="How many servers, in units of six.", min=1, max=100)] = 1,
) -> None:
    """Run a simulated world with faults, keep its journals, verify and seal them, tamper with one and find it."""
    from dovetail.cli.output import print_rows, say

    say("The fabrics are not part of this demo yet: it runs a simulated world of servers that exchange pings")
    say("over a bad network, through the real journal, verification and sealing.")
    journals, lake = _prepare(out)
    say("[1/4] world: loss, duplicates, crashes, partitions, full disks, clocks that jump")
    report = _run_world(journals, seed, places=6 * scale)
    say("[2/4] verify: every hash and signature of every journal")
    intact = _verify(journals)
    say("[3/4] seal: Parquet, every file a subtree of its journal's Merkle tree")
    sealed = _seal(journals, lake)
    say("[4/4] tamper: one counterpart changed in a copy of one journal")
    named = _tamper(next(iter(sorted(journals.glob("*.journal")))), out)
    journaled = "all delivered, none doubled" if not report.findings else f"{len(report.findings)} findings"
    rows: list[dict[str, object]] = [
        {"what": f"{report.facts['pings']} pings through {len(report.faults)} faults", "outcome": journaled},
        {"what": "journals intact after the crashes", "outcome": f"{intact} of {report.places}"},
        {"what": "hops sealed into the lake", "outcome": f"{sealed} of {report.hops}"},
        {"what": "changed row in the copy", "outcome": f"found: {named}" if named else "NOT found"},
    ]
    print_rows(rows, ["what", "outcome"])
    is_fine = intact == report.places and sealed == report.hops and named is not None
    if not is_fine or report.findings:
        raise typer.Exit(1)
    say(f"Try next: dovetail journal list {journals}")
    say(f"          dovetail journal tail {journals / 'place-0000.journal'}")
    say(f"          dovetail journal verify {out / 'tampered.journal'}")


def _prepare(out: Path) -> tuple[Path, Path]:
    """An empty place for this run; only what an earlier demo left is removed."""
    from dovetail.errors import UsageError

    marker = out / ".dovetail-demo"
    if out.exists() and any(out.iterdir()) and not marker.exists():
        raise UsageError(f"{out} is not empty and not from an earlier demo; give another directory with --out")
    shutil.rmtree(out, ignore_errors=True)
    journals = out / "journals"
    journals.mkdir(parents=True)
    marker.touch()
    return journals, out / "lake"


def _run_world(journals: Path, seed: int, places: int) -> Report:
    from dovetail.sim.disk import JournalFolder
    from dovetail.sim.network import Link
    from dovetail.sim.scenario import Setting, run_scenario

    return run_scenario(
        "pingpong",
        seed,
        setting=Setting(places=places, duration_us=10 * _SECOND_US),
        faults="all=2",
        link=Link(loss=0.05, duplicate=0.05),
        journal_factory=JournalFolder(journals, seed),
    )


def _verify(journals: Path) -> int:
    from dovetail.journal.verify import verify_journal

    return sum(verify_journal(path).is_intact for path in journals.glob("*.journal"))


def _seal(journals: Path, lake: Path) -> int:
    from dovetail.journal.seal import seal_journal

    manifests = [seal_journal(path, lake) for path in sorted(journals.glob("*.journal"))]
    return sum(manifest.end for manifest in manifests if manifest is not None)


def _tamper(journal: Path, out: Path) -> str | None:
    """Change one row as somebody with access to the file could; what verifying says of it."""
    from dovetail.journal.verify import verify_journal

    copy = out / "tampered.journal"
    shutil.copy(journal, copy)
    connection = sqlite3.connect(copy)
    with connection:
        connection.execute("UPDATE names SET name = name || '-forged' WHERE id = 2")
    connection.close()
    first = verify_journal(copy).first
    return None if first is None else str(first)
