"""The broker: a pure state machine between connections.

The caller opens a connection, feeds frames, reports when a transport is full or has room, and closes; then it drains
`events()` and `to_send()` and sets its timer to `next_timer()`. A message is decoded, decided (`decision.py`), and the
decision is executed: the broker's own task or delivery. Nothing here blocks, and no input from a peer raises: bad input
ends as a `rejected` observation and, if the protocol has one, an error message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import msgspec
from msgspec import UNSET

from dovetail.model.address import address_of
from dovetail.model.errors import LocalProtocolError, RemoteProtocolError
from dovetail.model.hop import Hop, Reason, Stage
from dovetail.model.wire import CLOSE_GOING_AWAY, Frame, LinkId, Outgoing
from dovetail.pcp.association import find_refusal
from dovetail.pcp.codec_v1 import decode_frame
from dovetail.pcp.codec_v2 import decode_message, encode_message
from dovetail.pcp.decision import Answer, Associate, Decider, Deliver, Expire, Refuse
from dovetail.pcp.delivery import GIVEN_UP, Delivery
from dovetail.pcp.events import Event, LongListHandled, SessionEnded, SessionOpened, SlowConsumerFound
from dovetail.pcp.frame_template import make_template, match_template
from dovetail.pcp.idle_timers import Timeouts
from dovetail.pcp.inventory import CONNECTED, DISCONNECTED, Changes, Registry, read_request
from dovetail.pcp.lifetimes import Lifetimes
from dovetail.pcp.message import Message, message_of
from dovetail.pcp.outbound import Outbound
from dovetail.pcp.permission_cache import PermissionCache
from dovetail.pcp.recovery import find_unfinished
from dovetail.pcp.refusals import Refusals
from dovetail.pcp.replies import Replies
from dovetail.pcp.routing import Route, Trace, trace_route
from dovetail.pcp.session import DEFAULT_CLIENT_TYPE, DeliverToOne, Session, parse_mount
from dovetail.pcp.settings import PcpSettings
from dovetail.pcp.translation import Renderer
from dovetail.pcp.uri import BROKER_URI, client_uri, parse_uri
from dovetail.pcp.vocabulary import (
    CLOSE_ASSOCIATION_UNSUCCESSFUL,
    CLOSE_LIMIT_EXCEEDED,
    CLOSE_NO_CERTIFICATE,
    CLOSE_SUPERSEDED,
    RULES_CHANGED,
)

LONG_LIST = 64


class Broker:
    """The state of a broker. With `logs_messages`, `events` has a MessageHandled per message, for an access log."""

    def __init__(self, settings: PcpSettings, new_id: Callable[[], str], *, logs_messages: bool = False) -> None:
        self.settings = settings
        self.registry = Registry()
        self._by_uri = self.registry.by_uri
        self._sessions: dict[LinkId, Session] = {}
        self._closing: dict[LinkId, Session] = {}  # closed by us, until the caller reports that they are closed
        self._permissions = PermissionCache(settings)
        self._outbound = Outbound(logs_messages=logs_messages)
        lifetimes = Lifetimes(settings.clock_skew_ms, settings.max_lifetime_ms)
        renderer = Renderer(settings.server_uri if settings.hops else None, settings.translated_ttl_ms * 1000)
        self._delivery = Delivery(settings, self._outbound, renderer, lifetimes)
        self.held = self._delivery.held
        keeps_body = self._permissions.keeps_body
        self._replies = Replies(settings, self._outbound, self._delivery, new_id, keeps_body)
        self._refusals = Refusals(settings, self._outbound, self._replies, keeps_body)
        self._changes = Changes(settings.inventory_batch_ms * 1000)
        self._lifetimes = lifetimes
        self._decide = Decider(self.registry, self._permissions).decide
        self._is_plain = not (settings.hops or logs_messages)
        self._max_bytes = settings.max_message_bytes
        self._timeouts = Timeouts(settings.association_timeout_ms * 1000, settings.idle_timeout_ms * 1000)
        self._now = 0
        self._latest_expired_us = 0

    # Connections

    def receive_opened(self, connection: LinkId, common_name: str | None, path: str, now: int) -> None:
        """A connection was upgraded on this path, by a client whose certificate has this common name.

        Without a name, on a plain connection, a v1 client is believed and a v2 client refused.
        """
        self._now = now
        mount = parse_mount(path, self.settings)
        if mount is None or connection in self._sessions:
            raise LocalProtocolError(f"connection {connection} cannot be opened on path {path[:80]!r}")
        session = self._sessions[connection] = Session(connection, common_name, mount, now)
        self._timeouts.watch(session, now)
        if mount.version == 1:
            return
        if common_name is None:
            self._close(session, CLOSE_NO_CERTIFICATE, "no name without a certificate", Reason.CONNECTION_LOST, now)
            return
        uri = client_uri(common_name, mount.client_type or DEFAULT_CLIENT_TYPE)
        refusal = find_refusal(session, uri, self._permissions.authorization)
        if refusal is not None:
            self._refusals.report_client(session, uri, refusal.reason, refusal.detail)
            self._close(session, CLOSE_ASSOCIATION_UNSUCCESSFUL, refusal.detail, Reason.CONNECTION_LOST, now)
            return
        self._register(session, uri, now)

    def receive_closed(self, connection: LinkId, now: int, unsent_bytes: int = 0) -> None:
        """A connection was closed, by either side; what the kernel has not taken for it waits for the client.

        `unsent_bytes` is how much of what was sent the transport is known not to have written.
        """
        self._now = now
        session = self._sessions.get(connection)
        if session is not None:
            self._end(session, Reason.CONNECTION_LOST, now)
        session = self._closing.pop(connection, None)
        if session is None:
            return
        self._delivery.settle(session, unsent_bytes, Reason.CONNECTION_LOST, now)
        successor = self._by_uri.get(session.uri or "")
        if successor is not None and successor.is_waiting:
            self._delivery.redeliver(successor, now)
        self._finish(now)

    def receive_broken(self, connection: LinkId, now: int) -> None:
        """A connection was closed, but frames from it remain to be fed; `receive_closed` must follow."""
        self._now = now
        session = self._sessions.get(connection) or self._closing.get(connection)
        if session is not None:
            self._delivery.pause(session, 0)

    def receive_ping(self, connection: LinkId, now: int) -> None:
        """A ping or pong: the client is alive."""
        session = self._sessions.get(connection)
        if session is not None:
            session.last_seen_us = now

    def receive_paused(self, connection: LinkId, unsent_bytes: int, now: int) -> None:
        """The transport of this connection is full: hold messages for it.

        `unsent_bytes` is how much of what was sent the kernel has not taken: that is not delivered. Call this and
        `receive_resumed` immediately, regardless of other pending input.
        """
        self._now = now
        session = self._sessions.get(connection) or self._closing.get(connection)
        if session is not None:
            self._delivery.pause(session, unsent_bytes)

    def receive_resumed(self, connection: LinkId, now: int) -> None:
        """The kernel has taken everything; `handle_timer` is due."""
        self._now = now
        session = self._sessions.get(connection) or self._closing.get(connection)
        if session is not None:
            self._delivery.resume(session, now)

    def close(self, connection: LinkId, code: int, detail: str, now: int) -> None:
        """End a session for the operator: revoked certificate, shutdown."""
        self._now = now
        session = self._sessions.get(connection)
        if session is not None:
            self._close(session, code, detail, Reason.SHUTTING_DOWN, now, flushes=True)
            self._finish(now)

    def _register(self, session: Session, uri: str, now: int) -> None:
        before = self.registry.add(uri, session)
        session.associate(uri)
        if before is None:
            self._changes.note(uri, CONNECTED, now)
        elif before is not session:
            # The new connection already got its success response; a late close of the old one changes nothing.
            self._close(before, CLOSE_SUPERSEDED, "superseded", Reason.SUPERSEDED, now)
        self._outbound.events.append(SessionOpened(connection=session.connection, uri=uri, version=session.version))
        self._delivery.redeliver(session, now)
        self._finish(now)

    def _close(
        self, session: Session, code: int, detail: str, reason: Reason, now: int, *, flushes: bool = False
    ) -> None:
        """With `flushes`, what is enqueued is still sent, unless the transport is full."""
        self._outbound.close(session.connection, code, detail)
        self._end(session, reason, now, flushes=flushes and not session.is_paused)

    def _end(self, session: Session, reason: Reason, now: int, *, flushes: bool = False) -> None:
        del self._sessions[session.connection]
        self._closing[session.connection] = session
        session.is_closing = True
        self._changes.unsubscribe(session)
        uri = session.uri
        was_registered = uri is not None and self.registry.remove(uri, session)
        self._delivery.reclaim(session, reason, now, keeps_pending=flushes)
        if uri is not None:
            if was_registered:
                self._changes.note(uri, DISCONNECTED, now)
            self._outbound.events.append(
                SessionEnded(connection=session.connection, uri=uri, was_superseded=not was_registered)
            )

    # Frames

    def receive_frame(self, data: bytes, connection: LinkId, now: int, is_text: bool = False) -> None:
        """A whole WebSocket message."""
        self.receive_frames(((data, connection, is_text),), now)

    def receive_frames(self, frames: Iterable[Frame], now: int) -> None:
        """Receive whole WebSocket messages in order: the bytes, the connection, and whether it was text."""
        self._now = now
        find_session, pass_on, delivery = self._sessions.get, self._outbound.pass_on, self._delivery
        latest_expired_us = self._latest_expired_us = self._lifetimes.latest_expired_us(now)
        for data, connection, is_text in frames:
            session = find_session(connection)
            if session is None:
                continue  # closed by us; the peer could not know yet
            session.last_seen_us = now
            template = session.template
            if template is not None:
                expires_us = None if is_text else match_template(template, data)
                if expires_us is not None:
                    decision = session.decision
                    if decision is not None and decision.receiver.is_direct and expires_us > latest_expired_us:
                        pass_on(data, session, decision.receiver, expires_us, now)
                        continue
                session.drop_template()  # rebuilt once the sender settles on another target
            try:
                if session.version == 2:
                    self._receive_v2(data, session, now, is_text)
                else:
                    self._receive_v1(data, session, now, is_text)
            except RemoteProtocolError as error:
                self._refuse(session, data, Refuse(error.reason, error.detail), now)
            if delivery.slow or delivery.failures:
                self._finish(now)

    def receive_refused(self, data: bytes, connection: LinkId, now: int, reason: Reason, size: int) -> None:
        """The transport refused an incomplete frame: too large, or too many fragments. `data` is what arrived of it."""
        self._now = now
        session = self._sessions.get(connection)
        if session is not None:
            self._refusals.refuse_part(session, data, reason, size, now)

    def _receive_v1(self, data: bytes, session: Session, now: int, is_text: bool) -> None:
        if is_text:
            raise RemoteProtocolError(Reason.WRONG_FRAME, "text frame, expected binary")
        frame = decode_frame(data, self._max_bytes, self._by_uri)
        envelope = frame.envelope
        targets, expires_us = envelope.targets, frame.expires_us
        wants_report = envelope.destination_report is True
        if len(targets) > LONG_LIST:
            self._outbound.events.append(LongListHandled(connection=session.connection, entries=len(targets)))
        is_expired = expires_us <= self._latest_expired_us
        decision = self._decide(session, envelope.sender, envelope.message_type, targets, is_expired)
        if (
            isinstance(decision, DeliverToOne)
            and decision.receiver.is_direct
            and decision.keeps_body
            and self._is_plain
            and frame.forward is data
            and not wants_report
        ):
            if session.last_target == targets[0]:  # only worth it for a sender that keeps the same target
                session.template, session.decision = make_template(data, frame), decision
            session.last_target = targets[0]
            self._outbound.pass_on(data, session, decision.receiver, expires_us, now)
        elif isinstance(decision, Refuse):
            self._refuse(session, data, decision, now)
        else:
            message = message_of(frame, address_of(data), now)
            self._carry_out(decision, message, wants_report, frame.data, data, session, now)

    def _receive_v2(self, data: bytes, session: Session, now: int, is_text: bool) -> None:
        assert session.uri is not None
        if not is_text:
            raise RemoteProtocolError(Reason.WRONG_FRAME, "binary frame, expected text")
        origin = decode_message(data, self._max_bytes)
        payload, sender = data, origin.sender
        if sender is UNSET:
            sender = session.uri
            origin = msgspec.structs.replace(origin, sender=sender)
            payload = encode_message(origin)
        target = BROKER_URI if origin.target is UNSET else origin.target
        if parse_uri(target).is_wildcard:
            raise RemoteProtocolError(Reason.INVALID_SCHEMA, f"target {target!r}: version 2 has no multicast")
        decision = self._decide(session, sender, origin.message_type, [target], is_expired=False)
        if isinstance(decision, Refuse):
            self._refuse(session, data, decision, now)
            return
        message = Message(address_of(data), origin.id, origin.message_type, session.uri, now, None, origin, payload)
        content = None if origin.data is UNSET else bytes(origin.data)
        self._carry_out(decision, message, False, content, data, session, now)

    def _carry_out(
        self,
        decision: DeliverToOne | Deliver | Expire | Associate,
        message: Message,
        wants_report: bool,
        content: bytes | None,
        raw: bytes,
        session: Session,
        now: int,
    ) -> None:
        self._outbound.accept(message, raw, decision.keeps_body, now)
        if isinstance(decision, DeliverToOne):
            route = Route({decision.receiver.address_for_replies: decision.receiver}, [], [], False)
        else:
            route = decision.route
        match decision:
            case Expire():
                self._expire_on_arrival(session, message, route, now)
            case Associate():
                self._associate(session, message, route.broker, now)
            case Deliver() | DeliverToOne():
                if route.has_wildcard or not decision.keeps_body:
                    self._outbound.route(
                        message.address, route.sessions, message.targets if decision.keeps_body else ()
                    )
                self._deliver(message, route, wants_report, content, session, now)

    def _expire_on_arrival(self, session: Session, message: Message, route: Route, now: int) -> None:
        missed = (*route.sessions, *route.unmatched, *route.broker)
        self._outbound.observe(Stage.EXPIRED, message.address, missed, now, Reason.LIFETIME_OVER)
        self._replies.expire(session, message, now)
        self._outbound.log_handled("expired", message, missed, 0, Reason.LIFETIME_OVER)

    def _deliver(
        self, message: Message, route: Route, wants_report: bool, content: bytes | None, session: Session, now: int
    ) -> None:
        is_for_broker_only = bool(route.broker) and not (route.sessions or route.unmatched)
        if route.broker:
            self._serve(message, route.broker, content, session, now)
        if wants_report and not is_for_broker_only:
            self._replies.report(session, message.id, sorted(route.sessions), now)
        if route.unmatched or not (route.sessions or route.broker):
            self._report_unmatched(session, message, route.unmatched, now)
        queued = self._delivery.deliver(message, list(route.sessions.values()), now) if route.sessions else 0
        outcome = "queued" if queued else "routed" if route.sessions or route.broker else "undeliverable"
        self._outbound.log_handled(outcome, message, message.targets, len(route.sessions))

    def _report_unmatched(self, session: Session, message: Message, unmatched: list[str], now: int) -> None:
        """Targets that match no client: a v1 sender is not notified, a v2 sender gets an error."""
        self._outbound.observe(Stage.UNDELIVERABLE, message.address, tuple(unmatched), now, Reason.NO_RECIPIENT)
        if session.version == 2:
            self._replies.refuse(session, message.id, f"{unmatched[0]} is not connected", now)

    # The broker's own tasks

    def _associate(self, session: Session, message: Message, targets: list[str], now: int) -> None:
        self._outbound.observe_delivered(message.address, tuple(targets), now)
        is_new = session.uri is None
        session.associate(message.sender)
        self._replies.associate(session, message.id, now)
        self._outbound.log_handled("routed", message, targets, 0)
        if is_new:
            self._register(session, message.sender, now)

    def _serve(self, message: Message, targets: list[str], content: bytes | None, session: Session, now: int) -> None:
        """Handle a message addressed to the broker: its type names the task."""
        try:
            patterns, is_subscribing = read_request(message.message_type, content)
        except RemoteProtocolError as error:
            self._outbound.observe(Stage.REJECTED, message.address, tuple(targets), now, error.reason)
            self._replies.refuse(session, message.id, f"{message.message_type}: {error.detail}", now)
            return
        self._outbound.observe_delivered(message.address, tuple(targets), now)
        if is_subscribing:
            self._changes.subscribe(session, patterns)
        else:
            self._changes.unsubscribe(session)
        uris = self.registry.expand(patterns.patterns)
        if len(uris) > LONG_LIST:
            self._outbound.events.append(LongListHandled(connection=session.connection, entries=len(uris)))
        self._replies.inventory(session, message.id, uris, now)

    # Refusals, and notices to senders

    def _refuse(self, session: Session, raw: bytes, refusal: Refuse, now: int) -> None:
        self._refusals.refuse(session, raw, refusal, now)
        if refusal.answer is Answer.ASSOCIATION_REFUSED:
            self._close(session, CLOSE_ASSOCIATION_UNSUCCESSFUL, refusal.detail, refusal.reason, now, flushes=True)

    def _finish(self, now: int) -> None:
        """Close slow sessions and notify senders of failures, until none is left: each can cause the other."""
        delivery = self._delivery
        while delivery.slow or delivery.failures:
            for session in tuple(delivery.slow):
                uri = session.address_for_replies
                self._outbound.events.append(
                    SlowConsumerFound(connection=session.connection, uri=uri, queued_bytes=session.outbox_bytes)
                )
                self._close(session, CLOSE_LIMIT_EXCEEDED, "queue limit exceeded", Reason.SLOW_CONSUMER, now)
            failures, delivery.failures = delivery.failures, []
            for failure in failures:
                self._outbound.log_handled(
                    "expired" if failure.reason in GIVEN_UP else "undeliverable",
                    failure.message,
                    (failure.uri,),
                    0,
                    failure.reason,
                )
                if not failure.message.is_own:
                    self._replies.notify_failure(self._by_uri.get(failure.message.sender), failure, now)

    # Time

    def handle_timer(self, now: int) -> None:
        """Do what is due; call it at `next_timer()` or at any other time."""
        self._now = now
        for session in self._timeouts.take_unassociated(now):
            detail = "no association in time"
            self._close(session, CLOSE_ASSOCIATION_UNSUCCESSFUL, detail, Reason.ASSOCIATION_TIMEOUT, now)
        for session in self._timeouts.take_idle(self._sessions.values(), now):
            self._close(session, CLOSE_GOING_AWAY, "idle", Reason.CONNECTION_LOST, now)
        if self._changes.is_due(now):
            for session, changes in self._changes.take():
                self._replies.update(session, changes, now)
        self._refusals.note(now)
        self._delivery.expire_due(now)
        self._delivery.drain(now)
        self._finish(now)

    def next_timer(self) -> int | None:
        """When `handle_timer` is due; None if nothing is scheduled."""
        if self._delivery.is_draining():
            return self._now
        due = self._timeouts.next_us()
        for time in (self._changes.due_us, self._refusals.due_us, self._delivery.next_deadline()):
            if time is not None and (due is None or time < due):
                due = time
        return due

    # Output

    def events(self) -> list[Event]:
        """Drain the events, including delivery of what `to_send` returned before and `receive_paused` did not name."""
        self._outbound.confirm(self._now)
        return self._outbound.take_events()

    def to_send(self) -> list[Outgoing]:
        """Drain what to write, per connection the messages in order, and the connections to close.

        For every connection that cannot be written to, call `receive_paused` before `events`.
        """
        self._outbound.confirm(self._now)
        self._outbound.flush()
        return self._outbound.take_ready()

    def change_rules(self, settings: PcpSettings, now: int) -> list[LinkId]:
        """Apply the rules, types and groups of `settings` from now on; messages accepted before are still delivered.

        Returns the connections that could no longer associate, for the caller to close.
        """
        self._now = now
        changed = {"rules": settings.rules, "types": settings.types, "groups": settings.groups}
        self.settings = msgspec.structs.replace(self.settings, **changed)
        self._permissions.change_rules(settings, self._sessions.values())
        self._replies.note(RULES_CHANGED, changed, now)
        associated = [session for session in self._sessions.values() if session.uri is not None]
        for session in associated:
            if session.subscription is not None and not self._permissions.may_subscribe(session):
                self._changes.unsubscribe(session)
        return [session.connection for session in associated if not self._permissions.may_associate(session)]

    def trace(self, sender: str, message_type: str, targets: list[str]) -> Trace:
        """Who would get a message and which rule decides, without delivering it."""
        return trace_route(sender, message_type, targets, self._permissions.authorization, self.registry)

    def restore(self, hops: Iterable[Hop], now: int) -> None:
        """After a restart: messages without an outcome wait for their recipient, or get one if they cannot wait."""
        self._now = now
        for address, uri, message in find_unfinished(hops):
            if message is None:
                self._outbound.observe(Stage.UNDELIVERABLE, address, (uri,), now, Reason.INTERRUPTED)
            else:
                self._delivery.hold(message, uri, now, may_have_arrived=True)
        self._finish(now)

    # Numbers for metrics

    @property
    def connection_count(self) -> int:
        """Open connections, associated or not."""
        return len(self._sessions)

    @property
    def queued_bytes(self) -> int:
        """Bytes of all held messages."""
        return self.held.bytes

    @property
    def sampled_refusals(self) -> Mapping[str, int]:
        """How many refusals were only counted, by reason."""
        return self._refusals.skipped

    def counts(self) -> dict[tuple[str, str], int]:
        """How often each (stage, reason) was observed."""
        return self._outbound.counts()

    def backlogs(self) -> dict[str, int]:
        """Queued bytes of each connection that has any: the currently slow ones."""
        sessions = [session for session in self._sessions.values() if session.outbox_bytes]
        return {session.address_for_replies: session.outbox_bytes for session in sessions}
