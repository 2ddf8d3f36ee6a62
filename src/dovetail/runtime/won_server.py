"""A node on a port: WebSocket for owners and nodes, linked data over HTTP GET, one journal."""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dovetail.journal.journal import Journal, JournalOptions
from dovetail.model.errors import ConfigError
from dovetail.runtime.acceptor import Acceptor
from dovetail.runtime.addresses import AddressGuard
from dovetail.runtime.certificate_metrics import CertificateCollector
from dovetail.runtime.clock import note_clock_steps, now_us
from dovetail.runtime.http import Reply
from dovetail.runtime.link_metrics import LinkCollector
from dovetail.runtime.listening import check_port
from dovetail.runtime.loop import stop_event, wait_unless_failed
from dovetail.runtime.metrics import MetricsServer
from dovetail.runtime.process_memory import keep_memory
from dovetail.runtime.server_health import add_remarks, is_healthy, judge_certificates
from dovetail.runtime.tls import ClientTls, ServerTls
from dovetail.runtime.websocket import Accept, Request, listen
from dovetail.runtime.won_links import LIMITS, WonLinks
from dovetail.runtime.won_metrics import node_registry
from dovetail.tlog.keys import Signer
from dovetail.won.access import is_proven, read_claim
from dovetail.won.archive import RecentArchive
from dovetail.won.links import LinkKind
from dovetail.won.node import Node
from dovetail.won.resources import choose_media_type, encode_resource, find_log_of_deleted, find_parties, needs_proof
from dovetail.won.settings import WonSettings
from dovetail.won.signing import SigningKey
from dovetail.won.vocabulary import NODE_PATH

LATE_MS = 300_000
"""A node to which something has been owed for longer counts as unreachable."""
MAX_NAMED = 3
_SIGN = (("WWW-Authenticate", "Signature"), ("Vary", "Signature"))
log = logging.getLogger("dovetail.won")


class NodeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Where a node listens and what it stores."""

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
    try:
        parts = urlsplit(uri)
        has_host = bool(parts.hostname) and parts.port != 0
    except ValueError:
        has_host = False
    if not has_host or parts.scheme not in ("https", "http") or parts.path != NODE_PATH or parts.query:
        raise ConfigError(f"node URI {uri!r}, expected https://HOST{NODE_PATH}")
    return uri


class NodeServer:
    """A running node. Use it with `async with`, or `start` and `stop` it."""

    def __init__(self, options: NodeOptions, key: Ed25519PrivateKey) -> None:
        check_node_uri(options.uri)
        self.options = options
        self._numbers = itertools.count(1)
        self._acceptor: Acceptor | None = None
        self._metrics: MetricsServer | None = None
        self.metrics_port: int | None = None
        self._tls: ServerTls | None = None
        if options.certificate is not None and options.certificate_key is not None:
            # Owners and nodes prove their identity by signatures, not certificates.
            self._tls = ServerTls(options.certificate, options.certificate_key)
        self._client_tls = ClientTls(options.authority)
        check_port("tcp", options.host, options.port)
        if options.metrics is not None:
            check_port("tcp", *options.metrics)
        self.journal = Journal.open(
            options.journal, server=options.uri, signer=Signer(options.uri, key), options=options.journal_options
        )
        note_clock_steps(self.journal)
        self.node = Node(
            options.uri,
            SigningKey(key.private_bytes_raw()),
            random.SystemRandom(),
            settings=options.settings,
            archive=RecentArchive(self.journal.raw, options.settings.recent_messages, options.settings.recent_share),
        )

    async def start(self) -> int:
        """Rebuild the node from its journal, listen, and start; returns the port."""
        self.node.restore(self.journal.hops(), now_us())
        self._links = WonLinks(
            self.node,
            self.journal,
            durability=self.options.journal_options.durability,
            context=self._client_tls.current,
            guard=AddressGuard(self.options.uri, self.options.settings.fetch_networks),
            is_dialling_others=True,
            settings=self.options.settings,
            on_accepted=lambda link, kind, now: self.node.receive_accepted(link, LinkKind(kind), now),
        )
        self.driver, self.failed = self._links.driver, self._links.failed
        self._acceptor = await listen(
            self._links,
            self.options.host,
            self.options.port,
            admit=self._answer,
            tls=self._tls,
            limits=LIMITS,
            memory=self._links.memory,
            unsent=self._links.unsent,
        )
        self._links.start()
        if self.options.metrics is not None:
            registry = node_registry(self.node, self.journal, self.driver)
            registry.register(CertificateCollector(self._expiries))
            registry.register(LinkCollector(self._acceptor, self._links.memory, self._links.unsent))
            self._metrics = MetricsServer(registry, self.health)
            self.metrics_port = await self._metrics.start(*self.options.metrics)
        port = self._acceptor.port
        log.info("node %s listens on port %d with %d atoms", self.node.uri, port, len(self.node.ledger.atoms))
        return port

    def _expiries(self) -> dict[str, float | None]:
        served = {} if self._tls is None else self._tls.expiries()
        return {**served, **self._client_tls.expiries()}

    def health(self) -> str:
        """Whether the node accepts messages and makes them durable, and which nodes it has not reached for long."""
        health = judge_certificates(self.driver.health, self._expiries())
        waiting = self.node.queues(now_us()) if is_healthy(health) else ()
        late = sorted((queue for queue in waiting if queue.oldest_ms > LATE_MS), key=lambda queue: -queue.oldest_ms)
        remarks = [f"{queue.node} has not been reached for {queue.oldest_ms // 1000} s" for queue in late[:MAX_NAMED]]
        if len(late) > MAX_NAMED:
            remarks.append(f"{len(late) - MAX_NAMED} more nodes have not been reached")
        return add_remarks(health, remarks)

    async def stop(self) -> None:
        """Stop listening, journal what is pending, close the journal."""
        if self._metrics is not None:
            await self._metrics.stop()
        if self._acceptor is not None:
            self._acceptor.close()
            self._links.stop_reading()
            await self._links.stop()
        await asyncio.to_thread(self.journal.close)

    async def __aenter__(self) -> NodeServer:
        try:
            await self.start()
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def _answer(self, request: Request) -> Accept[str] | Reply:
        path, _, query = request.path.decode("latin-1").partition("?")
        for kind in LinkKind:
            if path == f"{NODE_PATH}/link/{kind.value}":
                return self._admit(request, kind)
        varies = (("Vary", "Accept"),)
        media_type = choose_media_type(str(request.headers.get("accept", "")))
        if media_type is None:
            return Reply(406, b"TriG, N-Quads and Turtle are served\n", headers=varies)
        reader = self._identify_reader(request, path) if needs_proof(self.node, path) else None
        if isinstance(reader, Reply):
            return reader
        # Only what the journal has is shown: a message that could still be lost is not shown to anybody.
        body = encode_resource(self.node, path, query, media_type, self.journal.raw, reader)
        if body is None:
            return Reply(404, b"not found\n", headers=varies)
        log_of_deleted = find_log_of_deleted(self.node, path)
        if log_of_deleted is not None:
            return Reply(410, body, media_type, (*varies, ("Link", f'<{log_of_deleted}>; rel="archives"')))
        return Reply(200, body, media_type, varies)

    def _admit(self, request: Request, kind: LinkKind) -> Accept[str] | Reply:
        """Accept a link, if there is room for it."""
        limits = self.options.settings
        is_crowded = self._links.hosts[request.host] >= limits.max_links_per_address
        if is_crowded or self._links.count >= limits.max_links:
            return Reply(503, headers=(("Retry-After", "5"),))
        return Accept(f"in {next(self._numbers)}", kind.value)

    def _identify_reader(self, request: Request, path: str) -> str | Reply:
        """The atom that signed the request, or the reply to a request that no known atom signed."""
        now = now_us()
        claim = read_claim(request.headers)
        key = None if claim is None else self.node.keys.find(claim.signer, now)
        if claim is not None and key is None and claim.signer in find_parties(self.node, path, self.journal.raw):
            self._links.ask(claim.signer, request.host)
            return Reply(503, b"the key of the signer is being fetched\n", headers=(("Retry-After", "1"),))
        uri = f"{self.node.uri.removesuffix(NODE_PATH)}{request.path.decode('latin-1')}"
        if claim is None or key is None or not is_proven(claim, uri, key, now, self.options.settings.max_clock_skew_ms):
            return Reply(401, b"sign the request with the key of an atom that takes part\n", headers=_SIGN)
        return claim.signer


async def serve_node(server: NodeServer, on_ready: Callable[[dict[str, object]], None]) -> None:
    """Run a node until SIGTERM or SIGINT; raises if it cannot start or can no longer write its journal."""
    stopped = stop_event()
    try:
        ready: dict[str, object] = {"server": server.node.uri, "port": await server.start()}
        if server.metrics_port is not None:
            ready["metrics_port"] = server.metrics_port
        keep_memory()
        on_ready(ready)
        await wait_unless_failed(stopped, server.failed)
    finally:
        await server.stop()
