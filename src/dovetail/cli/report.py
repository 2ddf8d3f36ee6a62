"""`dovetail report`: the audit's tables as one page that works offline."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="One page that shows what an audit found; works offline.")


@app.command()
def report(
    tables: Annotated[Path, typer.Argument(help="The audit's output directory.", metavar="TABLES")],
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="Write the page to this file.", metavar="FILE.html")
    ] = None,
    max_findings: Annotated[
        int, typer.Option(min=0, max=1_000_000, help="Maximum number of findings on the page, worst first.")
    ] = 100_000,
    lake: Annotated[
        str | None,
        typer.Option(
            "--lake", help="Build receipts from this lake; without it from the audited one.", metavar="DIR|s3://..."
        ),
    ] = None,
    journal: Annotated[
        list[Path] | None,
        typer.Option("--journal", help="Build receipts from this journal; repeatable.", metavar="FILE"),
    ] = None,
    with_receipts: Annotated[
        bool, typer.Option("--receipts/--no-receipts", help="Offer the receipts of messages for download.")
    ] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print the numbers as one JSON object.")] = False,
) -> None:
    """Write the report of an audit as one self-contained page, and print its summary."""
    from dovetail.audit.tables import Tables
    from dovetail.cli.output import escape, print_json, print_text, say
    from dovetail.report.survey import take_numbers
    from dovetail.report.terminal import write_summary

    source = Tables.open(tables)
    numbers = take_numbers(source)
    if out is not None:
        from dovetail.lake.location import is_url
        from dovetail.report.page import write_page
        from dovetail.report.receipts import Origins

        audited = numbers.lake if is_url(numbers.lake) or Path(numbers.lake or "/dev/null").is_dir() else None
        origins = Origins(journals=journal or (), lake=lake or audited)
        size = write_page(
            source, numbers, out, max_findings=max_findings, origins=origins if with_receipts and origins else None
        )
        say(f"wrote {out} ({size:,} bytes)")
    if as_json:
        print_json(numbers)
    else:
        print_text("".join(f"{escape(line)}\n" for line in write_summary(numbers)))
