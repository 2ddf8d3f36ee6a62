"""Events that a client reports."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

from dovetail.pcp.strict_json import decode_any


class FailureKind(enum.StrEnum):
    """Why one of our messages or requests failed."""

    REFUSED = "refused"
    EXPIRED = "expired"
    UNAUTHORIZED = "unauthorized"
    NOT_TRANSLATABLE = "not_translatable"
    TIMED_OUT = "timed_out"
    DISCONNECTED = "disconnected"


@dataclass(frozen=True, slots=True, kw_only=True)
class Incoming:
    """A received message; `expires_us` is None in v2. `raw` is the frame as received."""

    raw: bytes
    id: str
    message_type: str
    sender: str
    targets: tuple[str, ...]
    in_reply_to: str | None
    expires_us: int | None
    data: bytes | None
    debug: tuple[bytes, ...]

    def json(self) -> Any:
        """The data as JSON; ValueError if it is not JSON."""
        return decode_any(self.data or b"")


@dataclass(frozen=True, slots=True, kw_only=True)
class Associated:
    """The client is known to the broker by its URI; messages may be sent."""

    uri: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AssociationRefused:
    """The broker refuses this client under this URI."""

    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Disconnected:
    """The connection was lost; the next attempt is at `retry_us`."""

    code: int
    detail: str
    retry_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageReceived:
    """A message that is not a reply to a request of ours."""

    message: Incoming


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyReceived:
    """The reply to our request `id`."""

    id: str
    reply: Incoming


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFailed:
    """Our message `id` failed; None if the broker could not tell which."""

    id: str | None
    kind: FailureKind
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DestinationReported:
    """The recipients of our message `id`."""

    id: str
    targets: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class InventoryChanged:
    """Clients connected (1) and disconnected (-1), in this order."""

    changes: tuple[tuple[str, int], ...]


ClientEvent = (
    Associated
    | AssociationRefused
    | Disconnected
    | MessageReceived
    | ReplyReceived
    | RequestFailed
    | DestinationReported
    | InventoryChanged
)
