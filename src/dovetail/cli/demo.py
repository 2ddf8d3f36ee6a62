"""`dovetail demo`: all fabrics on loopback with injected faults, sealed, audited on Spark, and compared."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer()


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Where journals, lake and tables go.", metavar="DIR")] = Path("demo-out"),
    seed: Annotated[int, typer.Option(help="Who talks to whom, and what is lost.", min=0)] = 1,
    scale: Annotated[float, typer.Option(help="How much traffic; less than 1 is a shorter demo.", min=0.1, max=50)] = 1,
    keep: Annotated[bool, typer.Option("--keep", help="Keep private keys, owners' homes and logs too.")] = False,
) -> None:
    """Run every fabric on loopback with injected faults, audit the journals, and compare."""
    from dovetail.cli.output import print_rows, print_text
    from dovetail.demo.run import run_demo
    from dovetail.demo.screen import open_screen

    with open_screen() as screen:
        comparison = run_demo(out, seed, scale, screen, keep=keep)
    rows = [
        {"fault": line.fault, "fabric": line.fabric, "found in": line.found or "NOT FOUND", "row": line.row}
        for line in comparison.lines
    ]
    print_rows(rows, ["fault", "fabric", "found in", "row"])
    for alarm in comparison.false_alarms:
        print_rows([{"false alarm": alarm}], ["false alarm"])
    print_text(f"{comparison.verdict}\n")
    if not comparison.is_fine:
        raise typer.Exit(1)
