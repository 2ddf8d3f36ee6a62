"""Everything that leaves the core in a turn: events, and messages for connections.

Messages are enqueued to sessions while the turn's input is routed, and handed over by the flush when the caller drains
what to send. Their delivery is observed when the caller drains the events after that: messages enqueued for a
connection that closed before, or reported in between as not taken by the kernel, are not delivered yet.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dovetail.model.address import Address, address_of
from dovetail.model.hop import Observation, Reason, Stage
from dovetail.model.wire import CloseLink, LinkId, Outgoing, SendFrames
from dovetail.pcp.envelope import Salvage
from dovetail.pcp.events import Event, MessageHandled
from dovetail.pcp.message import Message, OutgoingMessage
from dovetail.pcp.session import Session
from dovetail.pcp.vocabulary import is_outcome

_ACCEPTED = Stage.ACCEPTED
_DELIVERED = Stage.DELIVERED


class _Route:
    """The recipients of a message of this turn, which of them its bytes name, and how many have it."""

    __slots__ = ("delivered", "named", "recipients")

    def __init__(self) -> None:
        self.recipients: list[str] = []
        self.named: set[str] = set()
        self.delivered = 0


class Outbound:
    """The turn's events and outgoing messages; also counts observations by stage and reason.

    With `logs_messages`, a MessageHandled per message is added to the events, for an access log.
    """

    def __init__(self, *, logs_messages: bool) -> None:
        self.logs_messages = logs_messages
        self.events: list[Event] = []
        self.accepted_total = 0
        self.delivered_total = 0
        self._others: dict[tuple[str, str], int] = {}
        self._dirty: list[Session] = []
        self._outgoing: list[OutgoingMessage] = []
        self._ready: list[Outgoing] = []
        self._closes: list[CloseLink] = []
        self._handed: list[OutgoingMessage] = []
        self._handed_sessions: list[Session] = []
        self._routes: dict[Address, _Route] = {}

    def pass_on(self, raw: bytes, sender: Session, session: Session, expires_us: int, now: int) -> None:
        """Accept a message and enqueue it unchanged for one session: the data path. The journal stores its bytes."""
        address = address_of(raw)
        self.accepted_total += 1
        self.events.append(
            Observation(
                at_us=now,
                stage=_ACCEPTED,
                message=address,
                counterparts=sender.uri_alone,
                raw=raw,
                expires_us=expires_us,
            )
        )
        outgoing = OutgoingMessage(raw, address, _DELIVERED, now)
        self._outgoing.append(outgoing)
        pending = session.pending
        if not pending:
            self._dirty.append(session)
        pending.append(outgoing)

    def enqueue(self, session: Session, message: Message, payload: bytes, stage: Stage) -> None:
        """Enqueue a message for one session, for the end of the turn."""
        outgoing = OutgoingMessage(payload, message.address, stage, message.accepted_us, message)
        self._outgoing.append(outgoing)
        pending = session.pending
        if not pending:
            self._dirty.append(session)
        pending.append(outgoing)

    def enqueue_all(self, sessions: list[Session], message: Message, payload: bytes) -> None:
        """Enqueue one message for all of these sessions, for the end of the turn; the inner loop of a fan-out."""
        outgoing = OutgoingMessage(payload, message.address, Stage.DELIVERED, message.accepted_us, message, [])
        self._outgoing.append(outgoing)
        mark = self._dirty.append
        for session in sessions:
            pending = session.pending
            if not pending:
                mark(session)
            pending.append(outgoing)

    def accept(self, message: Message, raw: bytes, keeps_body: bool, now: int) -> None:
        """Observe that a message was accepted."""
        self.accepted_total += 1
        self.events.append(
            Observation(
                at_us=now,
                stage=_ACCEPTED,
                message=message.address,
                counterparts=(message.sender,),
                raw=raw if keeps_body else None,
                size=None if keeps_body else len(raw),
                expires_us=message.expires_us,
            )
        )

    def route(self, address: Address, recipients: Iterable[str], named: Iterable[str]) -> None:
        """Observe, directly after acceptance, the recipients of a message that the journal's bytes do not name.

        Recipients whose outcome is among the same events are omitted.
        """
        route = self._routes.setdefault(address, _Route())
        route.recipients += recipients
        route.named.update(named)

    def log_handled(
        self, outcome: str, message: Message, targets: Iterable[str], recipients: int, reason: Reason | None = None
    ) -> None:
        """Add the result of a message to the access log, if there is one."""
        if self.logs_messages:
            self.events.append(
                MessageHandled(
                    outcome=outcome,
                    address=message.address,
                    id=message.id,
                    message_type=message.message_type,
                    sender=message.sender,
                    targets=tuple(targets),
                    recipients=recipients,
                    size=len(message.payload),
                    reason=reason,
                )
            )

    def log_rejected(
        self, address: Address, salvaged: Salvage, sender: str, size: int, reason: Reason, detail: str
    ) -> None:
        """Add a refusal to the access log, if there is one."""
        if self.logs_messages:
            self.events.append(
                MessageHandled(
                    outcome="rejected",
                    address=address,
                    id=salvaged.id or "",
                    message_type=salvaged.message_type,
                    sender=sender,
                    targets=salvaged.targets,
                    recipients=0,
                    size=size,
                    reason=reason,
                    detail=detail,
                )
            )

    def observe(
        self,
        stage: Stage,
        address: Address,
        counterparts: tuple[str, ...],
        now: int,
        reason: Reason | None = None,
        raw: bytes | None = None,
        size: int | None = None,
        expires_us: int | None = None,
    ) -> None:
        """Observe anything except a delivery of this turn."""
        self._count(stage, reason, len(counterparts) or 1)
        self.events.append(
            Observation(
                at_us=now,
                stage=stage,
                message=address,
                counterparts=counterparts,
                reason=reason,
                raw=raw,
                size=size,
                expires_us=expires_us,
            )
        )

    def observe_delivered(self, address: Address, counterparts: tuple[str, ...], now: int) -> None:
        """Observe delivery to the broker itself."""
        self.delivered_total += len(counterparts)
        self.events.append(Observation(at_us=now, stage=Stage.DELIVERED, message=address, counterparts=counterparts))

    def close(self, connection: LinkId, code: int, detail: str) -> None:
        """Close a connection after everything enqueued for it."""
        self._closes.append(CloseLink(connection, code, detail))

    def cancel(self, session: Session) -> None:
        """Do not flush what is enqueued for this session."""
        self._dirty = [other for other in self._dirty if other is not session]

    def flush(self) -> None:
        """Hand over: from here on the caller writes the turn's messages. Call `confirm` for the last flush first."""
        ready = self._ready
        last_outgoing: list[OutgoingMessage] = []
        links: list[LinkId] = []
        more_uris: list[str] = []
        for session in self._dirty:
            pending = session.pending
            if not pending:
                continue  # closed or paused in the meantime; its messages wait
            if pending == last_outgoing:
                links.append(session.connection)
                more_uris.append(session.uri_alone[0])
            else:
                _add_uris(last_outgoing, more_uris)
                more_uris = []
                alone = session.uri_alone
                for outgoing in pending:
                    uris = outgoing.uris
                    if uris.__class__ is list:
                        uris.append(alone[0])
                    else:
                        outgoing.uris = alone
                last_outgoing, links = pending, [session.connection]
                ready.append(SendFrames(links, [outgoing.payload for outgoing in pending]))
            session.pending, session.handed = session.handed, pending  # swapped, to allocate no list
        _add_uris(last_outgoing, more_uris)
        ready += self._closes
        self._closes.clear()
        self._handed_sessions, self._dirty = self._dirty, []
        self._handed, self._outgoing = self._outgoing, []

    def confirm(self, now: int) -> None:
        """Observe the delivery of what was handed over and has not been withheld since."""
        if not self._handed:
            return
        for session in self._handed_sessions:
            session.handed.clear()
        self._handed_sessions.clear()
        append = self.events.append
        for outgoing in self._handed:
            uris = outgoing.uris
            if not uris:
                continue  # no recipient was left
            if outgoing.stage is _DELIVERED:
                self.delivered_total += len(uris)
                append(Observation(at_us=now, stage=_DELIVERED, message=outgoing.address, counterparts=tuple(uris)))
                if self._routes and (route := self._routes.get(outgoing.address)) is not None:
                    route.delivered += len(uris)
            else:
                self._observe_handed(outgoing, tuple(uris), now)
        self._handed.clear()

    def withhold(self, session: Session, unsent_bytes: int) -> None:
        """Do not count as delivered what the kernel has not taken of what was handed to this session."""
        taken = _count_taken(session.handed, unsent_bytes)
        withheld = session.handed[taken:]
        _retract(withheld, session)
        session.unsent = [*session.unsent, *withheld]
        session.handed = session.handed[:taken]

    def settle(self, session: Session, unsent_bytes: int, now: int) -> Sequence[OutgoingMessage]:
        """Observe what the kernel took of what was handed to this session; returns the rest, `unsent_bytes` long."""
        handed = [*session.unsent, *session.handed]
        _retract(session.handed, session)
        session.unsent, session.handed = (), []
        taken = _count_taken(handed, unsent_bytes)
        for outgoing in handed[:taken]:
            self._observe_handed(outgoing, session.uri_alone, now)
        return handed[taken:]

    def _observe_handed(self, outgoing: OutgoingMessage, uris: tuple[str, ...], now: int) -> None:
        if outgoing.stage is Stage.DELIVERED:
            self.delivered_total += len(uris)
        else:
            self._count(outgoing.stage, None, len(uris))
        self.events.append(Observation(at_us=now, stage=outgoing.stage, message=outgoing.address, counterparts=uris))

    def take_events(self) -> list[Event]:
        """Drain the events."""
        events, self.events = self.events, []
        if self._routes:
            events = self._with_routes(events)
        return events

    def _with_routes(self, events: list[Event]) -> list[Event]:
        """Insert, after each acceptance, the recipients without an outcome that the bytes do not name."""
        routes, self._routes = self._routes, {}
        settled: dict[Address, set[str]] = {}
        for address in [address for address, route in routes.items() if route.delivered == len(route.recipients)]:
            del routes[address]
        if not routes:
            return events
        for event in events:
            if isinstance(event, Observation) and event.message in routes:
                ended = [uri for uri in event.counterparts if is_outcome(event.stage, uri)]
                settled.setdefault(event.message, set()).update(ended)
        complete: list[Event] = []
        for event in events:
            complete.append(event)
            if isinstance(event, Observation) and event.stage is _ACCEPTED and event.message in routes:
                route = routes.pop(event.message)
                named = route.named | settled.get(event.message, set())
                owed = tuple(uri for uri in dict.fromkeys(route.recipients) if uri not in named)
                if owed:
                    self._count(Stage.ROUTED, None, len(owed))
                    complete.append(
                        Observation(at_us=event.at_us, stage=Stage.ROUTED, message=event.message, counterparts=owed)
                    )
        return complete

    def _count(self, stage: Stage, reason: Reason | None, count: int) -> None:
        key = (stage.value, "" if reason is None else reason.value)
        self._others[key] = self._others.get(key, 0) + count

    def take_ready(self) -> list[Outgoing]:
        """Drain what was handed over."""
        ready, self._ready = self._ready, []
        return ready

    def counts(self) -> dict[tuple[str, str], int]:
        """How often each (stage, reason) was observed; the reason is empty if there is none."""
        counts = dict(self._others)
        counts["accepted", ""] = self.accepted_total
        counts["delivered", ""] = self.delivered_total
        return counts


def _add_uris(outgoing: Sequence[OutgoingMessage], uris: Sequence[str]) -> None:
    """Add recipients that these messages share, which only messages to several have."""
    if uris:
        for each in outgoing:
            each.uris = [*each.uris, *uris]


def _retract(handed: Sequence[OutgoingMessage], session: Session) -> None:
    for outgoing in handed:
        outgoing.uris = [uri for uri in outgoing.uris if uri != session.uri_alone[0]]


def _count_taken(handed: Sequence[OutgoingMessage], unsent_bytes: int) -> int:
    """How many of these messages the kernel has taken in full, if this much of their frames is unsent."""
    count = len(handed)
    while count and unsent_bytes > 0:
        count -= 1
        unsent_bytes -= _frame_bytes(len(handed[count].payload))
    return count


def _frame_bytes(size: int) -> int:
    """The size of a payload as a server's frame (RFC 6455, 5.2)."""
    return size + (2 if size < 126 else 4 if size < 65_536 else 10)
