"""A message on its way through the broker, and the forms it takes there.

A `Message` is what was accepted, or made here. A `Parcel` is one message in the bytes that certain clients get in this
turn; all recipients of a fan-out share one. What is passed on as it came is not taken apart: its parcel makes a message
of the bytes only if it must wait after all.
"""

from __future__ import annotations

import msgspec

from dovetail.model.address import Address
from dovetail.model.hop import Stage
from dovetail.pcp.codec_v1 import Frame, decode_frame
from dovetail.pcp.envelope import MessageV2


class Message(msgspec.Struct, gc=False, eq=False):
    """A message on its way. `expires_us` is None where it cannot wait for its target: v2, and the broker's own."""

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
        """Whether the broker made it."""
        return self.origin is None


def message_of(frame: Frame, address: Address, now: int) -> Message:
    """The message that a v1 frame is."""
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


class Parcel(msgspec.Struct, gc=False, eq=False):
    """One message as certain clients get it in this turn; `uris` is filled when the turn's parcels are handed over.

    A parcel that several sessions share collects their URIs in a list; that of one session takes its tuple.
    """

    payload: bytes
    address: Address
    stage: Stage
    accepted_us: int = 0
    opened: Message | None = None
    uris: list[str] | tuple[str, ...] = ()

    @property
    def message(self) -> Message:
        """What is in it."""
        if self.opened is None:
            self.opened = message_of(decode_frame(self.payload), self.address, self.accepted_us)
        return self.opened
