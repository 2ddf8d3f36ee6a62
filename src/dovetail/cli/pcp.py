"""`dovetail pcp`: the broker and its clients."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from dovetail.errors import UsageError

app = typer.Typer(no_args_is_help=True)
_MAX_LINE_CHARS = 2 * 65 * 1024 * 1024


@app.callback()
def pcp() -> None:
    """The pcp broker and its clients."""


@app.command()
def decode(
    hex_frames: Annotated[list[str] | None, typer.Argument(metavar="HEX...", help="Whole frames; none: stdin.")] = None,
    layer: Annotated[str, typer.Option(help="v1, v2, or auto: told by the first byte.")] = "auto",
    now: Annotated[int | None, typer.Option(help="Milliseconds since 1970: says whether it is expired then.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per line.")] = False,
) -> None:
    """Explain captured frames: their fields, or the class and detail of the error."""
    from dovetail.pcp.explain import explain_frame

    if layer not in {"auto", "v1", "v2"}:
        raise UsageError(f"layer {layer!r}, expected auto, v1 or v2")
    lines = hex_frames or (line.strip() for line in iter(lambda: sys.stdin.readline(_MAX_LINE_CHARS), ""))
    for text in lines:
        if not text:
            continue
        try:
            frame = bytes.fromhex(text)
        except ValueError as error:
            fields = {"error": "malformed", "detail": f"not hexadecimal: {error}"}
        else:
            fields = explain_frame(frame, layer, None if now is None else now * 1000)
        if as_json:
            typer.echo(json.dumps(fields))
        else:
            for name, value in fields.items():
                typer.echo(
                    f"{name + ':':20} {value if isinstance(value, str) and value.isprintable() else json.dumps(value)}"
                )
            typer.echo("")
