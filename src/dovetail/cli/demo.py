"""`dovetail demo`: all fabrics on loopback with injected faults, sealed, audited on Spark, and compared."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dovetail.cli.exit_codes import EXIT_NO

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dovetail.demo.comparison import Comparison

app = typer.Typer()


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Where journals, lake and tables go.", metavar="DIR")] = Path("demo-out"),
    seed: Annotated[int, typer.Option(help="Random seed for traffic and faults.", min=0)] = 1,
    scale: Annotated[
        float, typer.Option(help="Traffic volume; values below 1 make the demo shorter.", min=0.1, max=50)
    ] = 1,
    keep: Annotated[
        bool, typer.Option("--keep", help="Also keep private keys, owners' home directories and logs.")
    ] = False,
    serve: Annotated[
        bool, typer.Option("--serve/--no-serve", help="Show the report on loopback until Ctrl-C.")
    ] = False,
) -> None:
    """Run every fabric on loopback with injected faults, audit the journals, and compare."""
    from dovetail.cli.demo_screen import open_screen
    from dovetail.cli.output import say
    from dovetail.demo.run import run_demo

    with _quiet(), open_screen() as screen:
        outcome = run_demo(out, seed, scale, screen, keep=keep)
    _print_comparison(outcome.comparison)
    for step in outcome.next_steps:
        say("")
        say(f"  # {step.shows}")
        say(f"  {step.text}")
    say("")
    say(f"open in a browser, it needs no network: {outcome.report}")
    if serve:
        _serve(outcome.report)
    if not outcome.comparison.is_fine:
        raise typer.Exit(EXIT_NO)


def _print_comparison(comparison: Comparison) -> None:
    from dovetail.cli.output import print_rows, print_text

    rows = [
        {"fault": line.fault, "fabric": line.fabric, "found in": line.found or "NOT FOUND", "row": line.row}
        for line in comparison.lines
    ]
    print_rows(rows, ["fault", "fabric", "found in", "row"])
    if comparison.false_alarms:
        print_rows([{"false alarms": alarm} for alarm in comparison.false_alarms], ["false alarms"])
    sent, arrived = comparison.sent, comparison.arrived
    print_text(f"\nsent without faults: {sent} messages; arrived according to the audit: {arrived}\n")
    print_text(f"{comparison.verdict}\n")


def _serve(report: Path) -> None:
    from dovetail.cli.output import say
    from dovetail.demo.report import serve_report

    with serve_report(report) as server:
        say(f"http://127.0.0.1:{server.server_port}/ until Ctrl-C")
        with contextlib.suppress(KeyboardInterrupt):
            server.serve_forever()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence per-connection logging, and let SIGTERM clean up as Ctrl-C does."""
    import logging
    import signal

    # Spark's gateway logs a traceback, under either name, for every call that Ctrl-C interrupts.
    quieter = {"dovetail": logging.WARNING, "py4j": logging.CRITICAL, "root": logging.CRITICAL}
    levels = {name: logging.getLogger(name).level for name in quieter}
    for name, level in quieter.items():
        logging.getLogger(name).setLevel(max(level, levels[name]))
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
