"""Why a datagram is refused: one class per rule, each with the reason for the journal.

Refusal
  Truncated  TooLarge  BadIndicator  UnknownOpcode  UnsupportedVersion  BadReferenceCount  TrailingBytes
  BadTimeRange  BadProofOfWork                      the bytes cannot be a message of this swarm
  TtlTooLong  FromFuture  Expired  SelfReference    a message, but not acceptable now
  UnknownSwarm  BadSignature  BadFragment           refused by the lower layers
  UnknownTicket  RateLimited  DuplicateIdentity  NoRoom  refused by the peer's own bookkeeping
"""

from __future__ import annotations

from typing import ClassVar

from dovetail.model.errors import RemoteProtocolError
from dovetail.model.hop import Reason


class Refusal(RemoteProtocolError):
    """A peer broke a rule; `reason` is counted and journaled."""

    code: ClassVar[Reason] = Reason.MALFORMED

    def __init__(self, detail: str) -> None:
        super().__init__(self.code, detail)


class Truncated(Refusal):
    """It ends before its fixed part or its announced parts are complete."""

    code = Reason.TRUNCATED


class TooLarge(Refusal):
    """It is larger than eight fragments can carry."""

    code = Reason.TOO_LARGE


class BadIndicator(Refusal):
    """Its first byte names another protocol."""

    code = Reason.BAD_INDICATOR


class UnknownOpcode(Refusal):
    """Its opcode is not defined."""

    code = Reason.UNKNOWN_OPCODE


class UnsupportedVersion(Refusal):
    """Its version is not 5."""

    code = Reason.UNSUPPORTED_VERSION


class BadReferenceCount(Refusal):
    """It claims five to seven references."""

    code = Reason.BAD_REFERENCE_COUNT


class TrailingBytes(Refusal):
    """There are bytes after the end of a query or list."""

    code = Reason.TRAILING_BYTES


class BadTimeRange(Refusal):
    """The range ends before it starts."""

    code = Reason.BAD_TIME_RANGE


class BadProofOfWork(Refusal):
    """Its work is not below the swarm's target."""

    code = Reason.BAD_PROOF_OF_WORK


class TtlTooLong(Refusal):
    """Its lifetime is over the swarm's maximum."""

    code = Reason.TTL_TOO_LONG


class FromFuture(Refusal):
    """Its timestamp is further ahead than the tolerated clock skew."""

    code = Reason.FROM_FUTURE


class Expired(Refusal):
    """Its lifetime is over."""

    code = Reason.LIFETIME_OVER


class UnknownSwarm(Refusal):
    """Its swarm signature is not one of ours at this time."""

    code = Reason.UNKNOWN_SWARM


class BadSignature(Refusal):
    """The hash of the reassembled packet is not the signature in its fragments."""

    code = Reason.BAD_SIGNATURE


class BadFragment(Refusal):
    """A fragment has the wrong size, index or count."""

    code = Reason.BAD_FRAGMENT


class UnknownTicket(Refusal):
    """A list or answer carries a ticket that was not given to its sender."""

    code = Reason.UNKNOWN_TICKET


class RateLimited(Refusal):
    """Its source exceeded a rate limit."""

    code = Reason.RATE_LIMITED


class NoRoom(Refusal):
    """Its source has no share left of the messages that the peer holds."""

    code = Reason.QUEUE_FULL


class DuplicateIdentity(Refusal):
    """It is from another peer that uses the address of this one."""

    code = Reason.DUPLICATE_IDENTITY


class SelfReference(Refusal):
    """It refers to itself."""

    code = Reason.SELF_REFERENCE
