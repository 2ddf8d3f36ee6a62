"""Events of a peer for its runtime and application, besides the observations for the journal."""

from __future__ import annotations

import msgspec

from dovetail.model.address import Address
from dovetail.model.hop import Observation
from dovetail.swarm.content import Content, MsgHash


class MessageAccepted(msgspec.Struct, frozen=True, gc=False):
    """A message was accepted; the application gets each message once."""

    address: Address
    content: Content
    source: str
    """URI of the peer it came from; our own for a message composed here."""
    at_us: int


class GapFound(msgspec.Struct, frozen=True, gc=False):
    """A message refers to one that has not arrived; it is being pulled."""

    msg_hash: MsgHash
    referrer: Address | None


class GapFilled(msgspec.Struct, frozen=True, gc=False):
    """The message behind a reported gap has arrived."""

    msg_hash: MsgHash
    address: Address


class GapGivenUp(msgspec.Struct, frozen=True, gc=False):
    """A missing message was pulled as often as allowed and never arrived, or has expired."""

    msg_hash: MsgHash
    referrer: Address | None


class CollisionFound(msgspec.Struct, frozen=True, gc=False):
    """Two different messages share the 8 bytes sent as `msg_hash`; both are kept."""

    first: Address
    second: Address


class CycleFound(msgspec.Struct, frozen=True, gc=False):
    """Messages refer to each other in a cycle; all are kept, and the edge that closes it is not counted."""

    path: tuple[Address, ...]


class PeerLinked(msgspec.Struct, frozen=True, gc=False):
    """Another peer relays to us (`is_forward` False) or is relayed to (True)."""

    peer: str
    is_forward: bool


class PeerUnlinked(msgspec.Struct, frozen=True, gc=False):
    """Such a link ended."""

    peer: str
    is_forward: bool


class IdentityConflict(msgspec.Struct, frozen=True, gc=False):
    """Another peer, at this endpoint, uses the address of this one; reported at most once in ten minutes."""

    endpoint: str


Event = (
    Observation
    | MessageAccepted
    | GapFound
    | GapFilled
    | GapGivenUp
    | CollisionFound
    | CycleFound
    | PeerLinked
    | PeerUnlinked
    | IdentityConflict
)
