"""`dovetail otel`: journals as OpenTelemetry spans."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Export hops of journals as OpenTelemetry spans.")


@app.command()
def otel(
    paths: Annotated[
        list[Path], typer.Argument(help="Journals, or directories of them.", metavar="PATH", show_default=False)
    ],
    endpoint: Annotated[
        str,
        typer.Option(
            help="URL of an OTLP/HTTP receiver; /v1/traces is added if it has no path.",
            envvar="OTEL_EXPORTER_OTLP_ENDPOINT",
            metavar="URL",
        ),
    ] = "http://127.0.0.1:4318",
    headers: Annotated[
        str,
        typer.Option(
            help="Headers to send, such as a token; better in the variable than on the command line.",
            envvar="OTEL_EXPORTER_OTLP_HEADERS",
            metavar="NAME=VALUE,...",
        ),
    ] = "",
    state: Annotated[
        Path | None,
        typer.Option(
            help="File that records how far the export got, so that a restart continues there.",
            metavar="FILE",
            show_default=False,
        ),
    ] = None,
    from_start: Annotated[
        bool, typer.Option("--from-start", help="Start with the first hop of each journal, not with new ones.")
    ] = False,
    once: Annotated[bool, typer.Option("--once", help="Export existing hops and exit, instead of following.")] = False,
    settle: Annotated[
        float, typer.Option(help="Seconds that a span waits for further hops.", min=0.0, max=3600.0, metavar="S")
    ] = 5.0,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Follow journals and export one span for each message that a server handled, until SIGTERM or SIGINT.

    Spans are for looking at deliveries; a journal and its receipts are the proof. If the target is slow or down,
    the export waits: nothing is lost, and servers are not affected.
    """
    import signal

    from dovetail.cli.output import print_record
    from dovetail.journal.folder import find_journals
    from dovetail.model.errors import UsageError
    from dovetail.otel.exporter import Exporter, Positions
    from dovetail.otel.target import Target, parse_endpoint, parse_headers

    journals = [journal for path in paths for journal in find_journals(path)]
    if not journals:
        raise UsageError(f"there is no journal in {', '.join(map(str, paths))}")
    target = Target(parse_endpoint(endpoint), parse_headers(headers))
    exporter = Exporter(journals, target, Positions(state), settle_s=settle, from_start=from_start or once)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: exporter.stopped.set())
    exporter.run(once=once)
    print_record({"exported": exporter.exported, "refused": exporter.refused}, as_json=as_json)
