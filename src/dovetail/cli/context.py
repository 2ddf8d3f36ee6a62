"""`dovetail context`: named sets of server, keys and files for commands to use."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from dovetail.cli.client_options import complete_context
from dovetail.cli.exit_codes import EXIT_NO
from dovetail.cli.option_groups import takes_groups
from dovetail.cli.table_options import AsJson, Form

app = typer.Typer(help="Save servers, keys and files under a name for commands to use.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="The context's name.", metavar="NAME", autocompletion=complete_context)]
OptionalName = Annotated[
    str | None,
    typer.Argument(
        help="The context's name; the current one by default.",
        metavar="NAME",
        show_default=False,
        autocompletion=complete_context,
    ),
]


@dataclass(frozen=True, kw_only=True)
class GivenFields:
    """The fields of a context that are given on the command line."""

    url: Annotated[str | None, typer.Option(metavar="URL", help="The broker's URL.", show_default=False)] = None
    identity: Annotated[
        str | None, typer.Option("--as", metavar="URI", help="Own URI at the broker.", show_default=False)
    ] = None
    certificate: Annotated[
        str | None, typer.Option(metavar="FILE", help="PEM file of the certificate.", show_default=False)
    ] = None
    tls_key: Annotated[
        str | None, typer.Option(metavar="FILE", help="PEM file of its private key.", show_default=False)
    ] = None
    authority: Annotated[str | None, typer.Option(metavar="FILE", help="PEM file of the CA.", show_default=False)] = (
        None
    )
    home: Annotated[str | None, typer.Option(metavar="DIR", help="Directory of a won owner.", show_default=False)] = (
        None
    )
    directory: Annotated[
        str | None, typer.Option("--dir", metavar="DIR", help="Directory of a running swarm peer.", show_default=False)
    ] = None
    journals: Annotated[
        list[str] | None,
        typer.Option(metavar="PATH", help="A journal, or a directory of them; repeatable.", show_default=False),
    ] = None
    lake: Annotated[str | None, typer.Option(metavar="DIR|s3://...", help="A lake.", show_default=False)] = None
    tables: Annotated[
        str | None, typer.Option(metavar="DIR|s3://...", help="Directory of audit tables.", show_default=False)
    ] = None
    trust: Annotated[
        list[str] | None, typer.Option(metavar="KEYS", help="Trusted keys; repeatable.", show_default=False)
    ] = None


@app.command()
@takes_groups
def save(name: Name, given: GivenFields) -> None:
    """Save a context, or change the given fields of an existing one."""
    import msgspec

    from dovetail.api.contexts import Context, list_contexts, load_context, save_context
    from dovetail.cli.output import say

    if given.url is not None or given.identity is not None:
        from dovetail.api.pcp import check_uris, check_url

        if given.url is not None:
            check_url(given.url)
        check_uris([given.identity] if given.identity is not None else [])
    known = load_context(name) if name in list_contexts() else Context()
    changed = {
        field: tuple(value) if isinstance(value, list) else value
        for field, value in asdict(given).items()
        if value is not None and value != []
    }
    say(f"wrote {save_context(name, msgspec.structs.replace(known, **changed))}")


@app.command()
def use(name: Name) -> None:
    """Make a context the one that commands use."""
    from dovetail.api.contexts import use_context

    use_context(name)


@app.command("list")
@takes_groups
def list_all(form: Form) -> None:
    """List the contexts; a star marks the current one."""
    from dovetail.api.contexts import current_context, list_contexts, load_context
    from dovetail.cli.output import print_rows

    current = current_context()
    rows = []
    for name in list_contexts():
        known = load_context(name)
        rows.append(
            {
                "current": "*" if name == current else "",
                "name": name,
                "server": known.url or known.home or known.directory,
                "identity": known.identity,
            }
        )
    print_rows(rows, ["current", "name", "server", "identity"], form)


@app.command()
def show(name: OptionalName = None, as_json: AsJson = False) -> None:
    """Print a context, the current one by default."""
    import msgspec

    from dovetail.api.contexts import current_context, load_context
    from dovetail.cli.output import print_record
    from dovetail.model.errors import UsageError

    if name is None and current_context() is None:
        raise UsageError("no context is current: name one, or choose with `dovetail context use NAME`")
    print_record({"name": name or current_context()} | msgspec.to_builtins(load_context(name)), as_json=as_json)


@app.command()
def check(name: OptionalName = None, as_json: AsJson = False) -> None:
    """Check that a context's files are there and its servers answer; exits with 3 if not."""
    from dovetail.api.contexts import current_context, load_context, missing_files
    from dovetail.cli.output import print_json, print_text, say
    from dovetail.model.errors import DovetailError, UsageError

    if name is None and current_context() is None:
        raise UsageError("no context is current: name one, or choose with `dovetail context use NAME`")
    known = load_context(name)
    answering: list[str] = []
    problems = [f"{each} does not exist" for each in missing_files(known)]
    if not problems:
        for server in (known.url, known.home, known.directory):
            if server is not None:
                try:
                    _reach(server, known.identity, name)
                    answering.append(server)
                except DovetailError as error:
                    problems.append(str(error))
    if as_json:
        print_json(
            {
                "name": name or current_context(),
                "ok": not problems,
                "answering": answering,
                "problems": problems,
            }
        )
    else:
        print_text("".join(f"{server} answers\n" for server in answering))
        for problem in problems:
            say(problem)
    if problems:
        raise typer.Exit(EXIT_NO)


def _reach(server: str, identity: str | None, context: str | None) -> None:
    import asyncio

    from dovetail.api.connect import connect

    async def try_it() -> None:
        url = server if "://" in server else f"unix:{server}" if not (Path(server) / "atom.json").exists() else server
        async with connect(url, identity if "://" in server else None, context=context):
            pass

    asyncio.run(try_it())
