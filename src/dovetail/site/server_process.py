"""One process of a site, in the foreground: a broker, a node, a peer, or the sealer.

It runs until SIGTERM or SIGINT, or, under a supervisor, until the supervisor is gone. When it is ready it calls
`on_ready` once with a description of itself. A permanent start-up error is a UsageError (exit code 2), which tells the
supervisor not to retry; a port or journal in use is ResourceBusy.

Each fabric is imported only by the process that runs it, so that a killed process restarts faster.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from dovetail.model.errors import ConfigError, JournalLocked, KeyFileError, ResourceBusy, UsageError
from dovetail.model.fabric import Agreement
from dovetail.site.config import parse_listen
from dovetail.site.config.sections import MIB
from dovetail.site.config.servers import PcpServerSection, ServerSection, SwarmServerSection, WonServerSection
from dovetail.site.preflight import check_journal
from dovetail.site.servers import SEAL, Site, SiteProcess

if TYPE_CHECKING:
    from dovetail.journal.journal import Journal
    from dovetail.pcp.settings import PcpSettings

SETTLE_US = 60_000_000
"""How long a broker may take to journal the outcome of a message that is over: a disk may be slow."""

Ready = Callable[[dict[str, object]], None]


def run_process(site: Site, process: SiteProcess, on_ready: Ready, read_site: Callable[[], Site]) -> None:
    """Run a server or the sealer until stopped; at SIGHUP a broker takes the rules of `read_site`."""

    def read_settings() -> PcpSettings:
        again = read_site()
        table = again.process(process.name).section
        assert isinstance(table, PcpServerSection)
        return again.broker_settings(table)

    if isinstance(process.section, ServerSection):
        check_journal(site, process.section)  # at every restart too
    match process.section:
        case PcpServerSection() as table:
            with _explained():
                from dovetail.runtime.pcp_serve import run_broker

                settings = site.broker_settings(table)
                options = site.journal_options(table)
                run_broker(
                    settings,
                    on_ready,
                    journal_options=options,
                    on_journal=lambda journal: _tend(
                        site, journal, delay_us=settings.clock_skew_ms * 1_000 + SETTLE_US
                    ),
                    read_settings=read_settings,
                )
        case WonServerSection() as table:
            with _explained():
                asyncio.run(_run_node(site, table, on_ready))
        case SwarmServerSection() as table:
            with _explained():
                asyncio.run(_run_peer(site, table, on_ready))
        case None:
            assert process.name == SEAL
            _run_sealer(site, on_ready)


def end_with_parent() -> None:
    """End this process like SIGTERM when standard input, a pipe from the supervisor, is closed."""

    def watch() -> None:
        while os.read(sys.stdin.fileno(), 4096):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="supervisor", daemon=True).start()


def _run_sealer(site: Site, on_ready: Ready) -> None:
    from dovetail.lake.location import open_store
    from dovetail.lake.sealer import Sealer

    lake = site.config.lake
    journals = site.journals()
    target_bytes = lake.target_file_mb * MIB
    sealer = Sealer(
        journals,
        open_store(lake.directory),
        interval_s=lake.seal_interval_s,
        target_bytes=target_bytes,
        grace_s=lake.grace_s,
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sealer.stop())
    on_ready({"lake": lake.directory, "journals": len(journals)})
    sealer.run()


async def _run_node(site: Site, table: WonServerSection, on_ready: Ready) -> None:
    from dovetail.keys import load_signing_key
    from dovetail.runtime.won_server import NodeServer, serve_node

    key = load_signing_key(site.signing_key_of(table), table.uri)
    server = NodeServer(site.node_options(table), key.private_key)
    _tend(site, server.journal)
    await serve_node(server, on_ready)


async def _run_peer(site: Site, table: SwarmServerSection, on_ready: Ready) -> None:
    from dovetail.runtime.swarm_node import SwarmNode
    from dovetail.runtime.swarm_serve import serve_peer

    directory = site.swarm_directory(table)
    node = SwarmNode(
        table,
        directory,
        listen=table.listen,
        bootstrap=table.bootstrap,
        settings=table.tuning,
        journal_options=site.journal_options(table),
        threads=table.threads,
        purge_interval_s=0,
    )
    _tend(site, node.journal, table.agreement)
    metrics = None if table.metrics is None else parse_listen(table.metrics)
    await serve_peer(node, metrics, lambda ready: on_ready(ready | {"directory": str(directory)}))


def _tend(site: Site, journal: Journal, agreement: Agreement | None = None, delay_us: int = 0) -> None:
    """Purge while the server runs; bytes that it needs after a restart, until `delay_us` after their expiry, stay."""
    from dovetail.journal.purger import start_purging
    from dovetail.lake.head import read_head
    from dovetail.lake.location import open_store
    from dovetail.runtime.clock import now_us

    interval_s = site.config.journal.purge_interval_s
    if interval_s:
        lake, verifier = open_store(site.config.lake.directory), journal.identity.verifier
        start_purging(
            journal,
            lambda: read_head(lake, verifier).end,
            interval_s=interval_s,
            now_us=now_us,
            agreement=agreement,
            delay_us=delay_us,
        )


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    """Classify start-up errors: those that a person must fix, and those that may pass."""
    try:
        yield
    except (ConfigError, KeyFileError) as error:
        raise UsageError(str(error)) from error
    except JournalLocked as error:
        raise ResourceBusy(f"{error}; stop it, or choose another journal") from error
