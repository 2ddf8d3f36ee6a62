"""A message in transit through the broker, and the forms it takes there.

A `Message` was accepted, or created here. An `OutgoingMessage` is one message in the bytes that certain clients get in
this turn; all recipients of a fan-out share one. A message that is passed on unchanged is decoded to a `Message` again
only if it has to wait after all.
"""

from __future__ import annotations

import msgspec
from msgspec import UNSET

from dovetail.model.address import Address
from dovetail.model.hop import Stage
from dovetail.pcp.codec_v1 import Frame, decode_frame
from dovetail.pcp.envelope import MessageV2
from dovetail.pcp.uri import BROKER_URI


class Message(msgspec.Struct, gc=False, eq=False):
    """A message in transit. `expires_us` is None if it cannot wait for its target: v2, and most of the broker's own.

    `origin` is what it was decoded from; None if it is already in the version of its only recipient.
    """

    address: Address
    id: str
    message_type: str
    sender: str
    accepted_us: int
    expires_us: int | None
    origin: Frame | MessageV2 | None
    payload: bytes
    is_expiry_told: bool = False

    @property
    def is_own(self) -> bool:
        """True if the broker created it."""
        return self.sender == BROKER_URI

    @property
    def targets(self) -> tuple[str, ...]:
        """The targets as the sender named them; none if the broker created it."""
        if isinstance(self.origin, Frame):
            return tuple(self.origin.envelope.targets)
        if self.origin is None:
            return ()
        return (BROKER_URI if self.origin.target is UNSET else self.origin.target,)


def message_of(frame: Frame, address: Address, now: int) -> Message:
    """Convert a v1 frame to a message."""
    envelope = frame.envelope
    return Message(
        address,
        envelope.id,
        envelope.message_type,
        envelope.sender,
        now,
        frame.expires_us,
        frame,
        frame.forward,
    )


class OutgoingMessage(msgspec.Struct, gc=False, eq=False):
    """One message as certain clients get it in this turn; the flush at the end of the turn fills `uris`.

    If several sessions share it, it collects their URIs in a list; with one session, it uses that session's tuple.
    """

    payload: bytes
    address: Address
    stage: Stage
    accepted_us: int = 0
    decoded: Message | None = None
    uris: list[str] | tuple[str, ...] = ()

    @property
    def message(self) -> Message:
        """The message, decoded if it was not before."""
        if self.decoded is None:
            self.decoded = message_of(decode_frame(self.payload), self.address, self.accepted_us)
        return self.decoded
