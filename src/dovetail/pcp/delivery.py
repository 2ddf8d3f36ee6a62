"""Delivers accepted messages to clients: immediately, from the queue of a slow connection, or on reconnection.

Theory of operation. A message for a client that reads goes straight to the turn's outgoing messages. A connection whose
transport is full is paused by the caller; messages for it are held in its outbox, in order, bounded in bytes. When the
transport has room again the outbox is handed over in slices, one per timer call, until the transport is full or the
outbox empty.

When a connection breaks, what was not handed over waits for the client, in order, until it associates again or the
message expires; over the limit the oldest are given up, also if one sender has more waiting than its share. v2 messages
have no lifetime and do not wait, nor do the broker's own except `ttl_expired`: they are useless to a later session.
Each target of each message gets exactly one outcome: delivered, redelivered, undeliverable or expired. `failures`
collects what the broker must tell senders.
"""

from __future__ import annotations

import heapq
from collections import deque
from typing import NamedTuple

from dovetail.model.errors import RemoteProtocolError
from dovetail.model.hop import Reason, Stage
from dovetail.pcp.codec_v1 import Frame
from dovetail.pcp.held import HeldMessages
from dovetail.pcp.lifetimes import Lifetimes
from dovetail.pcp.message import Message, OutgoingMessage
from dovetail.pcp.outbound import Outbound
from dovetail.pcp.session import Held, Session
from dovetail.pcp.settings import PcpSettings
from dovetail.pcp.translation import Renderer

SLICE_BYTES = 256 * 1024
GIVEN_UP = frozenset({Reason.LIFETIME_OVER, Reason.REDELIVERY_OVERFLOW, Reason.SENDER_QUOTA, Reason.HELD_TOO_LONG})
"""Why a waiting message is given up."""
_SLACK = 1_000
_DELIVERED = Stage.DELIVERED


class Failure(NamedTuple):
    """One target will not get a message that was accepted."""

    message: Message
    uri: str
    reason: Reason
    detail: str


class RedeliveryQueue:
    """The messages that wait for one client to reconnect, in order."""

    __slots__ = ("queue", "size")

    def __init__(self) -> None:
        self.queue: deque[Held] = deque()
        self.size = 0


class Delivery:
    """The queues of a broker. `slow` lists sessions over their limit, for the broker to end."""

    def __init__(self, settings: PcpSettings, outbound: Outbound, renderer: Renderer, lifetimes: Lifetimes) -> None:
        self._outbound = outbound
        self._renderer = renderer
        self._queue_bytes = settings.queue_bytes
        self._queue_share = settings.queue_share
        self._redelivery_messages = settings.redelivery_messages
        self._lifetimes = lifetimes
        self.held = HeldMessages(settings.sender_queue_messages, settings.sender_queue_bytes)
        self._waiting: dict[str, RedeliveryQueue] = {}
        self._deadlines: list[tuple[int, int, Held]] = []
        self._deadline_count = 0
        self._draining: dict[Session, None] = {}
        self._unsettled: dict[str, int] = {}
        self.failures: list[Failure] = []
        self.slow: dict[Session, None] = {}

    # Messages for connected clients

    def deliver(self, message: Message, sessions: list[Session], now: int) -> int:
        """Deliver the message to each session; returns how many of them must wait for it."""
        if len(sessions) == 1 and sessions[0].is_direct:  # the common case, without a loop
            session = sessions[0]
            if self._renderer.is_plain and message.origin.__class__ is Frame:
                payload = message.payload
            else:
                payload = self._renderer.render(message, 1, session.uri or "", _DELIVERED, now)
            self._outbound.enqueue(session, message, payload, _DELIVERED)
            return 0
        direct = [session for session in sessions if session.is_direct]
        if direct:
            payload = self._renderer.render(message, 1, direct[0].uri or "", Stage.DELIVERED, now)
            self._outbound.enqueue_all(direct, message, payload)
            if len(direct) == len(sessions):
                return 0
        # chosen up front: on the way a sender over its share may give up messages, which empties other outboxes
        indirect = [session for session in sessions if not session.is_direct]
        return sum(self._deliver_indirect(message, session, now) for session in indirect)

    def _deliver_indirect(self, message: Message, session: Session, now: int) -> bool:
        if session.is_paused or session.outbox or session.is_waiting:
            self._queue(session, Held(message, session.address_for_replies, is_retry=False), now)
            return True
        self._hand_over(session, message, Stage.DELIVERED, now)
        return False

    def deliver_own(self, message: Message, session: Session, now: int) -> None:
        """Deliver one of the broker's messages to one session, associated or not."""
        if session.is_paused or session.outbox:
            self._queue(session, Held(message, session.address_for_replies, is_retry=False), now)
        else:
            self._hand_over(session, message, Stage.DELIVERED, now)

    def _hand_over(self, session: Session, message: Message, stage: Stage, now: int) -> None:
        uri = session.address_for_replies
        try:
            payload = self._renderer.render(message, session.version, uri, stage, now)
        except RemoteProtocolError as error:
            self._outbound.observe(Stage.UNDELIVERABLE, message.address, (uri,), now, error.reason)
            self.failures.append(Failure(message, uri, error.reason, error.detail))
        else:
            self._outbound.enqueue(session, message, payload, stage)

    # Queues of connections

    def pause(self, session: Session, unsent_bytes: int) -> None:
        """The transport is full, with this much left to write: hold messages for this session."""
        self._outbound.withhold(session, unsent_bytes)
        session.is_paused = True
        self._draining.pop(session, None)
        if session.is_closing:
            self._outbound.cancel(session)
            return
        pending, session.pending = session.pending, []
        uri = session.address_for_replies
        held = [Held(each.message, uri, is_retry=each.stage is Stage.REDELIVERED) for each in pending]
        for each in held:  # in order: a sender over its share gives up its oldest message
            self._account(each, session)
        session.open_outbox().extendleft(reversed(held))
        session.refresh_direct()

    def resume(self, session: Session, now: int) -> None:
        """The transport has written everything: the next `drain` hands over what was held."""
        self._outbound.settle(session, 0, now)
        session.is_paused = False
        if session.outbox:
            self._draining[session] = None
        session.refresh_direct()

    def is_draining(self) -> bool:
        """True if a session has more to hand over: `drain` is due immediately."""
        return bool(self._draining)

    def drain(self, now: int) -> None:
        """Hand over the next slice of each outbox that is not paused."""
        for session in tuple(self._draining):
            self._drain(session, now)

    def _drain(self, session: Session, now: int) -> None:
        budget = 0 if session.is_waiting else SLICE_BYTES
        while session.outbox and budget > 0:
            held = session.outbox[0]
            message = held.message
            assert message is not None
            budget -= held.size
            over = self._lifetimes.find_end(message, now)
            if over is not None:
                self._expire(held, over, now)
                continue
            session.outbox.popleft()
            self._release(held)
            stage = Stage.REDELIVERED if held.is_retry else Stage.DELIVERED
            self._hand_over(session, message, stage, now)
            if not message.is_own:
                self._outbound.log_handled(stage.value, message, (held.uri,), 1)
        if session.outbox and not session.is_waiting:
            self._draining[session] = None
        else:
            self._draining.pop(session, None)
        session.refresh_direct()

    def _queue(self, session: Session, held: Held, now: int) -> None:
        assert held.message is not None
        sender = held.message.sender
        is_over = self.held.bytes + self.held.cost(held.message) > self._queue_share or (
            bool(session.outbox) and session.outbox_bytes + held.size > self._queue_bytes
        )
        self._account(held, session)
        session.open_outbox().append(held)
        session.refresh_direct()
        if is_over:
            self.slow[session] = None
        self._trim(sender, now)

    def _trim(self, sender: str, now: int) -> None:
        """Give up the oldest held messages of a sender until it is within its share."""
        while (excess := self.held.find_excess(sender)) is not None:
            self._expire(excess, Reason.SENDER_QUOTA, now)

    # Disconnected clients

    def reclaim(self, session: Session, reason: Reason, now: int, *, keeps_pending: bool) -> None:
        """The session has ended: what was not handed over waits for the client, or gets its outcome.

        With `keeps_pending`, what is enqueued is still handed over. Until `settle`, nothing goes to the client's next
        session, so that order is kept.
        """
        self._draining.pop(session, None)
        self.slow.pop(session, None)
        uri = session.address_for_replies
        if not keeps_pending:
            pending, session.pending = session.pending, []
            for outgoing in pending:
                self._await_return(self._make_held(outgoing, uri), reason, now)
        if session.pending or session.handed or session.unsent:
            session.is_unsettled = True
            self._unsettled[uri] = self._unsettled.get(uri, 0) + 1
        while session.outbox:  # one by one: a sender over its share gives up its oldest, from any queue
            held = session.outbox.popleft()
            session.outbox_bytes -= held.size
            held.session = None
            held.is_retry = True
            self._await_return(held, reason, now)
        session.refresh_direct()

    def settle(self, session: Session, unsent_bytes: int, reason: Reason, now: int) -> None:
        """The connection of an ended session is closed, and this much of what was handed to it was never sent."""
        uri = session.address_for_replies
        unsent = [*self._outbound.settle(session, unsent_bytes, now), *session.pending]
        session.pending = []
        for outgoing in reversed(unsent):
            self._await_return(self._make_held(outgoing, uri), reason, now, is_oldest=True)
        if session.is_unsettled:
            self._unsettled[uri] -= 1
            if not self._unsettled[uri]:
                del self._unsettled[uri]

    def _make_held(self, outgoing: OutgoingMessage, uri: str) -> Held:
        held = Held(outgoing.message, uri, is_retry=True)
        self._account(held, None)
        return held

    def hold(self, message: Message, uri: str, now: int, *, may_have_arrived: bool = False) -> None:
        """Hold a message for a client that is not connected."""
        held = Held(message, uri, is_retry=True, may_have_arrived=may_have_arrived)
        self._account(held, None)
        self._await_return(held, Reason.CONNECTION_LOST, now)

    def _await_return(self, held: Held, reason: Reason, now: int, *, is_oldest: bool = False) -> None:
        message = held.message
        assert message is not None
        if message.expires_us is None:
            self._release(held)
            self._outbound.observe(Stage.UNDELIVERABLE, message.address, (held.uri,), now, reason)
            if not message.is_own:
                self.failures.append(Failure(message, held.uri, reason, "the connection broke before it was written"))
            return
        waiting = self._waiting.get(held.uri)
        if waiting is None:
            waiting = self._waiting[held.uri] = RedeliveryQueue()
        if is_oldest:
            waiting.queue.appendleft(held)
        else:
            waiting.queue.append(held)
        waiting.size += held.size
        over = self._lifetimes.find_end(message, now)
        if over is not None:
            self._expire(held, over, now)
            return
        self._trim(message.sender, now)
        while waiting.queue and (
            len(waiting.queue) > self._redelivery_messages
            or waiting.size > max(self._queue_bytes, held.size)
            or self.held.bytes > self._queue_share
        ):
            self._expire(waiting.queue[0], Reason.REDELIVERY_OVERFLOW, now)

    def redeliver(self, session: Session, now: int) -> None:
        """The client is back: hand over what waited for it, before anything newer."""
        assert session.uri is not None
        session.is_waiting = session.uri in self._unsettled
        if not session.is_waiting and (waiting := self._waiting.pop(session.uri, None)) is not None:
            for held in waiting.queue:
                held.session = session
            session.outbox_bytes += waiting.size
            session.open_outbox().extendleft(reversed(waiting.queue))
        self._drain(session, now)

    # Lifetimes

    def next_deadline(self) -> int | None:
        """When the next held message may expire."""
        while self._deadlines and self._deadlines[0][2].message is None:
            heapq.heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    def expire_due(self, now: int) -> None:
        """Give up held messages whose lifetime is over."""
        while self._deadlines and self._deadlines[0][0] <= now:
            held = heapq.heappop(self._deadlines)[2]
            if held.message is not None:
                over = self._lifetimes.find_end(held.message, now)
                assert over is not None
                self._expire(held, over, now)

    def _expire(self, held: Held, reason: Reason, now: int) -> None:
        message = held.message
        assert message is not None
        if held.session is not None:
            held.session.outbox.remove(held)
            held.session.refresh_direct()
        else:
            waiting = self._waiting[held.uri]
            waiting.queue.remove(held)
            waiting.size -= held.size
            if not waiting.queue:
                del self._waiting[held.uri]
        self._release(held)
        stage = Stage.UNDELIVERABLE if message.expires_us is None else Stage.EXPIRED
        told = Reason.INTERRUPTED if held.may_have_arrived else reason
        self._outbound.observe(stage, message.address, (held.uri,), now, told)
        self.failures.append(Failure(message, held.uri, reason, reason.sentence))

    def _account(self, held: Held, session: Session | None) -> None:
        self.held.add(held)
        held.session = session
        if session is not None:
            session.outbox_bytes += held.size
        message = held.message
        if message is not None and message.expires_us is not None:
            self._deadline_count += 1
            deadline_us = self._lifetimes.end_us(message)
            heapq.heappush(self._deadlines, (deadline_us, self._deadline_count, held))
            if len(self._deadlines) > 2 * self.held.count + _SLACK:
                self._deadlines = [deadline for deadline in self._deadlines if deadline[2].message is not None]
                heapq.heapify(self._deadlines)

    def _release(self, held: Held) -> None:
        self.held.remove(held)
        if held.session is not None:
            held.session.outbox_bytes -= held.size
        held.message = None
