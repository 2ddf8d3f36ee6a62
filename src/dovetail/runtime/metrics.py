"""Prometheus `/metrics` and `/healthz` over a tiny HTTP server; shared by all fabrics.

A server passes a registry and a function that returns its health (`server_health`): `ok`, or why not. Only GET and HEAD
of the two paths are answered; connections are limited in number, requests in size and time, and every response closes
its connection.
"""

from __future__ import annotations

import asyncio
import logging
import platform
from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from dovetail import __version__, fast
from dovetail.runtime.http import Reply
from dovetail.runtime.listening import listening
from dovetail.runtime.server_health import is_healthy

MAX_REQUEST_BYTES = 8_192
MAX_CONNECTIONS = 64
"""Open at once; for one more, the oldest is dropped."""
REQUEST_TIMEOUT_S = 5.0
log = logging.getLogger("dovetail.metrics")


def new_registry(*collectors: Collector) -> CollectorRegistry:
    """A registry of these, and of what every process reports: its version, CPU time, memory and descriptors."""
    registry = CollectorRegistry()
    for collector in (_Build(), *collectors):
        registry.register(collector)
    ProcessCollector(registry=registry)
    return registry


class _Build(Collector):
    """The running version."""

    def collect(self) -> Iterator[Metric]:
        labels = ["version", "python", "fast"]
        build = GaugeMetricFamily(
            "dovetail_build_info", "Always 1; version information is in the labels.", labels=labels
        )
        build.add_metric([__version__, platform.python_version(), fast.IMPLEMENTATION], 1)
        yield build


class _HealthOf(Collector):
    """The result of `/healthz` as a number."""

    def __init__(self, health: Callable[[], str]) -> None:
        self._health = health

    def collect(self) -> Iterator[Metric]:
        value = int(is_healthy(self._health()))
        yield GaugeMetricFamily("dovetail_healthy", "1 if /healthz answers 200, otherwise 0.", value=value)


class MetricsServer:
    """Serves one registry; `start` it, and `stop` it when done."""

    def __init__(self, registry: CollectorRegistry, health: Callable[[], str]) -> None:
        self._registry = registry
        self._health = health
        registry.register(_HealthOf(health))
        self._server: asyncio.Server | None = None
        self._open: dict[asyncio.StreamWriter, None] = {}

    async def start(self, host: str, port: int) -> int:
        """Listen; returns the port, which is assigned if 0 was given."""
        with listening("tcp", host, port):
            self._server = await asyncio.start_server(self._answer, host, port, limit=MAX_REQUEST_BYTES)
        bound: int = self._server.sockets[0].getsockname()[1]
        log.info("metrics on http://%s:%d/metrics", host, bound)
        return bound

    async def stop(self) -> None:
        """Stop listening and drop the open connections. Idempotent."""
        if self._server is not None:
            self._server.close()
            for writer in tuple(self._open):
                writer.transport.abort()
            await self._server.wait_closed()
            self._server = None

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._open) >= MAX_CONNECTIONS:
            next(iter(self._open)).transport.abort()
        self._open[writer] = None
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                head = await reader.readuntil(b"\r\n\r\n")
            writer.write(self._respond(head))
            writer.close()
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                await writer.wait_closed()
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError, ConnectionError):
            pass  # the client has gone, does not read, or does not speak HTTP
        finally:
            self._open.pop(writer, None)
            writer.transport.abort()

    def _respond(self, head: bytes) -> bytes:
        words = head.split(b"\r\n", 1)[0].split(b" ")
        if len(words) != 3:
            return Reply(400, b"bad request\n").encode()
        method, path = words[0], words[1].partition(b"?")[0]
        if method not in (b"GET", b"HEAD"):
            return Reply(405, b"only GET\n").encode()
        if path == b"/metrics":
            reply = Reply(200, generate_latest(self._registry), CONTENT_TYPE_LATEST)
        elif path == b"/healthz":
            health = self._health()
            reply = Reply(200 if is_healthy(health) else 503, health.encode() + b"\n")
        else:
            reply = Reply(404, b"there are /metrics and /healthz\n")
        return reply.encode(is_head=method == b"HEAD")
