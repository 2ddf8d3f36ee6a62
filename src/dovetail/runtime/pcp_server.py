"""The broker on sockets: feeds the core, journals what it saw, sends, and sets the timer again.

Theory of operation. Messages that arrive in one turn of the event loop are collected in the inbox; the first of them
plans one flush at the turn's end. The flush feeds them to the core, gives the observations to the journal, and writes
to each connection once, without an `await`. Other events of a connection are fed at once, after what came before.

The gate. With durability `full`, observations are appended and waited for; until the disk has them, the inbox is kept
and nothing is sent. Connections that close meanwhile are told to the core, which keeps their messages. With `relaxed`
durability the turn is sent first, so that what was accepted and delivered goes to the journal in one write, and the
gate closes only while the journal's queue is at its bound: traffic waits for the disk, and no hop is lost.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
import uuid
from collections.abc import Callable, Coroutine, Sequence
from typing import Protocol, assert_never

from dovetail.model.errors import ConfigError, DovetailError, JournalError
from dovetail.model.hop import Observation, Reason
from dovetail.model.wire import CloseLink, Frame, LinkId, Outgoing, SendFrames
from dovetail.pcp.broker import Broker
from dovetail.pcp.events import Event, MessageHandled, SessionEnded, SessionOpened, SlowConsumerFound
from dovetail.pcp.session import parse_mount
from dovetail.pcp.settings import PcpSettings, Rule, check_settings
from dovetail.pcp.vocabulary import (
    CLOSE_ASSOCIATION_UNSUCCESSFUL,
    CLOSE_GOING_AWAY,
    CLOSE_LIMIT_EXCEEDED,
    CLOSE_NO_CERTIFICATE,
    CLOSE_REVOKED,
)
from dovetail.runtime.acceptor import Acceptor, HandshakeLimits
from dovetail.runtime.certificate_metrics import CertificateCollector
from dovetail.runtime.clock import now_us
from dovetail.runtime.frames import Memory, encode_frames
from dovetail.runtime.http import Reply
from dovetail.runtime.link_metrics import LinkCollector
from dovetail.runtime.metrics import Health, MetricsServer
from dovetail.runtime.pcp_access import access, log_message
from dovetail.runtime.pcp_metrics import BrokerMetrics
from dovetail.runtime.tls import RevocationList, ServerTls, common_name, serial_number
from dovetail.runtime.websocket import LINGER_S, Accept, Limits, Link, LinkHandler, Request, listen

REVOCATION_CHECK_S = 2.0
RETRY_S = 0.01
DRAIN_CHECK_S = 0.02
MAX_INBOX_BYTES = 64 * 1024 * 1024
MAX_UNASSOCIATED_BYTES = 64 * 1024

log = logging.getLogger("dovetail.pcp")


class Journal(Protocol):
    """What the broker needs of a journal."""

    async def append_async(self, observations: Sequence[Observation]) -> int: ...

    def write(self, observations: Sequence[Observation]) -> None: ...


class PcpServer(LinkHandler[LinkId]):
    """A broker that listens. `start` it, wait on `failed` or your own signal, then `stop` it."""

    def __init__(self, settings: PcpSettings, journal: Journal | None = None) -> None:
        check_settings(settings)
        self.settings = settings
        self._journal = journal
        self._is_full = journal is not None and settings.durability == "full"
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
        self.memory = Memory(settings.total_queue_bytes)
        self._metrics_server = MetricsServer(self.metrics.registry, self.health)
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_planned = False
        self._is_gated = False
        self._is_reading = True
        self._is_draining = False
        self._inbox: list[Frame] = []
        self._inbox_bytes = 0  # counted only while it is gated
        self._closed_while_gated: list[tuple[LinkId, int]] = []
        self._now = 0
        self._turn_began = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due: int | None = None
        self.port = 0
        self.metrics_port: int | None = None
        self.failed: asyncio.Future[None] | None = None

    # Life

    async def start(self) -> None:
        """Listen."""
        settings = self.settings
        self._loop = asyncio.get_running_loop()
        self.failed = self._loop.create_future()
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
                handshake=HandshakeLimits(
                    timeout_s=settings.handshake_timeout_ms / 1000,
                    tls_at_once=settings.max_handshakes,
                    tls_per_s=settings.handshakes_per_s,
                ),
            ),
            memory=self.memory,
        )
        self.metrics.registry.register(LinkCollector(self._acceptor, self.memory))
        self.port = self._acceptor.port
        scheme = "ws" if settings.insecure_plain else "wss"
        log.info("listening on %s://%s:%d", scheme, settings.host, self.port)

    async def stop(self) -> None:
        """Take no more connections, write what is queued as far as it goes in time, close. Safe to call twice."""
        if self._is_draining:
            return
        self._is_draining = True
        if self._acceptor is not None:
            self._acceptor.close()
        deadline = self._loop.time() + self.settings.drain_timeout_ms / 1000
        await self._wait_until(lambda: not (self._is_busy() or self._unwritten_bytes()), deadline)
        self._now = now_us()
        self._feed()
        for connection in list(self._connections):
            self.broker.close(connection, CLOSE_GOING_AWAY, "shutting down", self._now)
        self._plan()
        # what was handed over is journaled as delivered or not once the connections are closed
        await self._wait_until(lambda: not (self._is_busy() or self._connections), self._loop.time() + LINGER_S)
        for remaining in list(self._connections.values()):
            remaining.abort()
        await self._wait_until(lambda: not (self._is_busy() or self._connections), self._loop.time() + LINGER_S)
        for task in tuple(self._tasks):
            task.cancel()
        if self._timer is not None:
            self._timer.cancel()
        await self._metrics_server.stop()
        log.info("stopped")

    async def _wait_until(self, is_done: Callable[[], object], deadline: float) -> None:
        while not is_done() and self._loop.time() < deadline:  # noqa: ASYNC110 - only while stopping
            await asyncio.sleep(DRAIN_CHECK_S)

    def _is_busy(self) -> bool:
        return self._is_planned or self._is_gated or bool(self.broker.backlogs())

    def health(self) -> Health:
        """What `/healthz` says."""
        if self._is_draining:
            return Health(False, "draining")
        if self.failed is not None and self.failed.done():
            return Health(False, "the journal failed")
        return Health(True, "ok")

    def _unwritten_bytes(self) -> int:
        return sum(link.unsent_bytes for link in self._connections.values())

    def _spawn(self, work: Coroutine[object, object, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # What happens to links

    def _admit(self, request: Request) -> Accept[LinkId] | Reply:
        """Refuse before the upgrade: clients then back off, while a close brings them back at once."""
        path = request.path.decode("latin-1")
        if parse_mount(path, self.settings) is None:
            refusal = Reply(404)
        elif self._is_draining or len(self._connections) >= self.settings.max_connections:
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
        if not self._is_reading:
            link.set_reading(False)
        if mount.version == 2:
            self._texts.add(connection)
        else:
            self._opened_at[connection] = self._loop.time()
        self._plan()
        self._feed()
        self.broker.receive_opened(connection, name, label, self._now)

    def _refuse(self, link: Link, name: str, code: int, detail: str) -> None:
        log.warning("connection refused peer=%s certificate=%s: %s", link.peer, name, detail)
        self.metrics.closes.labels(str(code)).inc()
        link.close(code, detail)

    def frame(self, data: bytes, link: LinkId, is_text: bool) -> None:
        """A whole message; the hot path."""
        if not self._is_planned:
            self._plan()
        self._inbox.append((data, link, is_text))
        if self._is_gated:
            self._inbox_bytes += len(data)
            if self._inbox_bytes > MAX_INBOX_BYTES and self._is_reading:
                self._set_reading(False)  # the disk is slower than the network: let TCP slow the senders down

    def _set_reading(self, wanted: bool) -> None:
        self._is_reading = wanted
        for link in self._connections.values():
            link.set_reading(wanted)

    def pinged(self, link: LinkId) -> None:
        """A ping or a pong."""
        self.broker.receive_ping(link, now_us())

    def refused(self, data: bytes, link: LinkId, reason: Reason, size: int) -> None:
        """A message that was not taken in whole."""
        self._plan()
        self._feed()
        self.broker.receive_refused(data, link, self._now, reason, size)

    def paused(self, link: LinkId) -> None:
        """The kernel takes no more for this connection."""
        self.broker.receive_paused(link, self._connections[link].unsent_bytes, now_us())

    def resumed(self, link: LinkId) -> None:
        """The kernel has taken everything."""
        self._plan()
        self.broker.receive_resumed(link, self._now)

    def closed(self, link: LinkId, code: int) -> None:  # noqa: ARG002
        """The connection is gone."""
        connection = self._connections.pop(link, None)
        if connection is None:
            return
        self._texts.discard(link)
        self._opened_at.pop(link, None)
        self._serials.pop(link, None)
        self._plan()
        if self._is_gated:
            # What it sent before must be fed first; but nothing more may be handed over to it.
            self.broker.receive_broken(link, self._now)
            self._closed_while_gated.append((link, connection.lost_bytes))
        else:
            self._feed()
            self.broker.receive_closed(link, self._now, connection.lost_bytes)

    # A turn

    def _plan(self) -> None:
        """Have one flush at the end of this turn."""
        if not self._is_planned:
            self._is_planned = True
            self._now = now_us()
            self._turn_began = time.perf_counter()
            self._loop.call_soon(self._flush)

    def _feed(self) -> None:
        """Give the core what has arrived, unless the gate is closed."""
        if self._is_gated or not self._inbox:
            return
        inbox, self._inbox, self._inbox_bytes = self._inbox, [], 0
        if not self._is_reading:
            self._set_reading(True)
        left = iter(inbox)
        while True:
            try:
                self.broker.receive_frames(left, self._now)
                return
            except Exception:
                rest = list(left)
                failed = inbox[len(inbox) - len(rest) - 1][1]
                log.exception("connection %s is closed: its message could not be handled", failed)
                self.broker.close(failed, CLOSE_LIMIT_EXCEEDED, "internal error", self._now)
                left = iter(rest)

    def _flush(self) -> None:
        self._is_planned = False
        if self._is_gated:
            return
        try:
            self._feed()
            if not self._is_full:
                self._write(self.broker.to_send())
            events = self.broker.events()
            observations = [event for event in events if isinstance(event, Observation)]
            if observations and self._journal is not None:
                if self._is_full:
                    self._close_gate(observations, events)
                    return
                try:
                    self._journal.write(observations)
                except JournalError as error:
                    if not error.retriable:
                        raise
                    self.metrics.journal_delays.inc()
                    self._close_gate(observations, events)
                    return
            self._send(events, len(observations))
        except Exception as error:
            self._fail(error)

    def _send(self, events: list[Event], observation_count: int) -> None:
        if self._is_full and (outgoing := self.broker.to_send()):
            self._write(outgoing)
            self._plan()  # its delivery is among the next events
        if observation_count != len(events):
            for event in events:
                if event.__class__ is not Observation:
                    self._act(event)
        self._arm()
        self.metrics.turns.observe(time.perf_counter() - self._turn_began)

    def _write(self, outgoing: list[Outgoing]) -> None:
        connections = self._connections
        texts = self._texts
        last: Sequence[bytes] | None = None
        frames = b""
        for item in outgoing:
            if isinstance(item, SendFrames):
                connection = connections.get(item.link)
                if connection is None:
                    continue  # refused or gone; the core was told
                if item.frames is not last:
                    last = item.frames
                    frames = encode_frames(item.frames, item.link in texts)
                connection.write(frames)
                if connection.is_broken:  # by this write, or it would not be here any more
                    self.broker.receive_paused(item.link, len(frames), self._now)
            elif isinstance(item, CloseLink):
                self.metrics.closes.labels(str(item.code)).inc()
                closing = connections.get(item.link)
                if closing is not None:
                    closing.close(item.code, item.detail)

    def _act(self, event: Event) -> None:
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
            case Observation():
                pass
            case _:
                assert_never(event)

    # The gate

    def _close_gate(self, observations: list[Observation], events: list[Event]) -> None:
        self._is_gated = True
        self._spawn(self._commit(observations, events))

    async def _commit(self, observations: list[Observation], events: list[Event]) -> None:
        """Wait until the journal has the observations, then send and let the next turn begin."""
        assert self._journal is not None
        try:
            while True:
                try:
                    if self._is_full:
                        await self._journal.append_async(observations)
                    else:
                        self._journal.write(observations)
                    break
                except JournalError as error:
                    if not error.retriable:
                        raise
                    await asyncio.sleep(RETRY_S)
            self._send(events, len(observations))
        except Exception as error:
            self._fail(error)
            return
        self._is_gated = False
        self._plan()
        self._feed()
        closed, self._closed_while_gated = self._closed_while_gated, []
        for connection, lost_bytes in closed:
            self.broker.receive_closed(connection, self._now, lost_bytes)

    def _fail(self, error: Exception) -> None:
        """The broker cannot keep its promises: stop promising."""
        if not isinstance(error, DovetailError):  # whoever runs the broker tells those
            log.critical("the broker stops", exc_info=error)
        self._is_gated = True
        if self.failed is not None and not self.failed.done():
            self.failed.set_exception(error)

    # Time

    def _arm(self) -> None:
        due = self.broker.next_timer()
        if due is None or (self._timer_due is not None and self._timer_due <= due):
            return  # an early timer does no harm: it sets itself again
        if self._timer is not None:
            self._timer.cancel()
        self._timer_due = due
        self._timer = self._loop.call_later(max(0, due - now_us()) / 1_000_000, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = self._timer_due = None
        self._plan()
        if not self._is_gated:
            self._feed()
            self.broker.handle_timer(self._now)

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
                log.error("revocation list not read, the last one stays: %s", error)
                continue
            revoked = [connection for connection, serial in self._serials.items() if serial in new]
            if revoked:
                log.warning("%d connections have a revoked certificate", len(revoked))
                self._spawn(self._close_spread(revoked, CLOSE_REVOKED, "certificate revoked"))

    async def _close_spread(self, connections: Sequence[LinkId], code: int, detail: str) -> None:
        """Close them spread over time, so that they do not all come back at once."""
        pause = self.settings.revocation_spread_ms / 1000 / len(connections)
        for connection in connections:
            self._plan()
            self._feed()
            self.broker.close(connection, code, detail, self._now)
            await asyncio.sleep(pause)

    def change_rules(self, rules: tuple[Rule, ...]) -> None:
        """From now on these rules decide; connections that they do not let associate are closed, spread over time."""
        self._plan()
        self._feed()
        refused = self.broker.change_rules(rules, self._now)
        self.metrics.rule_changes.labels("done").inc()
        log.warning("rules changed: %d rules decide now, %d connections are closed by them", len(rules), len(refused))
        if refused:
            self._spawn(self._close_spread(refused, CLOSE_ASSOCIATION_UNSUCCESSFUL, "not authorised to associate"))

    def keep_rules(self, error: DovetailError) -> None:
        """New rules could not be read: say so; the old ones stay."""
        self.metrics.rule_changes.labels("failed").inc()
        log.error("rules not read, the old ones stay: %s", error)
