"""What clients return: the outcome of a sent message, received messages, connected clients."""

from __future__ import annotations

import datetime as dt
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from dovetail.model.errors import NotDelivered, UsageError

Outcome = Literal["accepted", "delivered", "nobody_there", "rejected", "expired", "unknown"]
"""What is known about a message when `send` returns.

accepted: the server accepted it, and sends it to `targets`. delivered: the recipient's side has signed for it (won).
nobody_there: accepted, but no recipient was connected. rejected, expired: no one gets it; `reason` says why. unknown:
the connection broke, or the time ran out, before the server answered.
"""

_RETRIABLE = frozenset({"nobody_there", "unknown"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """A sent message: its address, and what is known about it."""

    address: str
    """How journals, receipts and the audit name it."""
    id: str | None
    """The id inside the message, if its fabric has one."""
    outcome: Outcome
    targets: tuple[str, ...]
    """The recipients the server sends it to."""
    reason: str | None = None
    """Why no one gets it, in the server's words."""
    state: str | None = None
    """The state of the delivery chain (won)."""
    responses: tuple[str, ...] = ()
    """Addresses of the signed responses of the sender's and of the recipient's node (won)."""
    is_final: bool = True
    """False if more is expected and the time ran out (won)."""
    at: dt.datetime

    @property
    def ok(self) -> bool:
        """True if it was accepted or delivered."""
        return self.outcome in ("accepted", "delivered")

    def raise_for_outcome(self) -> Sent:
        """Return self, or raise NotDelivered unless it was accepted or delivered."""
        if not self.ok:
            why = f": {self.reason}" if self.reason else ""
            text = f"message {self.address} was not delivered: {self.outcome}{why}"
            raise NotDelivered(text, self, retriable=self.outcome in _RETRIABLE)
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A received message."""

    address: str
    """How journals, receipts and the audit name it; in pcp the SHA-256 of `raw`."""
    id: str | None
    type: str
    sender: str
    targets: tuple[str, ...]
    data: Any
    """JSON as Python values, text, or bytes if it is neither; None if there is none."""
    raw: bytes = field(repr=False)
    """pcp: the frame as it was on the wire. won: its canonical form. swarm: the payload."""
    at: dt.datetime
    in_reply_to: str | None = None
    state: str | None = None
    """The state of the delivery chain (won)."""
    references: tuple[str, ...] = ()
    """The first 8 bytes of the addresses of earlier messages it refers to, in hex (swarm)."""
    ttl_epochs: int | None = None
    """Its lifetime in epochs (swarm)."""
    _answer: Callable[[Message, Any, str | None], Awaitable[Sent]] | None = field(
        default=None, repr=False, compare=False
    )

    async def reply(self, data: Any = None, *, type: str | None = None) -> Sent:
        """Answer it, with the same type unless another is given."""
        if self._answer is None:
            raise NotDelivered("a message of this fabric has no single sender to answer", None)
        return await self._answer(self, data, type)


class Presence(NamedTuple):
    """A client that is connected, or has disconnected."""

    uri: str
    is_here: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TLS:
    """Files for a client of a server with TLS: its certificate, its private key, and the CA that signs servers."""

    certificate: str | None = None
    key: str | None = None
    authority: str | None = None


def check_text(value: object, what: str) -> str:
    """The value if it is text; otherwise raises UsageError."""
    if not isinstance(value, str):
        raise UsageError(f"{what} {str(value)[:80]!r} is of type {type(value).__name__}, expected text")
    return value


def is_utf8(text: str) -> bool:
    """True if text can be encoded: it has no lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def moment(at_us: int) -> dt.datetime:
    """A Dovetail time, microseconds since 1970, as a datetime."""
    return dt.datetime.fromtimestamp(at_us / 1_000_000, dt.UTC)
