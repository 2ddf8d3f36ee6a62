"""Everything that leaves the core in a turn: events, and parcels for connections.

Parcels are put to sessions while the turn's messages are routed and are handed over when the shell drains. Only then is
a delivery observed: parcels of a wire that broke in between go back to wait; the journal says no more than happened.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256

from dovetail.model.address import Address
from dovetail.model.hop import Observation, Reason, Stage
from dovetail.pcp.envelope import Salvage
from dovetail.pcp.events import Event, MessageHandled
from dovetail.pcp.message import Message, Parcel
from dovetail.pcp.session import ConnectionId, Session

_ACCEPTED = Stage.ACCEPTED
_DELIVERED = Stage.DELIVERED
Outgoing = tuple[ConnectionId, list[bytes]]


class Outbound:
    """The turn's events and parcels; also counts what was observed, by stage and reason.

    With `tells_messages` a MessageHandled per message is added to the events, for an access log.
    """

    def __init__(self, *, tells_messages: bool = False) -> None:
        self.tells_messages = tells_messages
        self.events: list[Event] = []
        self.accepted_total = 0
        self.delivered_total = 0
        self._others: dict[tuple[str, str], int] = {}
        self._dirty: list[Session] = []
        self._parcels: list[Parcel] = []
        self._ready: list[Outgoing] = []

    def pass_on(
        self, raw: bytes, sender: Session, session: Session, expires_us: int, keeps_body: bool, now: int
    ) -> None:
        """Accept a message and hand it to one session as it came: `accept` and `put` in one, for the data path."""
        address = Address(sha256(raw).digest())
        self.accepted_total += 1
        self.events.append(
            Observation(
                at_us=now,
                stage=_ACCEPTED,
                message=address,
                counterparts=sender.uri_alone,
                raw=raw if keeps_body else None,
                size=None if keeps_body else len(raw),
                expires_us=expires_us,
            )
        )
        parcel = Parcel(raw, address, _DELIVERED, now)
        self._parcels.append(parcel)
        pending = session.pending
        if not pending:
            self._dirty.append(session)
        pending.append(parcel)

    def put(self, session: Session, message: Message, payload: bytes, stage: Stage) -> None:
        """Hand a parcel of its own to one session at the end of the turn."""
        parcel = Parcel(payload, message.address, stage, message.accepted_us, message)
        self._parcels.append(parcel)
        pending = session.pending
        if not pending:
            self._dirty.append(session)
        pending.append(parcel)

    def put_all(self, sessions: list[Session], message: Message, payload: bytes) -> None:
        """Hand one parcel to all of these sessions at the end of the turn; the inner loop of a fan-out."""
        parcel = Parcel(payload, message.address, Stage.DELIVERED, message.accepted_us, message, [])
        self._parcels.append(parcel)
        mark = self._dirty.append
        for session in sessions:
            pending = session.pending
            if not pending:
                mark(session)
            pending.append(parcel)

    def accept(self, message: Message, raw: bytes, keeps_body: bool, now: int) -> None:
        """Observe that a message was taken in."""
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

    def tell(
        self, outcome: str, message: Message, targets: Iterable[str], recipients: int, reason: Reason | None = None
    ) -> None:
        """Add what became of a message to the access log, if there is one."""
        if self.tells_messages:
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

    def tell_rejected(
        self, address: Address, salvaged: Salvage, sender: str, size: int, reason: Reason, detail: str
    ) -> None:
        """Add a refusal to the access log, if there is one."""
        if self.tells_messages:
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
        """Observe anything but a delivery of this turn."""
        key = (stage.value, "" if reason is None else reason.value)
        self._others[key] = self._others.get(key, 0) + (len(counterparts) or 1)
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
        """Observe what was handed to the broker itself."""
        self.delivered_total += len(counterparts)
        self.events.append(Observation(at_us=now, stage=Stage.DELIVERED, message=address, counterparts=counterparts))

    def release(self, session: Session, now: int) -> None:
        """Hand over the parcels of one session ahead of the others, because it is about to be closed."""
        if not session.pending:
            return
        uri = session.address_for_replies
        self._ready.append((session.connection, [parcel.payload for parcel in session.pending]))
        for parcel in session.pending:
            self._observe_handed(parcel, (uri,), now)
        session.pending = []

    def settle(self, now: int) -> None:
        """Hand over: from here on the turn's parcels are the shell's to write, and their deliveries are observed."""
        if not self._dirty:
            if self._parcels:
                self._parcels.clear()
            return
        ready = self._ready
        append = self.events.append
        last_parcels: list[Parcel] = []
        payloads: list[bytes] = []
        for session in self._dirty:
            parcels = session.pending
            if not parcels:
                continue  # closed in the meantime; its parcels were taken back
            alone = session.uri_alone
            for parcel in parcels:
                uris = parcel.uris
                if uris.__class__ is list:
                    uris.append(alone[0])
                else:
                    parcel.uris = alone
            if parcels != last_parcels:
                payloads = [parcel.payload for parcel in parcels]
                last_parcels = parcels
            ready.append((session.connection, payloads))
            session.pending = []
        self._dirty.clear()
        for parcel in self._parcels:
            uris = parcel.uris
            if not uris:
                continue  # nobody was there any more
            if parcel.stage is _DELIVERED:
                self.delivered_total += len(uris)
                append(Observation(at_us=now, stage=_DELIVERED, message=parcel.address, counterparts=tuple(uris)))
            else:
                self._observe_handed(parcel, tuple(uris), now)
        self._parcels.clear()

    def _observe_handed(self, parcel: Parcel, uris: tuple[str, ...], now: int) -> None:
        if parcel.stage is Stage.DELIVERED:
            self.delivered_total += len(uris)
        else:
            key = (parcel.stage.value, "")
            self._others[key] = self._others.get(key, 0) + len(uris)
        self.events.append(Observation(at_us=now, stage=parcel.stage, message=parcel.address, counterparts=uris))

    def take_events(self) -> list[Event]:
        """Drain the events."""
        events, self.events = self.events, []
        return events

    def take_ready(self) -> list[Outgoing]:
        """Drain what was handed over."""
        ready, self._ready = self._ready, []
        return ready

    def counts(self) -> dict[tuple[str, str], int]:
        """How often each (stage, reason) was observed; the reason is empty where there is none."""
        counts = dict(self._others)
        counts["accepted", ""] = self.accepted_total
        counts["delivered", ""] = self.delivered_total
        return counts
