"""The broker on sockets: connects it to WebSockets, certificates, signals and revocation.

The driver feeds the core and journals what it observed (`driver`). This module has its links: it passes their input to
the driver, and writes the output to each of them once per turn. The core learns at once when the kernel takes no
more for a link, or has taken everything, so that `delivered` means what the kernel took.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import logging
import uuid
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from typing import assert_never

from dovetail.model.errors import ConfigError, DovetailError
from dovetail.model.hop import Observation, Reason
from dovetail.model.wire import CLOSE_GOING_AWAY, CloseLink, LinkId, Outgoing, SendFrames
from dovetail.pcp.broker import Broker
from dovetail.pcp.events import (
    ClientRefused,
    Event,
    LongListHandled,
    MessageHandled,
    SessionEnded,
    SessionOpened,
    SlowConsumerFound,
)
from dovetail.pcp.session import parse_mount
from dovetail.pcp.settings import PcpSettings, check_settings
from dovetail.pcp.vocabulary import (
    CLOSE_ASSOCIATION_UNSUCCESSFUL,
    CLOSE_NO_CERTIFICATE,
    CLOSE_REVOKED,
)
from dovetail.runtime.acceptor import Acceptor, HandshakeLimits
from dovetail.runtime.certificate_metrics import CertificateCollector
from dovetail.runtime.clock import now_us
from dovetail.runtime.frames import Memory, encode_frames
from dovetail.runtime.http import Reply
from dovetail.runtime.limited_log import LimitedLog
from dovetail.runtime.limits import Limits
from dovetail.runtime.link_metrics import LinkCollector, RateCollector
from dovetail.runtime.loop import CallingJournal, drive
from dovetail.runtime.metrics import MetricsServer
from dovetail.runtime.pace import Rates
from dovetail.runtime.pcp_access import access, log_message
from dovetail.runtime.pcp_metrics import BrokerMetrics
from dovetail.runtime.server_health import judge_certificates
from dovetail.runtime.tls import RevocationList, ServerTls, common_name, serial_number
from dovetail.runtime.websocket import LINGER_S, Accept, Link, LinkHandler, Request, listen

REVOCATION_CHECK_S = 2.0
DRAIN_CHECK_S = 0.02
MAX_UNASSOCIATED_BYTES = 64 * 1024
TURN_MESSAGES = 64
TURN_BYTES = 64 * 1024
ENTRIES_PER_MESSAGE = 4
"""How many targets of a message, or entries of an inventory, take the work of one more message."""

log = logging.getLogger("dovetail.pcp")


class PcpServer(LinkHandler[LinkId]):
    """A broker that listens. `start` it, wait on `failed` or your own signal, then `stop` it."""

    def __init__(self, settings: PcpSettings, journal: CallingJournal | None = None) -> None:
        check_settings(settings)
        self.settings = settings
        self._journal = journal
        logs_messages = settings.access_log and access.isEnabledFor(logging.INFO)
        self.broker = Broker(settings, lambda: str(uuid.uuid4()), logs_messages=logs_messages)
        self.metrics = BrokerMetrics(self.broker)
        self._numbers = itertools.count(1)
        self._connections: dict[LinkId, Link] = {}
        self._texts: set[LinkId] = set()
        self._opened_at: dict[LinkId, float] = {}
        self._serials: dict[LinkId, int] = {}
        self._tls: ServerTls | None = None
        self._revocations: RevocationList | None = None
        self._acceptor: Acceptor | None = None
        self.memory = Memory(settings.unfinished_share)
        self.unsent = Memory(settings.unsent_share, Link.drop_unread)
        self.rates = Rates(settings.client_messages_per_s, settings.client_bytes_per_s)
        self._clients: dict[LinkId, tuple[str, str]] = {}  # certificate name, address
        self._hosts: Counter[str] = Counter()
        self._exhausted: list[tuple[LinkId, int, int]] = []
        self._close_delays: dict[LinkId, float] = {}
        self._refusals = LimitedLog(log, "clients refused")
        self._metrics_server = MetricsServer(self.metrics.registry, self.health)
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_reading = True
        self._is_started = False
        self._is_draining = False
        self.port = 0
        self.metrics_port: int | None = None
        self.failed: asyncio.Future[None]
        """Gets the error if the broker has to stop; set by `start`."""

    # Lifecycle

    async def start(self) -> None:
        """Listen."""
        settings = self.settings
        self._loop = asyncio.get_running_loop()
        self._is_started = True
        self.driver, self.failed = drive(
            self.broker,
            self._journal,
            self,
            durability=settings.durability,
            on_events=self._act,
            max_inbox_bytes=settings.inbox_share,
            stats=self.metrics.turns,
        )
        self.frame = self.driver.receive  # type: ignore[method-assign]  # the hot path
        if not settings.insecure_plain:
            authority = settings.authority or ""
            self._tls = ServerTls(settings.certificate or "", settings.key or "", authority)
            if settings.revocations:
                self._revocations = RevocationList(settings.revocations, authority)
                self._revocations.reload()
                self._spawn(self._watch_revocations(self._revocations))
            self.metrics.registry.register(CertificateCollector(self._expiries))
        if settings.metrics_port is not None:
            self.metrics_port = await self._metrics_server.start(settings.metrics_host, settings.metrics_port)
        self._acceptor = await listen(
            self,
            settings.host,
            settings.port,
            admit=self._admit,
            tls=self._tls,
            limits=Limits(
                max_message_bytes=settings.max_message_bytes,
                untrusted_bytes=MAX_UNASSOCIATED_BYTES,
                turn_messages=TURN_MESSAGES,
                turn_bytes=TURN_BYTES,
                handshake=HandshakeLimits(
                    timeout_s=settings.handshake_timeout_ms / 1000,
                    tls_at_once=settings.max_handshakes,
                    tls_per_s=settings.handshakes_per_s,
                ),
            ),
            memory=self.memory,
            unsent=self.unsent,
        )
        self.driver.wake()
        self.metrics.registry.register(LinkCollector(self._acceptor, self.memory, self.unsent))
        self.metrics.registry.register(RateCollector(self.rates))
        self.port = self._acceptor.port
        scheme = "ws" if settings.insecure_plain else "wss"
        log.info("listening on %s://%s:%d", scheme, settings.host, self.port)

    async def stop(self) -> None:
        """Accept no more connections, write what is queued within the time limit, close. Idempotent."""
        if self._is_draining or not self._is_started:
            return
        self._is_draining = True
        self.driver.drain()
        self.set_reading(False)  # otherwise a client that keeps sending would keep it busy
        if self._acceptor is not None:
            self._acceptor.close()
        deadline = self._loop.time() + self.settings.drain_timeout_ms / 1000
        await self._wait_until(lambda: not (self._is_busy() or self._unwritten_bytes()), deadline)
        self.driver.call(self._close_all)
        # once the connections are closed, what was handed over is journaled as delivered or not
        await self._wait_until(lambda: not (self._is_busy() or self._connections), self._loop.time() + LINGER_S)
        for remaining in list(self._connections.values()):
            remaining.abort()
        await self._wait_until(lambda: not (self._is_busy() or self._connections), self._loop.time() + LINGER_S)
        for task in tuple(self._tasks):
            task.cancel()
        self.driver.stop()
        await self._metrics_server.stop()
        log.info("stopped")

    async def _wait_until(self, is_done: Callable[[], object], deadline: float) -> None:
        while not is_done() and self._loop.time() < deadline:  # noqa: ASYNC110 - only while stopping
            await asyncio.sleep(DRAIN_CHECK_S)

    def _is_busy(self) -> bool:
        return self.driver.failure is None and (not self.driver.is_idle or bool(self.broker.backlogs()))

    def _close_all(self, now: int) -> None:
        for connection in list(self._connections):
            self.broker.close(connection, CLOSE_GOING_AWAY, "shutting down", now)

    def health(self) -> str:
        """The text of `/healthz`."""
        return judge_certificates(self.driver.health, {} if self._tls is None else self._expiries())

    def _unwritten_bytes(self) -> int:
        return sum(link.unsent_bytes for link in self._connections.values())

    def _spawn(self, work: Coroutine[object, object, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # Link events

    def _admit(self, request: Request) -> Accept[LinkId] | Reply:
        """Refuse before the upgrade: clients then back off, while after a close they reconnect at once."""
        path = request.path.decode("latin-1")
        if parse_mount(path, self.settings) is None:
            refusal = Reply(404)
        elif (
            self._is_draining
            or len(self._connections) >= self.settings.max_connections
            or self._hosts[request.host] >= self.settings.max_connections_per_address
        ):
            refusal = Reply(503, headers=(("Retry-After", "5"),))
        else:
            return Accept(str(next(self._numbers)), path)
        self.metrics.refused_upgrades.labels(str(refusal.status)).inc()
        return refusal

    def opened(self, link: Link, label: str) -> None:
        """A connection was upgraded; its label is the path."""
        mount = parse_mount(label, self.settings)
        assert mount is not None
        connection: LinkId = link.id
        name: str | None = None
        if not self.settings.insecure_plain:
            certificate = link.take_certificate()
            name = common_name(certificate)
            serial = serial_number(certificate)
            if name is None:
                self._refuse(link, "none", CLOSE_NO_CERTIFICATE, "no certificate with exactly one common name")
                return
            if serial is not None and self._revocations is not None:
                if serial in self._revocations.serials:
                    self._refuse(link, name, CLOSE_REVOKED, "certificate revoked")
                    return
                self._serials[connection] = serial
        self._connections[connection] = link
        host = link.host
        self._clients[connection] = name or host, host
        self._hosts[host] += 1
        self.rates.open(name or host, self._loop.time())
        link.set_reading(self._is_reading)
        if mount.version == 2:
            self._texts.add(connection)
        else:
            self._opened_at[connection] = self._loop.time()
        self.driver.call(lambda now: self._report_opened(link, name, label, now))

    def _report_opened(self, link: Link, name: str | None, path: str, now: int) -> None:
        self.broker.receive_opened(link.id, name, path, now)
        if link.unsent_bytes:  # it became full before the core knew it
            self.broker.receive_paused(link.id, 0, now)

    def _refuse(self, link: Link, name: str, code: int, detail: str) -> None:
        self._refusals.warning("connection refused peer=%s certificate=%s: %s", link.peer, name, detail)
        self.metrics.closes.labels(str(code)).inc()
        link.close(code, detail)

    def pinged(self, link: LinkId) -> None:
        """A ping or a pong."""
        self.broker.receive_ping(link, now_us())

    def refused(self, data: bytes, link: LinkId, reason: Reason, size: int) -> None:
        """A message was refused before it was complete."""
        self.driver.call(lambda now: self.broker.receive_refused(data, link, now, reason, size))

    def exhausted(self, link: LinkId, messages: int, size: int) -> None:
        """A connection used up its turn: it continues when that is fed, or later if its client sends too fast."""
        if not self._exhausted:
            self.driver.call(self._give_turns)
        self._exhausted.append((link, messages, size))

    def _give_turns(self, now: int) -> None:  # noqa: ARG002
        exhausted, self._exhausted = self._exhausted, []
        for connection, messages, size in exhausted:
            link = self._connections.get(connection)
            if link is None:
                continue
            name = self._clients[connection][0]
            pause_s = self.rates.charge(name, messages, size, self._loop.time())
            if pause_s > 0:
                if self.rates.slowed[name] == 1:
                    log.warning("client slowed down certificate=%s peer=%s: it sends too fast", name, link.peer)
                self._loop.call_later(pause_s, link.give_turn)
            else:
                link.give_turn()

    def paused(self, link: LinkId) -> None:
        """The kernel takes no more for this connection."""
        if link in self._connections:  # otherwise it was refused
            self.driver.receive_paused(link, self._connections[link].unsent_bytes)

    def resumed(self, link: LinkId) -> None:
        """The kernel has taken everything."""
        self.driver.receive_resumed(link)

    def closed(self, link: LinkId, code: int) -> None:  # noqa: ARG002
        """The connection is closed."""
        gone = self._connections.pop(link, None)
        if gone is not None:
            self._texts.discard(link)
            self._opened_at.pop(link, None)
            self._serials.pop(link, None)
            self._close_delays.pop(link, None)
            name, host = self._clients.pop(link)
            self.rates.close(name)
            self._hosts[host] -= 1
            if not self._hosts[host]:
                del self._hosts[host]
            self.driver.receive_closed(link, lambda now: self.broker.receive_closed(link, now, gone.lost_bytes))

    # Called by the driver

    def set_reading(self, wanted: bool) -> None:
        """Stop or resume reading from all connections: TCP slows the senders down."""
        self._is_reading = wanted = wanted and not self._is_draining
        for link in self._connections.values():
            link.set_reading(wanted)

    def send(self, outgoing: Sequence[Outgoing], made_at: int) -> None:  # noqa: ARG002
        """Write to each connection once; close those that the core wants closed."""
        connections = self._connections
        for item in outgoing:
            if isinstance(item, SendFrames):
                frames = encode_frames(item.frames, item.links[0] in self._texts)
                for link in item.links:
                    connection = connections.get(link)
                    if connection is None:
                        continue  # refused or closed; the core was told
                    connection.write(frames)
                    if connection.is_broken():  # by this write, or it would not be registered any more
                        self.driver.receive_paused(link, len(frames))
            elif isinstance(item, CloseLink):
                self.metrics.closes.labels(str(item.code)).inc()
                closing = connections.get(item.link)
                delay_s = self._close_delays.pop(item.link, 0.0)
                if closing is not None and delay_s:
                    closing.set_reading(False)
                    self._loop.call_later(delay_s, closing.close, item.code, item.detail)
                elif closing is not None:
                    closing.close(item.code, item.detail)

    def _act(self, events: Sequence[Event]) -> None:
        for event in events:
            match event:
                case MessageHandled():
                    log_message(event)
                case SessionOpened(connection=connection, uri=uri, version=version):
                    link = self._connections.get(connection)
                    if link is not None:
                        link.trust()
                    opened = self._opened_at.pop(connection, None)
                    if opened is not None:
                        self.metrics.handshake_seconds.observe(self._loop.time() - opened)
                    log.info("session opened uri=%s version=%d connection=%s", uri, version, connection)
                case SessionEnded(connection=connection, uri=uri, was_superseded=superseded):
                    log.info("session ended uri=%s superseded=%s connection=%s", uri, superseded, connection)
                case SlowConsumerFound(uri=uri, queued_bytes=size):
                    self.metrics.count_slow(uri)
                    log.warning("slow consumer uri=%s queued_bytes=%d", uri, size)
                case LongListHandled(connection=connection, entries=entries):
                    if connection in self._clients:
                        self.rates.owe(self._clients[connection][0], entries / ENTRIES_PER_MESSAGE)
                case ClientRefused(connection=connection, uri=uri, reason=reason, detail=detail):
                    link = self._connections.get(connection)
                    self.metrics.refused_clients.labels(reason.value).inc()
                    self._refusals.warning(
                        "client refused peer=%s certificate=%s uri=%s reason=%s: %s",
                        link.peer if link else "gone",
                        self._clients.get(connection, ("gone", ""))[0],
                        uri,
                        reason.value,
                        detail,
                    )
                case Observation():
                    pass
                case _:
                    assert_never(event)

    # Revocation

    def _expiries(self) -> dict[str, float | None]:
        assert self._tls is not None
        promised = None if self._revocations is None else self._revocations.next_update_s
        return {**self._tls.expiries(), "revocations": promised}

    async def _watch_revocations(self, revocations: RevocationList) -> None:
        while True:
            await asyncio.sleep(REVOCATION_CHECK_S)
            try:
                new = revocations.reload()
            except ConfigError as error:
                log.error("revocation list not loaded, keeping the previous one: %s", error)
                continue
            revoked = [connection for connection, serial in self._serials.items() if serial in new]
            if revoked:
                log.warning("%d connections have a revoked certificate", len(revoked))
                self.driver.call(functools.partial(self._end_all, revoked, CLOSE_REVOKED, "certificate revoked"))

    def _end_all(self, connections: Sequence[LinkId], code: int, detail: str, now: int) -> None:
        """End their sessions now; the connections are closed spread over time, so that not all reconnect at once."""
        pause_s = self.settings.revocation_spread_ms / 1000 / len(connections)
        for number, connection in enumerate(connections):
            self._close_delays[connection] = number * pause_s
            self.broker.close(connection, code, detail, now)

    def change_rules(self, settings: PcpSettings) -> None:
        """Apply these rules, types and groups from now on; clients they refuse are closed, spread over time."""
        self.driver.call(functools.partial(self._change_rules, settings))

    def _change_rules(self, settings: PcpSettings, now: int) -> None:
        refused = self.broker.change_rules(settings, now)
        self.metrics.rule_changes.labels("done").inc()
        log.warning("rules changed: %d rules decide now, %d connections are closed", len(settings.rules), len(refused))
        if refused:
            self._end_all(refused, CLOSE_ASSOCIATION_UNSUCCESSFUL, "not authorised to associate", now)

    def keep_rules(self, error: DovetailError) -> None:
        """Report that new rules could not be loaded; the previous ones are kept."""
        self.metrics.rule_changes.labels("failed").inc()
        log.error("rules not loaded, keeping the previous ones: %s", error)
