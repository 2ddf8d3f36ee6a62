"""One process of a site, in the foreground: a broker, a node, a peer, or the sealing.

It runs until SIGTERM or SIGINT, or, below a supervisor, until the supervisor is gone. When it is ready it calls
`on_ready` once with what it has to say about itself. What keeps it from starting and will not go away by itself is a
UsageError (exit code 2), so that a supervisor knows not to try again; a taken port or journal is ResourceBusy.

Each fabric is loaded only where it is run, so that a process that was killed is back the sooner.
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
from dovetail.site.config.servers import PcpServerSection, ServerSection, SwarmServerSection, WonServerSection
from dovetail.site.preflight import check_journal
from dovetail.site.servers import SEAL, Member, Site

if TYPE_CHECKING:
    from dovetail.journal.journal import Journal
    from dovetail.pcp.settings import PcpSettings

MIB = 1024 * 1024

Ready = Callable[[dict[str, object]], None]


def run_member(site: Site, member: Member, on_ready: Ready, read_site: Callable[[], Site]) -> None:
    """Run a server or the sealing until it is told to stop; at SIGHUP a broker takes the rules of `read_site`."""

    def read_settings() -> PcpSettings:
        again = read_site()
        table = again.member(member.name).section
        assert isinstance(table, PcpServerSection)
        return again.broker_settings(table)

    if isinstance(member.section, ServerSection):
        check_journal(site, member.section)  # also when it is started again
    match member.section:
        case PcpServerSection() as table:
            with _explained():
                from dovetail.runtime.pcp_serve import run_broker

                settings = site.broker_settings(table)
                options = site.journal_options(table)
                run_broker(
                    settings,
                    on_ready,
                    journal_options=options,
                    on_journal=lambda journal: _tend(site, journal),
                    read_settings=read_settings,
                )
        case WonServerSection() as table:
            with _explained():
                asyncio.run(_run_node(site, table, on_ready))
        case SwarmServerSection() as table:
            with _explained():
                asyncio.run(_run_peer(site, table, on_ready))
        case None:
            assert member.name == SEAL
            _run_sealer(site, on_ready)


def end_with_parent() -> None:
    """End this process as SIGTERM does when standard input, a pipe from the supervisor, is closed."""

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
    from dovetail.runtime.loop import stopped_or_failed
    from dovetail.runtime.won_server import NodeServer

    key = load_signing_key(site.signing_key_of(table), table.uri)
    stopped = _stop_event()
    server = NodeServer(site.node_options(table), key.private_key)
    _tend(site, server.journal)
    try:
        port = await server.start()
        ready: dict[str, object] = {"server": table.uri, "port": port}
        if server.metrics_port is not None:
            ready["metrics_port"] = server.metrics_port
        on_ready(ready)
        await stopped_or_failed(stopped, server.failed)
    finally:
        await server.stop()


async def _run_peer(site: Site, table: SwarmServerSection, on_ready: Ready) -> None:
    from dovetail.runtime.metrics import MetricsServer
    from dovetail.runtime.swarm_control import CONTROL_FILE, ControlServer
    from dovetail.runtime.swarm_metrics import peer_registry
    from dovetail.runtime.swarm_node import SwarmNode

    directory = site.swarm_directory(table)
    stopped = _stop_event()
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
    control = ControlServer(node, directory / CONTROL_FILE)
    metrics = MetricsServer(peer_registry(node), lambda: node.health)
    async with node:
        try:
            await control.start()
            ready: dict[str, object] = {"server": node.peer.uri, "listen": node.endpoints, "directory": str(directory)}
            if table.metrics is not None:
                ready["metrics_port"] = await metrics.start(*parse_listen(table.metrics))
            on_ready(ready)
            await stopped.wait()
        finally:
            await control.stop()
            await metrics.stop()


def _stop_event() -> asyncio.Event:
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    return stopped


def _tend(site: Site, journal: Journal, agreement: Agreement | None = None) -> None:
    from dovetail.journal.purger import start_purging
    from dovetail.lake.location import open_store
    from dovetail.lake.snapshot import read_head
    from dovetail.runtime.clock import now_us

    interval_s = site.config.journal.purge_interval_s
    if interval_s:
        lake, server = open_store(site.config.lake.directory), journal.identity.server
        start_purging(
            journal, lambda: read_head(lake, server).end, interval_s=interval_s, now_us=now_us, agreement=agreement
        )


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    """Errors of starting, told apart: to be corrected by a person, or gone by themselves perhaps."""
    try:
        yield
    except (ConfigError, KeyFileError) as error:
        raise UsageError(str(error)) from error
    except JournalLocked as error:
        raise ResourceBusy(f"{error}; end it, or name another journal") from error
