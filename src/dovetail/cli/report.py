"""`dovetail report`: the audit's tables as one page that works offline."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dovetail.cli.client_options import TablesOption, deprecated, given_or_known, in_context
from dovetail.cli.receipt_input import choose_sources

if TYPE_CHECKING:
    from dovetail.receipt.witness_memory import Witnessed
    from dovetail.report.numbers import Numbers
    from dovetail.report.receipts import Origins

app = typer.Typer(help="One page that shows what an audit found; works offline.")


@app.command()
@in_context
def report(
    old_tables: Annotated[
        str | None, typer.Argument(hidden=True, metavar="TABLES", callback=deprecated("TABLES", "--tables"))
    ] = None,
    tables: TablesOption = None,
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
    journals: Annotated[
        list[Path] | None,
        typer.Option(
            "--journal",
            help="Journals, or directories of them, to name servers by and build receipts from; from the context by "
            "default.",
            metavar="PATH",
        ),
    ] = None,
    cosigned: Annotated[
        Path | None,
        typer.Option(
            "--cosigned",
            help="Cosigned checkpoints, one `.note` file each: show when witnesses last looked.",
            metavar="DIR",
            exists=True,
            file_okay=False,
        ),
    ] = None,
    trust: Annotated[
        list[Path] | None,
        typer.Option("--trust", help="Keys of the servers and witnesses of --cosigned; repeatable.", metavar="KEYS"),
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

    root = given_or_known(tables or old_tables, "tables", "no audit tables: name them with --tables")
    source = Tables.open(root)
    numbers = take_numbers(source, _read_cosigned(cosigned, trust or []))
    if out is not None:
        from dovetail.report.page import write_page

        origins = _choose_origins(numbers, journals, lake)
        size = write_page(source, numbers, out, max_findings=max_findings, origins=origins, with_receipts=with_receipts)
        say(f"wrote {out} ({size:,} bytes)")
    if as_json:
        print_json(numbers)
    else:
        print_text("".join(f"{escape(line)}\n" for line in write_summary(numbers)))


def _choose_origins(numbers: Numbers, journals: list[Path] | None, lake: str | None) -> Origins:
    """Where receipts are built from: what is given, or known to the context; else the lake that was audited."""
    from dovetail.lake.location import is_url
    from dovetail.report.receipts import Origins

    audited = numbers.lake if is_url(numbers.lake) or Path(numbers.lake or "/dev/null").is_dir() else None
    found, given = choose_sources(journals, lake)
    return Origins(journals=found, lake=given or audited)


def _read_cosigned(folder: Path | None, trust: list[Path]) -> dict[str, Witnessed]:
    from dovetail.keys import load_verifier_keys
    from dovetail.model.errors import UsageError
    from dovetail.receipt.witness_memory import newest_cosignatures
    from dovetail.runtime.clock import now_us

    if folder is None:
        return {}
    if not trust:
        raise UsageError("--cosigned needs --trust: the keys of the servers and their witnesses")
    return newest_cosignatures(folder, load_verifier_keys(*trust), now_us())
