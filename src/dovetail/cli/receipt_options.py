"""Options shared by the commands of `dovetail receipt`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dovetail.cli.client_options import parse_duration

Trust = Annotated[
    list[Path],
    typer.Option(
        "--trust", metavar="KEYS", help="A file with one trusted key per line, or a directory of .vkey files."
    ),
]
TrustOrKnown = Annotated[
    list[Path] | None,
    typer.Option(
        "--trust",
        help="A file with one trusted key per line, or a directory of .vkey files; from the context by default.",
        metavar="KEYS",
        show_default=False,
    ),
]
Journals = Annotated[
    list[Path] | None,
    typer.Option(
        "--journal",
        help="A journal, or a directory of them; from the context by default; repeatable.",
        metavar="PATH",
        show_default=False,
    ),
]
Lake = Annotated[str | None, typer.Option("--lake", help="A lake of sealed journals.", metavar="DIR|s3://...")]
Date = Annotated[str | None, typer.Option("--date", help="Search the lake only on this UTC day.", metavar="YYYY-MM-DD")]
Cosigned = Annotated[
    list[Path] | None,
    typer.Option("--checkpoint", help="Prove against this cosigned checkpoint; repeatable.", metavar="FILE"),
]
Witnesses = Annotated[
    list[Path] | None, typer.Option("--witness", help="Keys of the witnesses that cosigned.", metavar="KEYS")
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object per file.")]
Out = Annotated[Path | None, typer.Option("-o", "--out", help="Output file; stdout by default.", metavar="FILE")]
BuiltFile = Annotated[
    Path | None,
    typer.Option(
        "-o",
        "--out",
        help="Output file; by default PREFIX.receipt, or stdout if that is not a terminal.",
        metavar="FILE",
    ),
]
Search = Annotated[
    int, typer.Option("--search", help="How many hops after the message to search for related ones (won).", min=0)
]
Since = Annotated[
    list[Path] | None,
    typer.Option("--since", help="An older receipt or checkpoint to prove growth from.", metavar="FILE"),
]
SignatureWait = Annotated[
    float,
    typer.Option(
        "--wait", metavar="TIME", parser=parse_duration, help="Time for the servers to sign what they saw, such as 30s."
    ),
]
DEFAULT_SEARCH = 100_000
