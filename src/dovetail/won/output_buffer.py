"""The output of a core: events, including observations, and what may be sent once these are durable."""

from __future__ import annotations

from collections import Counter

from dovetail.model.address import Address, address_of
from dovetail.model.errors import RemoteProtocolError
from dovetail.model.hop import Observation, Reason, Stage
from dovetail.model.wire import Outgoing, SendFrames
from dovetail.won.events import Event
from dovetail.won.message import Message


class OutputBuffer:
    """Collects output until the driver drains it."""

    def __init__(self, max_evidence_bytes: int) -> None:
        self._max_evidence_bytes = max_evidence_bytes
        self._events: list[Event] = []
        self._outgoing: list[Outgoing] = []
        self.counts: Counter[tuple[Stage, Reason | None]] = Counter()

    def drain_events(self) -> list[Event]:
        """What happened since the last call."""
        events, self._events = self._events, []
        return events

    def drain_outgoing(self) -> list[Outgoing]:
        """What to send since the last call."""
        outgoing, self._outgoing = self._outgoing, []
        return outgoing

    def emit(self, event: Event) -> None:
        """Add an event."""
        self._events.append(event)

    def send(self, item: Outgoing) -> None:
        """Add something to send."""
        self._outgoing.append(item)

    def send_frame(self, link: str, data: bytes) -> None:
        """Add a frame to send."""
        self._outgoing.append(SendFrames((link,), (data,)))

    def observe(self, stage: Stage, message: Message, counterpart: str | None, now: int) -> None:
        """Observe a message with its bytes."""
        counterparts = (counterpart,) if counterpart else ()
        self.counts[stage, None] += 1
        self._events.append(
            Observation(at_us=now, stage=stage, message=message.address, counterparts=counterparts, raw=message.raw)
        )

    def observe_again(
        self, stage: Stage, address: Address, counterpart: str, now: int, reason: Reason | None = None
    ) -> None:
        """Observe a message whose bytes were already observed."""
        self.counts[stage, reason] += 1
        self._events.append(
            Observation(at_us=now, stage=stage, message=address, counterparts=(counterpart,), reason=reason)
        )

    def reject_message(self, message: Message, counterpart: str, reason: Reason, now: int) -> None:
        """Observe the refusal of a readable message."""
        self.counts[Stage.REJECTED, reason] += 1
        self._events.append(
            Observation(
                at_us=now,
                stage=Stage.REJECTED,
                message=message.address,
                counterparts=(counterpart,),
                reason=reason,
                raw=message.raw,
            )
        )

    def reject_frame(
        self, data: bytes, counterpart: str, error: RemoteProtocolError, now: int, *, keep_all: bool = False
    ) -> None:
        """Observe the refusal of bytes that are not a message, or not the one they claim to be."""
        self.counts[Stage.REJECTED, error.reason] += 1
        self._events.append(
            Observation(
                at_us=now,
                stage=Stage.REJECTED,
                message=address_of(data),
                counterparts=(counterpart,),
                reason=error.reason,
                raw=data if keep_all else data[: self._max_evidence_bytes],
                size=len(data),
            )
        )
