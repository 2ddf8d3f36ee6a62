"""A broker as a process: its journal, its event loop and its signals, from start to the last write."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable
from pathlib import Path

from dovetail.journal.journal import Journal, JournalOptions
from dovetail.keys.signing import create_signing_key, file_stem, load_signing_key
from dovetail.model.errors import ConfigError, DovetailError
from dovetail.pcp.open_rules import find_open_rules
from dovetail.pcp.settings import PcpSettings, check_settings
from dovetail.runtime.clock import note_clock_steps, now_us
from dovetail.runtime.hangup import hold_hangup, release_hangup
from dovetail.runtime.journal_metrics import JournalCollector
from dovetail.runtime.listening import check_port
from dovetail.runtime.loop import stop_event, wait_unless_failed
from dovetail.runtime.pcp_server import PcpServer
from dovetail.runtime.process_memory import keep_memory
from dovetail.runtime.tls import server_context
from dovetail.tlog.keys import Signer

RELOADED = ("rules", "types", "groups")

log = logging.getLogger("dovetail.pcp")


def run_broker(
    settings: PcpSettings,
    on_started: Callable[[dict[str, object]], None],
    *,
    journal_options: JournalOptions | None = None,
    on_journal: Callable[[Journal], None] | None = None,
    read_settings: Callable[[], PcpSettings] | None = None,
) -> None:
    """Run a broker until SIGTERM or SIGINT; raises if it cannot start or can no longer write its journal.

    `on_journal` gets the open journal, for any other use, once the broker has read from it what it still owes.
    `read_settings` is called on SIGHUP: the rules it returns apply from then on; if it raises, the previous rules are
    kept.
    """
    check_settings(settings)
    hold_hangup()  # until it can reload its rules
    if not settings.insecure_plain:
        for found in find_open_rules(settings):
            log.warning("%s", found)
    running = _serve(settings, on_started, journal_options, on_journal, read_settings)
    if settings.event_loop == "uvloop":
        try:
            import uvloop
        except ImportError:
            running.close()
            raise ConfigError("event_loop is 'uvloop', which is not installed; 'asyncio' always is") from None
        uvloop.run(running)
    else:
        asyncio.run(running)


def check_start(settings: PcpSettings) -> None:
    """Raise what would keep a broker from starting, before it makes keys and a journal."""
    check_port("tcp", settings.host, settings.port)
    if settings.metrics_port is not None:
        check_port("tcp", settings.metrics_host, settings.metrics_port)
    if not settings.insecure_plain:
        server_context(settings.certificate or "", settings.key or "", settings.authority)


def open_journal(settings: PcpSettings, options: JournalOptions | None = None) -> Journal | None:
    """Open the broker's journal; creates its signing key beside it if none is configured."""
    if settings.journal is None:
        return None
    path = Path(settings.journal)
    server = settings.server_uri
    if settings.signing_key is not None:
        key_path = Path(settings.signing_key)
    else:
        key_path = path.parent / f"{file_stem(server)}.skey"
        if not key_path.exists():
            create_signing_key(path.parent, server)
    key = load_signing_key(key_path)
    options = options or JournalOptions(durability=settings.durability)
    journal = Journal.open(path, server=server, signer=Signer(server, key.private_key), options=options)
    note_clock_steps(journal)
    return journal


async def _serve(
    settings: PcpSettings,
    on_started: Callable[[dict[str, object]], None],
    journal_options: JournalOptions | None,
    on_journal: Callable[[Journal], None] | None,
    read_settings: Callable[[], PcpSettings] | None,
) -> None:
    stopped = stop_event()
    check_start(settings)
    journal = open_journal(settings, journal_options)
    try:
        server = PcpServer(settings, journal)
        if journal is not None:
            server.metrics.registry.register(JournalCollector(journal))
            first = max(0, journal.size - settings.restore_hops)
            server.broker.restore(journal.hops(first), now_us())
        await server.start()
        keep_memory()
        if read_settings is not None:
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reload_rules, server, read_settings)
        release_hangup()
        try:
            if journal is not None and on_journal is not None:
                on_journal(journal)
            on_started(describe(server))
            await wait_unless_failed(stopped, server.failed)
        finally:
            await server.stop()
    finally:
        if journal is not None:
            journal.close()


def reload_rules(server: PcpServer, read_settings: Callable[[], PcpSettings]) -> None:
    """Apply the rules of newly read settings; if they cannot be read, the old rules stay."""
    try:
        settings = read_settings()
    except DovetailError as error:
        server.keep_rules(error)
        return
    changed = [
        name
        for name in settings.__struct_fields__
        if name not in RELOADED and getattr(settings, name) != getattr(server.settings, name)
    ]
    if changed:
        log.warning("changed settings that need a restart: %s", ", ".join(changed))
    server.change_rules(settings)


def describe(server: PcpServer) -> dict[str, object]:
    """Where a broker listens."""
    settings = server.settings
    scheme = "ws" if settings.insecure_plain else "wss"
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    described: dict[str, object] = {
        "server": settings.server_uri,
        "url": f"{scheme}://{host}:{server.port}{settings.mount_v1}",
        "url_v2": f"{scheme}://{host}:{server.port}{settings.mount_v2}",
    }
    if server.metrics_port is not None:
        described["metrics"] = f"http://{settings.metrics_host}:{server.metrics_port}/metrics"
    return described
