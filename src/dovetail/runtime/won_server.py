"""A node on a port: WebSocket for owners and nodes, linked data over HTTP GET, one journal."""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
import ssl
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dovetail.journal.journal import Journal, JournalOptions
from dovetail.model.errors import ConfigError
from dovetail.runtime.certificate_metrics import CertificateCollector
from dovetail.runtime.clock import now_us
from dovetail.runtime.metrics import Health, MetricsServer
from dovetail.runtime.won_driver import Driver
from dovetail.runtime.won_metrics import node_registry
from dovetail.runtime.won_socket import Answer, Wire, client_context, serve, server_context
from dovetail.tlog.keys import Signer
from dovetail.won.archive import RecentArchive
from dovetail.won.events import Event
from dovetail.won.links import LinkKind
from dovetail.won.node import Node
from dovetail.won.resources import choose_media_type, encode_resource
from dovetail.won.settings import WonSettings
from dovetail.won.signing import SigningKey
from dovetail.won.vocabulary import NODE_PATH

log = logging.getLogger("dovetail.won")


class NodeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Where a node listens and what it keeps."""

    uri: str
    host: str
    port: int
    journal: Path
    certificate: str | None = None
    certificate_key: str | None = None
    authority: str | None = None
    metrics: tuple[str, int] | None = None
    settings: WonSettings = WonSettings()
    journal_options: JournalOptions = JournalOptions()


def check_node_uri(uri: str) -> str:
    """The URI itself, if a node can have it; raises ConfigError."""
    parts = urlsplit(uri)
    if parts.scheme not in ("https", "http") or not parts.hostname or parts.path != NODE_PATH or parts.query:
        raise ConfigError(f"node URI {uri!r}, expected https://HOST{NODE_PATH}")
    return uri


class NodeServer:
    """A running node. `async with` it, or `start` and `stop` it."""

    def __init__(
        self, options: NodeOptions, key: Ed25519PrivateKey, observer: Callable[[Event], None] | None = None
    ) -> None:
        check_node_uri(options.uri)
        self.options = options
        self._observer = observer
        self._numbers = itertools.count(1)
        self._server: asyncio.Server | None = None
        self._metrics: MetricsServer | None = None
        self.metrics_port: int | None = None
        self._server_context: ssl.SSLContext | None = None
        if options.certificate is not None and options.certificate_key is not None:
            self._server_context = server_context(options.certificate, options.certificate_key)
        self._client_context = client_context(options.authority)
        self.journal = Journal.open(
            options.journal, server=options.uri, signer=Signer(options.uri, key), options=options.journal_options
        )
        self.node = Node(
            options.uri,
            SigningKey(key.private_bytes_raw()),
            random.SystemRandom(),
            settings=options.settings,
            archive=RecentArchive(self.journal.raw, options.settings.recent_messages),
        )

    async def start(self) -> int:
        """Rebuild the node from its journal, listen, and begin to work; the port."""
        self.node.restore(self.journal.hops(), now_us())
        self.driver = Driver(
            self.node, self.journal, label=LinkKind.NODE.value, context=self._client_context, observer=self._observer
        )
        self._server = await serve(self._answer, self.options.host, self.options.port, self._server_context)
        self.driver.start()
        if self.options.metrics is not None:
            registry = node_registry(self.node, self.journal, self.driver)
            files = {"certificate": self.options.certificate, "authority": self.options.authority}
            registry.register(CertificateCollector(files))
            self._metrics = MetricsServer(registry, self.health)
            self.metrics_port = await self._metrics.start(*self.options.metrics)
        port: int = self._server.sockets[0].getsockname()[1]
        log.info("node %s listens on port %d with %d atoms", self.node.uri, port, len(self.node.ledger.atoms))
        return port

    def health(self) -> Health:
        """Whether the node takes messages in and makes them durable."""
        if not self.driver.is_alive:
            return Health(False, "the journal can no longer be written")
        if not self.driver.is_reading:
            return Health(False, "waiting for the journal")
        return Health(True, "well")

    async def stop(self) -> None:
        """Stop listening, journal what waits, close the journal."""
        if self._metrics is not None:
            await self._metrics.stop()
        if self._server is not None:
            self._server.close()
            await self.driver.stop()
        await asyncio.to_thread(self.journal.close)

    async def __aenter__(self) -> NodeServer:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def _answer(self, target: str, accept: str) -> Answer:
        path, _, query = target.partition("?")
        for kind in LinkKind:
            if path == f"{NODE_PATH}/link/{kind.value}":
                return Wire(f"in {next(self._numbers)}", kind.value, _Accepted(self.driver, self.node))
        media_type = choose_media_type(accept)
        if media_type is None:
            return 406, "text/plain", b"TriG, N-Quads and Turtle are served\n"
        # Only what the journal has is shown: a message that could still be lost is not told to anybody.
        body = encode_resource(self.node, path, query, media_type, self.journal.raw)
        return (200, media_type, body) if body is not None else (404, "text/plain", b"not found\n")


class _Accepted:
    """The handler of wires that others opened."""

    def __init__(self, driver: Driver, node: Node) -> None:
        self._driver = driver
        self._node = node

    def receive_opened(self, wire: Wire) -> None:
        self._driver.adopt(wire)
        self._node.receive_accepted(wire.name, LinkKind(wire.kind), now_us())

    def receive_message(self, data: bytes, wire: Wire) -> None:
        self._driver.receive_message(data, wire)

    def receive_closed(self, wire: Wire) -> None:
        self._driver.receive_closed(wire)
