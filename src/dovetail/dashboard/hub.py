"""Takes a snapshot once a second and sends it to all listeners: one snapshot, however many pages are open."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import anyio.to_thread
import msgspec

from dovetail.audit.server_names import name_server_briefly, named_by
from dovetail.audit.tables import changed_ns
from dovetail.dashboard import audit, gauges
from dovetail.dashboard.live import Live
from dovetail.dashboard.site_sources import Site
from dovetail.lake.location import Location, is_url
from dovetail.model.errors import DovetailError
from dovetail.report.numbers import CheckCount
from dovetail.runtime.server_health import OK

LOOK_EVERY_S = 1.0
ASK_EVERY_S = 5.0
STALE_S = 60.0
"""If the last snapshot is older, the dashboard shows outdated data."""
MAX_LISTENERS = 32
MAX_ALERTS = 200
MAX_NAMED = 3
_DAMAGED = "Keep the file. `dovetail journal verify` names the bad place; its other hops are still shown."
_SILENT = "Check that the server runs, and its log."

log = logging.getLogger("dovetail.dashboard")


@dataclass(frozen=True, slots=True)
class Sources:
    """Everything the dashboard reads."""

    site: Site
    tables: Location | None = None
    endpoints: tuple[gauges.Endpoint, ...] = ()


class Hub:
    """The latest snapshot, and the listeners waiting for the next."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._live = Live(sources.site)
        self._news = asyncio.Condition()
        self._gauges: list[dict[str, Any]] = []
        self.overview = audit.Overview(
            problem="There is no audit to show: start the dashboard with --tables and the directory of an audit."
        )
        self._audited: int | None = None
        self._looks = 0
        self._looked_s = time.monotonic()
        self._first_seen: dict[tuple[str, str], int] = {}
        self.latest = b""
        self.listeners = 0
        self.is_stopping: Callable[[], bool] = lambda: False

    @property
    def names(self) -> dict[str, str]:
        """The servers by the names of their journals."""
        return self._live.names

    @property
    def health(self) -> str:
        """`ok` while snapshots are taken."""
        age_s = time.monotonic() - self._looked_s
        return OK if age_s <= STALE_S else f"the journals were last read {age_s:.0f} s ago"

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Take snapshots while the block runs."""
        await self._look()
        tasks = [asyncio.create_task(self._run()), asyncio.create_task(self._ask())]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._live.close()

    async def listen(self) -> AsyncIterator[bytes]:
        """The current snapshot and each new one, as server-sent events; ends when the server stops."""
        self.listeners += 1
        try:
            yield b"retry: 2000\n\n"
            number = 0
            while not self.is_stopping():
                if number != self._looks:
                    number = self._looks
                    yield b"id: %d\ndata: %s\n\n" % (number, self.latest)
                with contextlib.suppress(TimeoutError):
                    async with self._news:
                        async with asyncio.timeout(LOOK_EVERY_S):
                            await self._news.wait()
        finally:
            self.listeners -= 1

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            try:
                await self._look()
            except Exception:
                log.exception("a look at the servers failed; the next one is in a second")

    async def _ask(self) -> None:
        """Poll the servers for their figures; reading the journals does not wait for the answers."""
        while self._sources.endpoints:
            self._gauges = await gauges.ask(self._sources.endpoints)
            await asyncio.sleep(ASK_EVERY_S)

    async def _look(self) -> None:
        snapshot = await anyio.to_thread.run_sync(self._see)
        self.latest = msgspec.json.encode(snapshot)
        self._looks += 1
        self._looked_s = time.monotonic()
        async with self._news:
            self._news.notify_all()

    def _see(self) -> dict[str, Any]:
        snapshot = self._live.look()
        self._see_audit()
        now = snapshot["at_us"]
        alerts = [
            {"severity": "error", "what": "journal", "about": each["file"], "text": each["text"], "advice": _DAMAGED}
            for each in snapshot["damaged"]
        ]
        alerts += [
            {"severity": "error", "what": "metrics", "about": each["name"], "text": each["error"], "advice": _SILENT}
            for each in self._gauges
            if each["error"]
        ]
        seen = {(alert["what"], alert["about"]): now for alert in alerts}
        self._first_seen = {key: self._first_seen.get(key, now) for key in seen}
        alerts = [
            alert
            | {
                "where": "",
                "first_us": self._first_seen[alert["what"], alert["about"]],
                "last_us": now,
                "message": None,
            }
            for alert in alerts
        ]
        with named_by(self._live.names):
            alerts += [
                _describe_check(row, self.overview.seen.get(row.check, audit.Seen()))
                for row in self.overview.checks
                if row.severity in ("error", "warning")
            ]
        return snapshot | {
            "gauges": self._gauges,
            "alerts": alerts[:MAX_ALERTS],
            "now": len(seen),
            "errors": None if self.overview.problem else self.overview.counts.found("error"),
            "warnings": None if self.overview.problem else self.overview.counts.found("warning"),
        }

    def _see_audit(self) -> None:
        root = self._sources.tables
        if root is None or (is_url(root) and self._looks % (ASK_EVERY_S // LOOK_EVERY_S)):
            return
        try:
            changed = changed_ns(root)
        except (OSError, DovetailError):
            changed = 0
        if changed != self._audited or self.overview.problem:
            self.overview = audit.survey(root)
            self._audited = changed


def _describe_check(row: CheckCount, seen: audit.Seen) -> dict[str, Any]:
    names = sorted(name_server_briefly(server) for server in seen.servers)
    more = f" and {len(names) - MAX_NAMED:,} more" if len(names) > MAX_NAMED else ""
    return {
        "severity": row.severity,
        "what": "audit",
        "about": row.check,
        "title": row.title,
        "where": ", ".join(names[:MAX_NAMED]) + more,
        "text": f"{row.findings:,} finding{'' if row.findings == 1 else 's'}: {row.meaning}",
        "advice": row.advice,
        "first_us": seen.first_us,
        "last_us": seen.last_us,
        "message": seen.message,
    }
