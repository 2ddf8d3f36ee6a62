"""What clients give back: what became of a message that was sent, messages that came, who is connected."""

from __future__ import annotations

import datetime as dt
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from dovetail.model.errors import NotDelivered

Outcome = Literal["accepted", "delivered", "nobody_there", "rejected", "expired", "unknown"]
"""What is known about a message when `send` returns.

accepted: the server took it, and sends it to `targets`. delivered: the recipient's side has signed for it (won).
nobody_there: accepted, and no recipient was connected. rejected, expired: it goes to nobody; `reason` says why.
unknown: the connection broke, or time was over, before the server answered.
"""

_RETRIABLE = frozenset({"nobody_there", "unknown"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """A message that was sent: its address, and what is known about it."""

    address: str
    """How journals, receipts and the audit name it."""
    id: str | None
    """The id inside the message, where its fabric has one."""
    outcome: Outcome
    targets: tuple[str, ...]
    """Whom the server sends it to."""
    reason: str | None = None
    """Why it goes to nobody, in the server's words."""
    state: str | None = None
    """How far the delivery chain has come (won)."""
    responses: tuple[str, ...] = ()
    """Addresses of the signed responses of the sender's and of the recipient's node (won)."""
    is_final: bool = True
    """False where more is to be heard of it, and the time for that was over (won)."""
    at: dt.datetime

    @property
    def ok(self) -> bool:
        """True if it was accepted or delivered."""
        return self.outcome in ("accepted", "delivered")

    def raise_for_outcome(self) -> Sent:
        """The same, or NotDelivered unless it was accepted or delivered."""
        if not self.ok:
            why = f": {self.reason}" if self.reason else ""
            text = f"message {self.address} was not delivered: {self.outcome}{why}"
            raise NotDelivered(text, self, retriable=self.outcome in _RETRIABLE)
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A message that came."""

    address: str
    """How journals, receipts and the audit name it; in pcp the SHA-256 of `raw`."""
    id: str | None
    type: str
    sender: str
    targets: tuple[str, ...]
    data: Any
    """JSON as Python values, text, or bytes where it is neither; None where there is none."""
    raw: bytes = field(repr=False)
    """pcp: the frame as it was on the wire. won: its canonical form. swarm: the payload."""
    at: dt.datetime
    in_reply_to: str | None = None
    state: str | None = None
    """How far the delivery chain has come (won)."""
    _answer: Callable[[Message, Any, str | None], Awaitable[Sent]] | None = field(
        default=None, repr=False, compare=False
    )

    async def reply(self, data: Any = None, *, type: str | None = None) -> Sent:
        """Answer it, with the type of the message unless another is given."""
        if self._answer is None:
            raise NotDelivered("a message of this fabric has no single sender to answer", None)
        return await self._answer(self, data, type)


class Presence(NamedTuple):
    """A client that is connected, or that has gone."""

    uri: str
    is_here: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TLS:
    """Files for a client of a server with TLS: its certificate, its private key, and the CA that signs servers."""

    certificate: str | None = None
    key: str | None = None
    authority: str | None = None


def moment(at_us: int) -> dt.datetime:
    """A time of Dovetail, microseconds since 1970, for Python."""
    return dt.datetime.fromtimestamp(at_us / 1_000_000, dt.UTC)
