"""`dovetail sim`: simulated worlds from a seed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dovetail.cli.exit_codes import EXIT_NO
from dovetail.model.times import SECOND_US

if TYPE_CHECKING:
    from dovetail.sim.disk import JournalFolder
    from dovetail.sim.faults import AnyFault
    from dovetail.sim.scenario import Report

app = typer.Typer(help="Simulated worlds: same seed, same journals, byte for byte.", no_args_is_help=True)

_MAX_FINDINGS_PRINTED = 20


@app.callback()
def sim() -> None:
    """Simulated worlds: same seed, same journals, byte for byte."""


@app.command()
def run(
    scenario: Annotated[
        str, typer.Option(metavar="NAME", help="Scenario: pcp, won, swarm, or your own as module:function.")
    ] = "pcp",
    seed: Annotated[int, typer.Option(help="Random seed.", min=0)] = 1,
    seeds: Annotated[int, typer.Option(help="Number of seeds to run, starting at --seed.", min=1)] = 1,
    faults: Annotated[
        str,
        typer.Option(
            metavar="KINDS|FILE",
            help="`none`, or kinds with counts: `crash=2,partition`, `all`, `all=3`; or a JSON file to replay. "
            "Kinds: crash, append_crash, partition, pause, clock, disk, slow, failure, weather; and, not among `all`, "
            "outage (hours) and damage (of journals in files: needs --out).",
        ),
    ] = "none",
    places: Annotated[int, typer.Option(help="Number of simulated processes.", min=1)] = 3,
    duration: Annotated[
        float, typer.Option(metavar="SECONDS", help="Seconds of virtual time with traffic.", min=0.001, max=1e9)
    ] = 10.0,
    loss: Annotated[float, typer.Option(help="Fraction of datagrams lost.", min=0, max=1)] = 0.0,
    out: Annotated[Path | None, typer.Option(help="Keep journals, report and faults here.", metavar="DIR")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per seed.")] = False,
) -> None:
    """Run a simulated world, check its journals and print their digest; exit 3 on any finding."""
    import msgspec

    from dovetail.model.errors import UsageError
    from dovetail.sim.network import Link
    from dovetail.sim.scenario import Setting, run_scenario

    if out is not None and seeds > 1:
        raise UsageError(f"--out holds one world, expected --seeds 1, got {seeds}")
    journal_factory = None if out is None else _open_folder(out, seed)
    setting = Setting(places=places, duration_us=int(duration * SECOND_US))
    has_findings = False
    for one in range(seed, seed + seeds):
        report = run_scenario(
            scenario,
            one,
            setting=setting,
            faults=_read_faults(faults),
            link=Link(loss=loss),
            journal_factory=journal_factory,
        )
        has_findings |= bool(report.findings)
        if out is not None:
            _write_report(report, out)
        typer.echo(msgspec.json.encode(report).decode() if as_json else _summarize(report))
    if has_findings:
        raise typer.Exit(EXIT_NO)


def _read_faults(text: str) -> list[AnyFault] | str:
    """A schedule from a JSON file, or the text itself."""
    from dovetail.model.errors import UsageError
    from dovetail.sim.faults import MAX_SCHEDULE_BYTES, decode_faults

    if not text.endswith(".json"):
        return text
    try:
        with Path(text).open("rb") as file:
            return decode_faults(file.read(MAX_SCHEDULE_BYTES + 1))
    except OSError as error:
        raise UsageError(f"faults {text}: {error.strerror}") from None


def _open_folder(out: Path, seed: int) -> JournalFolder:
    """The directory for the journals; never one with the journals of another world."""
    from dovetail.journal.folder import SUFFIX
    from dovetail.keys.files import make_private_directory
    from dovetail.model.errors import UsageError
    from dovetail.sim.disk import JournalFolder

    if any(out.glob(f"*{SUFFIX}")):
        raise UsageError(f"{out} holds the journals of an earlier world, expected a new or empty directory")
    make_private_directory(out)
    return JournalFolder(out, seed)


def _write_report(report: Report, out: Path) -> None:
    import msgspec

    from dovetail.sim.faults import encode_faults

    (out / "report.json").write_bytes(msgspec.json.format(msgspec.json.encode(report)) + b"\n")
    (out / "faults.json").write_bytes(encode_faults(report.faults))


def _summarize(report: Report) -> str:
    """The report as text."""
    network, streams = report.network, report.links
    rows = {
        "world": f"{report.scenario}, seed {report.seed}, {report.places} places, {len(report.faults)} faults",
        "time": f"{report.virtual_us / SECOND_US:.3f} s virtual, {report.events} events, "
        + ("settled" if report.is_settled else "NOT settled"),
        "network": f"{network.sent} datagrams sent, {network.lost} lost, {network.cut} cut, "
        f"{network.duplicated} duplicated, {network.reordered} reordered",
        "streams": f"{streams.opened} opened, {streams.refused} refused, {streams.broken} broken, "
        f"{streams.frames_sent} frames sent, {streams.frames_lost} lost",
        "places": f"{report.crashes} crashes, {report.missed} inputs missed",
        "journals": f"{report.hops} hops in {report.appends} appends",
        "traffic": ", ".join(f"{number} {name}" for name, number in report.facts.items()),
        "findings": str(len(report.findings)),
        "digest": report.digest,
    }
    lines = [f"{name:<9} {text}" for name, text in rows.items()]
    for finding in report.findings[:_MAX_FINDINGS_PRINTED]:
        where = f"{finding.server} hop {finding.seq}" if finding.seq is not None else finding.server or "the world"
        lines.append(f"{'':9} {finding.rule}: {where}: {finding.detail}")
    return "\n".join(lines)
