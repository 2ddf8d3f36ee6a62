"""What a client tells its shell."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

from dovetail.pcp.strict_json import decode_any


class FailureKind(enum.StrEnum):
    """Why a message or request of ours came to nothing."""

    REFUSED = "refused"
    EXPIRED = "expired"
    UNAUTHORIZED = "unauthorized"
    NOT_TRANSLATABLE = "not_translatable"
    TIMED_OUT = "timed_out"
    DISCONNECTED = "disconnected"


@dataclass(frozen=True, slots=True, kw_only=True)
class Incoming:
    """A message that came; `expires_us` is None in v2. `raw` is the frame as it was on the wire."""

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
        """The data as JSON; ValueError where it is none."""
        return decode_any(self.data or b"")


@dataclass(frozen=True, slots=True, kw_only=True)
class Associated:
    """The client is known to the broker by its URI; messages may be sent."""

    uri: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AssociationRefused:
    """The broker does not want this client under this URI."""

    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Disconnected:
    """The wire is gone; the next attempt is at `retry_us`."""

    code: int
    detail: str
    retry_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageReceived:
    """A message that answers no request of ours."""

    message: Incoming


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyReceived:
    """The reply to our request `id`."""

    id: str
    reply: Incoming


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFailed:
    """Our message `id` came to nothing; None where the broker could not tell which."""

    id: str | None
    kind: FailureKind
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DestinationReported:
    """Whom our message `id` will be sent to."""

    id: str
    targets: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class InventoryChanged:
    """Clients came (1) and went (-1), in this order."""

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
