"""`dovetail doctor`: check this machine, and what a configuration names."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dovetail.cli.exit_codes import EXIT_NO
from dovetail.cli.table_options import AsJson

if TYPE_CHECKING:
    from dovetail.site.doctor import Finding

app = typer.Typer(help="Check this machine and suggest fixes.")

_COLOURS = {"ok": "32", "warn": "33", "fail": "31"}


@app.command()
def doctor(
    site_file: Annotated[
        Path | None, typer.Argument(help="The configuration file of a site.", metavar="SITE.toml")
    ] = None,
    running: Annotated[
        bool, typer.Option("--running", help="Only query the health of every server of the running site.")
    ] = False,
    config: Annotated[
        Path | None, typer.Option(help="Also check everything this configuration file refers to.", metavar="FILE")
    ] = None,
    spark: Annotated[bool, typer.Option("--spark", help="Start Spark and run a small job.")] = False,
    listen: Annotated[
        list[str] | None,
        typer.Option(help="Check that this address is free; repeatable.", metavar="[tcp:|udp:]HOST:PORT"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check Python, Java, Spark, SQLite, limits, clock, directories, disks, certificates and ports; suggest fixes.

    Exits with 3 if anything failed.
    """
    from dovetail.cli.output import print_json
    from dovetail.site.config import load_config
    from dovetail.site.doctor import Status, check_machine, check_ports, check_site, start_spark
    from dovetail.site.preflight import check_needed_files
    from dovetail.site.running import check_running
    from dovetail.site.servers import Site

    addresses = [_parse_listen(text) for text in listen or ()]
    loaded = load_config(site_file or config)

    def findings() -> Iterator[Finding]:
        if running:
            yield from check_running(Site.choose(loaded.config, ()))
            return
        yield from check_machine()
        if spark:
            yield start_spark()
        yield from check_site(loaded.config)
        yield from check_needed_files(Site(loaded.config))
        yield from check_ports(addresses)

    failed = False
    for finding in findings():
        failed |= finding.status is Status.FAIL
        if as_json:
            print_json(finding)
        else:
            _print(finding)
    if failed:
        raise typer.Exit(EXIT_NO)


def _parse_listen(text: str) -> tuple[str, str]:
    from dovetail.model.errors import UsageError
    from dovetail.site.config import parse_listen

    kind, _, rest = text.partition(":")
    if kind not in ("tcp", "udp"):
        kind, rest = "tcp", text
    try:
        parse_listen(rest)
    except ValueError as error:
        raise UsageError(f"--listen: {error}") from None
    return kind, rest


def _print(finding: Finding) -> None:
    from dovetail.cli.output import escape, print_text

    status = f"{finding.status:4}"
    if sys.stdout.isatty():
        status = f"\x1b[{_COLOURS[finding.status]}m{status}\x1b[0m"
    print_text(f"{status}  {escape(finding.check)}: {escape(finding.detail)}\n")
    if finding.advice is not None:
        print_text(f"      -> {escape(finding.advice)}\n")
