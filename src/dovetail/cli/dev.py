"""`dovetail dev`: a broker with an echo agent on this machine, with keys, a journal and a context."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Callable

    from dovetail.api.local import Site

app = typer.Typer()

ECHO = "pcp://echo/agent"
YOU = "pcp://you/agent"
CONTEXT = "dev"


@app.command()
def dev(
    directory: Annotated[Path, typer.Option("--dir", metavar="DIR", help="Where keys and journal are kept.")] = Path(
        "dovetail-dev"
    ),
    port: Annotated[
        int, typer.Option(metavar="PORT", help="Port of the broker; 0 takes a free one.", min=0, max=65_535)
    ] = 8142,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object when it is ready.")] = False,
) -> None:
    """Run a broker on loopback with an agent that answers everything, until SIGTERM or Ctrl-C.

    It has no TLS, and anyone on this machine may do everything: for trials, not for production. It saves the context
    `dev`, and makes it current unless another one is.
    """
    import asyncio

    from dovetail.api.contexts import Context, current_context, make_contexts_directory, save_context, use_context
    from dovetail.api.local import local
    from dovetail.cli.output import print_json, print_text

    make_contexts_directory()
    with local(directory=directory, port=port) as site:
        context = Context(
            url=site.url,
            identity=YOU,
            journals=tuple(map(str, site.journals)),
            trust=tuple(map(str, site.trust)),
            lake=str(directory / "lake"),
            tables=str(directory / "tables"),
        )
        save_context(CONTEXT, context)
        if current_context() is None:
            use_context(CONTEXT)
        hint = "" if current_context() == CONTEXT else " --context dev"

        def tell() -> None:
            if as_json:
                print_json({"url": site.url, "directory": str(directory), "echo": ECHO, "context": CONTEXT})
                return
            print_text(
                f"a broker with the agent {ECHO} runs at {site.url}; keys and journal are in {directory}\n"
                f"now, in another terminal:\n"
                f"    dovetail pcp send {ECHO} '\"hello\"' --reply{hint}\n"
                f"    dovetail receipt show ADDRESS{hint}\n"
                f"Ctrl-C ends it\n"
            )

        asyncio.run(_echo(site, tell))


async def _echo(site: Site, tell: Callable[[], None]) -> None:
    """Echo every message until SIGTERM or SIGINT."""
    import asyncio
    import signal
    import sys

    async def answer() -> None:
        async with site.pcp(ECHO) as agent:
            tell()
            sys.stdout.flush()
            async for message in agent:
                await message.reply({"echo": message.data})

    task = asyncio.create_task(answer())
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    await asyncio.wait([task])
    if not task.cancelled():
        task.result()
