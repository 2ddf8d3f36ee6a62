"""Events that a broker reports, besides the observations for the journal."""

from __future__ import annotations

from dataclasses import dataclass

from dovetail.model.address import Address
from dovetail.model.hop import Observation, Reason
from dovetail.model.wire import LinkId


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionOpened:
    """A client is associated and reachable by its URI."""

    connection: LinkId
    uri: str
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionEnded:
    """A client is no longer reachable through this connection; `superseded` if a newer connection has its URI."""

    connection: LinkId
    uri: str
    was_superseded: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowConsumerFound:
    """A connection exceeded its queue limit and is being closed."""

    connection: LinkId
    uri: str
    queued_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageHandled:
    """What happened to a message, for the access log; only if the broker has `logs_messages`."""

    outcome: str
    address: Address
    id: str
    message_type: str
    sender: str
    targets: tuple[str, ...]
    recipients: int
    size: int
    reason: Reason | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientRefused:
    """A client may not be who it claims to be, or may not send what it sent."""

    connection: LinkId
    uri: str
    reason: Reason
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LongListHandled:
    """A message named, or asked for, this many clients: it took the work of many messages."""

    connection: LinkId
    entries: int


Event = (
    Observation | SessionOpened | SessionEnded | SlowConsumerFound | MessageHandled | ClientRefused | LongListHandled
)
