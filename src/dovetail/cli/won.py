"""`dovetail won`: nodes, owners, and existing conversation logs."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

app = typer.Typer(no_args_is_help=True)

_FILES = Annotated[list[Path] | None, typer.Argument(help="Datasets (TriG or N-Quads); standard input if none or '-'.")]
_JSON = Annotated[bool, typer.Option("--json", help="One JSON object per line.")]


def _read_inputs(files: list[Path] | None) -> Iterator[tuple[str, bytes]]:
    from dovetail.errors import DovetailError

    for path in files or [Path("-")]:
        if str(path) == "-":
            yield "-", sys.stdin.buffer.read()
            continue
        try:
            yield str(path), path.read_bytes()
        except OSError as error:
            raise DovetailError(f"cannot read {path}: {error.strerror}") from None


def _print_lines(records: Iterable[dict[str, object]]) -> None:
    for record in records:
        sys.stdout.write(json.dumps(record, ensure_ascii=False) + "\n")


@app.callback()
def won() -> None:
    """Nodes and owners: signed, content-addressed messages with delivery chains."""


@app.command()
def decode(
    files: _FILES = None,
    as_json: _JSON = False,
    max_bytes: Annotated[int, typer.Option(help="Refuse datasets larger than this.", min=1)] = 1 << 20,
) -> None:
    """Explain datasets as they were captured: one record per message, or the reason why it would be refused."""
    from dovetail.errors import RemoteProtocolError
    from dovetail.won.message import decode_bundle, describe

    for _, data in _read_inputs(files):
        try:
            records = [describe(message) for message in decode_bundle(data, max_bytes=max_bytes).messages]
        except RemoteProtocolError as error:
            records = [{"error": error.reason.value, "detail": error.detail}]
        if as_json:
            _print_lines(records)
            continue
        for record in records:
            for name, value in record.items():
                shown = " ".join(map(str, value)) if isinstance(value, list) else str(value)
                sys.stdout.write(f"{name + ':':26}{_escape(shown)}\n")
            sys.stdout.write("\n")


def _escape(text: str) -> str:
    """Peers' text without control characters, so that it cannot drive the terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


@app.command()
def chains(
    files: _FILES = None,
    as_json: _JSON = False,
    summary: Annotated[
        bool, typer.Option("--summary", help="With --json: a last object with counts and findings.")
    ] = False,
) -> None:
    """Rebuild the delivery chains in dataset dumps of any origin, and say what is wrong with them."""
    from collections import Counter

    from dovetail.won.dump import read_dumps

    dump = read_dumps(_read_inputs(files))
    states = Counter(str(m.state.value) for m in dump.messages.values() if m.state is not None)
    verdicts = Counter(m.address for m in dump.messages.values())
    counts = {"messages": len(dump.messages), "states": dict(states), "addresses": dict(verdicts)}
    findings = dump.findings
    if as_json:
        _print_lines(
            {
                "uri": m.uri,
                "type": m.type,
                "from": m.sender,
                "to": m.recipient,
                "timestamp": m.timestamp,
                "connection": m.connection,
                "respondingTo": list(m.responding_to),
                "responses": [{"uri": uri, "role": role.value} for uri, role in m.responses],
                "state": m.state.value if m.state else None,
                "previousMessage": list(m.previous),
                "address": m.address,
                "findings": m.findings,
            }
            for m in dump.messages.values()
        )
        if summary:
            _print_lines([{"summary": counts, "findings": findings}])
    else:
        for m in dump.messages.values():
            state = m.state.value if m.state else "response"
            sys.stdout.write(_escape(f"{m.uri}  {m.type}  {state}  {m.address}") + "\n")
            sys.stdout.write(_escape(f"    from {m.sender}  to {m.recipient}") + "\n")
            for uri, role in m.responses:
                sys.stdout.write(_escape(f"    {role.value:8}{uri}") + "\n")
            for uri in m.previous:
                sys.stdout.write(_escape(f"    previous {uri}") + "\n")
            for text in m.findings:
                sys.stdout.write(_escape(f"    ! {text}") + "\n")
    talk = f"{len(dump.messages)} messages"
    talk += "".join(f", {count} {name}" for name, count in sorted((states + verdicts).items()))
    sys.stderr.write(f"{talk}; {len(findings)} findings\n")
    for text in dump.damages if as_json and not summary else findings if not as_json else ():
        sys.stderr.write(_escape(text) + "\n")
    if dump.damages:
        raise typer.Exit(1)
