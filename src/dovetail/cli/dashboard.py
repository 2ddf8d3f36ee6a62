"""`dovetail dashboard`: the live web page over journals, lake and audit."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dovetail.cli.client_options import each_of, in_context, read_context

app = typer.Typer()


@app.command()
@in_context
def dashboard(
    journals: Annotated[
        list[Path] | None,
        typer.Option("--journals", help="A journal or a folder of them; repeatable.", metavar="DIR|FILE"),
    ] = None,
    lake: Annotated[
        str | None,
        typer.Option("--lake", help="A lake, for servers whose journal is not here.", metavar="DIR|s3://..."),
    ] = None,
    tables: Annotated[
        str | None, typer.Option("--tables", help="The directory of the audit's tables.", metavar="DIR|s3://...")
    ] = None,
    metrics: Annotated[
        list[str] | None,
        typer.Option("--metrics", help="A server's Prometheus endpoint; repeatable.", metavar="NAME=URL"),
    ] = None,
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(metavar="PORT", help="The port to listen on; 0 takes a free one.", min=0, max=65_535)
    ] = 8600,
    token_file: Annotated[
        Path | None,
        typer.Option(
            "--token-file",
            metavar="FILE",
            help="File with the token that visitors must enter; needed off loopback.",
        ),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option("--allow-host", help="An additional host name of this server; repeatable.", metavar="NAME"),
    ] = None,
) -> None:
    """Serve a read-only web page: what the servers do now, every message, the latest audit."""
    from dovetail.cli.output import say
    from dovetail.dashboard.gauges import parse_endpoint
    from dovetail.dashboard.guard import Access, is_loopback, read_token
    from dovetail.dashboard.hub import Sources
    from dovetail.dashboard.server import serve
    from dovetail.dashboard.site_sources import Site, check_site
    from dovetail.model.errors import UsageError

    if not journals and lake is None and tables is None and not metrics:
        known = read_context()
        journals, lake, tables = each_of(None, known.journals), known.lake, known.tables
        if journals and lake is not None and "://" not in lake and not Path(lake).exists():
            lake = None  # nothing is sealed yet
    if not journals and lake is None and tables is None and not metrics:
        raise UsageError("nothing to show: pass --journals, --lake, --tables or --metrics, or save them in a context")
    if token_file is None and not is_loopback(host):
        raise UsageError(f"{host} can be reached from outside: give a --token-file, or listen on 127.0.0.1")
    site = Site(tuple(journals or ()), lake)
    check_site(site)
    sources = Sources(site, tables, tuple(parse_endpoint(text) for text in metrics or ()))
    token = None if token_file is None else read_token(token_file)
    serve(sources, Access.build(host, allow_host or (), token), host, port, say)
