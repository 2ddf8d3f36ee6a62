"""A client: a pure state machine for its side of one connection to a broker.

The client requests a link, associates on it (v1) or is associated by its path (v2), tracks requests that await a reply,
and decides when to retry after the link is lost: after a random time up to a limit that doubles (full jitter), so that
thousands do not reconnect at once. Only the latest link counts; input from an earlier one is ignored.
"""

from __future__ import annotations

import enum
import heapq
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET

from dovetail.model.errors import LocalProtocolError, RemoteProtocolError
from dovetail.model.times import time_text
from dovetail.model.wire import (
    CLOSE_ABNORMAL,
    CLOSE_NORMAL,
    CLOSE_TOO_BIG,
    CloseLink,
    Frame,
    LinkId,
    OpenLink,
    Outgoing,
    SendFrames,
)
from dovetail.pcp.client_events import (
    Associated,
    AssociationRefused,
    ClientEvent,
    DestinationReported,
    Disconnected,
    FailureKind,
    Incoming,
    InventoryChanged,
    MessageReceived,
    ReplyReceived,
    RequestFailed,
)
from dovetail.pcp.codec_v1 import decode_frame, encode_frame
from dovetail.pcp.codec_v2 import decode_message, encode_message
from dovetail.pcp.envelope import Envelope, MessageV2
from dovetail.pcp.strict_json import decode_any
from dovetail.pcp.uri import BROKER_URI, BROKER_URIS, is_uri
from dovetail.pcp.vocabulary import (
    ASSOCIATE_REQUEST,
    ASSOCIATE_RESPONSE,
    CLOSE_SUPERSEDED,
    DESTINATION_REPORT,
    ERROR_MESSAGE,
    INVENTORY_UPDATE,
    TTL_EXPIRED,
    UNAUTHORIZED,
    VERSION_ERROR,
    AssociateResponse,
    DestinationReport,
    InventoryUpdate,
)

BROKEN_RULES = "the broker broke the rules"
_FAILURES = {
    ERROR_MESSAGE: FailureKind.REFUSED,
    TTL_EXPIRED: FailureKind.EXPIRED,
    UNAUTHORIZED: FailureKind.UNAUTHORIZED,
    VERSION_ERROR: FailureKind.NOT_TRANSLATABLE,
}


class ClientOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a client; times in milliseconds."""

    backoff_ms: int = 200
    max_backoff_ms: int = 30_000
    association_timeout_ms: int = 10_000
    max_message_bytes: int = 64 * 1024 * 1024


class ClientState(enum.Enum):
    """The connection state of a client."""

    STOPPED = "stopped"
    WAITING = "waiting"
    CONNECTING = "connecting"
    ASSOCIATING = "associating"
    ASSOCIATED = "associated"


class Submitted(NamedTuple):
    """A submitted message: its id, and the frame, whose SHA-256 is its address."""

    id: str
    frame: bytes


class Client:
    """One client. `new_id` returns a new UUID string each time, `random` a number from 0 up to 1."""

    def __init__(
        self,
        uri: str,
        version: int,
        new_id: Callable[[], str],
        random: Callable[[], float],
        options: ClientOptions | None = None,
    ) -> None:
        if not is_uri(uri) or version not in (1, 2):
            raise LocalProtocolError(f"{uri[:80]!r} in version {version}, expected a PCP URI in version 1 or 2")
        self.uri = uri
        self.version = version
        self.state = ClientState.STOPPED
        self._new_id = new_id
        self._random = random
        self._options = options or ClientOptions()
        self._attempt = 0
        self._retry_us: int | None = None
        self._association_id = ""
        self._association_us: int | None = None
        self._requests: dict[str, int] = {}
        self._deadlines: list[tuple[int, str]] = []
        self._events: list[ClientEvent] = []
        self._outgoing: list[Outgoing] = []
        self._link: LinkId = ""
        self._link_count = 0

    # Connection

    def start(self, now: int) -> None:
        """Start: request a connection now."""
        if self.state is ClientState.STOPPED:
            self.state = ClientState.WAITING
            self._retry_us = now
            self.handle_timer(now)

    def stop(self, now: int) -> None:
        """Stop: close the connection; pending requests fail."""
        self.state = ClientState.STOPPED
        self._retry_us = self._association_us = None
        self._fail_all(now)
        self._close()

    def receive_opened(self, link: LinkId, now: int) -> None:
        """The requested link is open."""
        if link != self._link or self.state is not ClientState.CONNECTING:
            return  # abandoned in the meantime
        if self.version == 2:
            self._associated()
            return
        self.state = ClientState.ASSOCIATING
        self._association_id = self._new_id()
        self._association_us = now + self._options.association_timeout_ms * 1000
        # No data chunk: an associate request has none.
        expires = time_text(self._association_us)
        envelope = Envelope(self._association_id, ASSOCIATE_REQUEST, expires, [BROKER_URI], self.uri)
        self._put(encode_frame(envelope))

    def receive_closed(self, link: LinkId, now: int, code: int = CLOSE_ABNORMAL, detail: str = "") -> None:
        """A link was lost, or could not be opened; it is retried after a random time."""
        if link == self._link:
            self._link = ""
            if code == CLOSE_SUPERSEDED:
                detail = f"another client connected as {self.uri}; each needs a URI of its own"
            elif self.state is ClientState.ASSOCIATED:
                self._attempt = 0  # but two clients with one URI give way to each other for longer and longer
            if code == CLOSE_TOO_BIG:
                detail = "a message was too large for the broker, which closed the connection"
            self._lose(code, detail, now)

    def _drop(self, detail: str, now: int) -> None:
        """Drop the link, and retry with another."""
        self._outgoing.clear()
        self._close()
        self._lose(CLOSE_NORMAL, detail, now)

    def _close(self) -> None:
        if self._link:
            self._outgoing.append(CloseLink(self._link))
            self._link = ""

    def _lose(self, code: int, detail: str, now: int) -> None:
        options = self._options
        bound_ms = min(options.max_backoff_ms, options.backoff_ms << min(self._attempt, 20))
        delay_us = int(self._random() * bound_ms * 1000)
        self._attempt += 1
        self.state = ClientState.WAITING
        self._association_us = None
        self._retry_us = now + delay_us
        self._fail_all(now, detail if code in (CLOSE_SUPERSEDED, CLOSE_TOO_BIG) else "the connection was lost")
        self._events.append(Disconnected(code=code, detail=detail, retry_us=self._retry_us))

    def _associated(self) -> None:
        self.state = ClientState.ASSOCIATED
        self._association_us = None
        self._events.append(Associated(uri=self.uri))

    # Sending

    def send(
        self,
        message_type: str,
        targets: Sequence[str],
        data: bytes | None,
        *,
        ttl_ms: int,
        now: int,
        in_reply_to: str | None = None,
        destination_report: bool = False,
        awaits_reply: bool = False,
    ) -> Submitted:
        """Send a message. In v2 there is one target, and data is JSON text."""
        if self.state is not ClientState.ASSOCIATED:
            raise LocalProtocolError(f"cannot send while {self.state.value}")
        for target in targets:
            if not is_uri(target):
                raise LocalProtocolError(f"{target[:80]!r} is not a PCP URI, expected pcp://<name>/<type>")
        if destination_report and BROKER_URIS.issuperset(targets or ("",)):
            raise LocalProtocolError("a message to the broker alone has no destination report")
        message_id = self._new_id()
        answered = UNSET if in_reply_to is None else in_reply_to
        expires_us = now + ttl_ms * 1000
        if self.version == 1:
            wants_report: bool | msgspec.UnsetType = True if destination_report else UNSET
            envelope = Envelope(
                message_id,
                message_type,
                time_text(expires_us),
                list(targets),
                self.uri,
                wants_report,
                answered,
            )
            frame = encode_frame(envelope, data)
        else:
            if len(targets) != 1 or destination_report:
                raise LocalProtocolError("version 2 has exactly one target and no destination report")
            content = UNSET if data is None else msgspec.Raw(_checked_json(data))
            message = MessageV2(message_id, message_type, targets[0], self.uri, answered, content)
            frame = encode_message(message)
        self._put(frame)
        if awaits_reply or destination_report:
            self._requests[message_id] = expires_us
            heapq.heappush(self._deadlines, (expires_us, message_id))
        return Submitted(message_id, frame)

    def forget(self, message_id: str) -> None:
        """Stop waiting for a reply to this message."""
        self._requests.pop(message_id, None)

    # Receiving

    def receive_frames(self, frames: Iterable[Frame], now: int) -> None:
        """Receive whole WebSocket messages from the broker; one that breaks the rules ends the link."""
        for data, link, _ in frames:
            if link == self._link:
                self._receive(data, now)

    def _receive(self, data: bytes, now: int) -> None:
        try:
            incoming = self._decode(data)
            if self.state is ClientState.ASSOCIATING:
                self._take_association(incoming, now)
            elif self.state is ClientState.ASSOCIATED:
                self._take(incoming, now)
        except (RemoteProtocolError, msgspec.MsgspecError, ValueError) as error:
            self._drop(f"{BROKEN_RULES}: {error}", now)

    def _decode(self, data: bytes) -> Incoming:
        if self.version == 1:
            frame = decode_frame(data, self._options.max_message_bytes)
            envelope = frame.envelope
            return Incoming(
                raw=data,
                id=envelope.id,
                message_type=envelope.message_type,
                sender=envelope.sender,
                targets=tuple(envelope.targets),
                in_reply_to=None if envelope.in_reply_to is UNSET else envelope.in_reply_to,
                expires_us=frame.expires_us,
                data=frame.data,
                debug=frame.debug,
            )
        message = decode_message(data, self._options.max_message_bytes)
        return Incoming(
            raw=data,
            id=message.id,
            message_type=message.message_type,
            sender=BROKER_URI if message.sender is UNSET else message.sender,
            targets=() if message.target is UNSET else (message.target,),
            in_reply_to=None if message.in_reply_to is UNSET else message.in_reply_to,
            expires_us=None,
            data=None if message.data is UNSET else bytes(message.data),
            debug=(),
        )

    def _take_association(self, incoming: Incoming, now: int) -> None:
        if incoming.message_type != ASSOCIATE_RESPONSE:
            if incoming.message_type in _FAILURES:
                self._refused(f"{incoming.message_type}: {_describe(incoming)}", now)
            return
        response = msgspec.json.decode(incoming.data or b"", type=AssociateResponse)
        if response.id != self._association_id:
            return
        if response.success:
            self._associated()
        else:
            self._refused("no reason given" if response.reason is UNSET else response.reason, now)

    def _refused(self, detail: str, now: int) -> None:
        self._events.append(AssociationRefused(detail=detail))
        self._drop("the association was refused", now)

    def _take(self, incoming: Incoming, now: int) -> None:
        answered = incoming.in_reply_to
        is_broker = incoming.sender == BROKER_URI
        if is_broker and incoming.message_type == DESTINATION_REPORT:
            report = msgspec.json.decode(incoming.data or b"", type=DestinationReport)
            self._events.append(DestinationReported(id=report.id, targets=tuple(report.targets)))
        elif is_broker and incoming.message_type == INVENTORY_UPDATE:
            update = msgspec.json.decode(incoming.data or b"", type=InventoryUpdate)
            changes = tuple((change.client, change.change) for change in update.changes)
            self._events.append(InventoryChanged(changes=changes))
        elif is_broker and incoming.message_type in _FAILURES:
            failed = answered or _failed_id(incoming)
            if failed is not None:
                self._requests.pop(failed, None)
            kind = _FAILURES[incoming.message_type]
            self._events.append(RequestFailed(id=failed, kind=kind, detail=_describe(incoming)))
        elif not is_broker and incoming.expires_us is not None and incoming.expires_us <= now:
            return  # it expired in transit
        elif answered is not None and self._requests.pop(answered, None) is not None:
            self._events.append(ReplyReceived(id=answered, reply=incoming))
        else:
            self._events.append(MessageReceived(message=incoming))

    # Time

    def handle_timer(self, now: int) -> None:
        """Do what is due."""
        if self._is_retry_due(now) and self.state is ClientState.WAITING:
            self._retry_us = None
            self.state = ClientState.CONNECTING
            self._link_count += 1
            self._link = f"{self.uri} {self._link_count}"
            self._outgoing.append(OpenLink(self._link, BROKER_URI, self.uri))
        if self._association_us is not None and self._association_us <= now:
            self._drop("no association in time", now)
        while self._deadlines and self._deadlines[0][0] <= now:
            message_id = heapq.heappop(self._deadlines)[1]
            if self._requests.pop(message_id, None) is not None:
                detail = "no reply within its lifetime"
                self._events.append(RequestFailed(id=message_id, kind=FailureKind.TIMED_OUT, detail=detail))

    def _is_retry_due(self, now: int) -> bool:
        """True if the pause before the next attempt is over, or the clock was set back since it began."""
        longest_us = self._options.max_backoff_ms * 1000
        return self._retry_us is not None and not now < self._retry_us <= now + longest_us

    def next_timer(self) -> int | None:
        """When `handle_timer` is due."""
        while self._deadlines and self._deadlines[0][1] not in self._requests:
            heapq.heappop(self._deadlines)
        times = (self._retry_us, self._association_us, self._deadlines[0][0] if self._deadlines else None)
        return min((time for time in times if time is not None), default=None)

    def _fail_all(self, now: int, detail: str = "the connection was lost") -> None:
        requests, self._requests = self._requests, {}
        self._deadlines.clear()
        for message_id, expires_us in requests.items():
            kind = FailureKind.DISCONNECTED if expires_us > now else FailureKind.TIMED_OUT
            self._events.append(RequestFailed(id=message_id, kind=kind, detail=detail))

    # Output

    def events(self) -> list[ClientEvent]:
        """Drain the events."""
        events, self._events = self._events, []
        return events

    def to_send(self) -> list[Outgoing]:
        """Drain the messages to write, in order, and the links to open and close."""
        outgoing, self._outgoing = self._outgoing, []
        return outgoing

    def _put(self, frame: bytes) -> None:
        self._outgoing.append(SendFrames((self._link,), (frame,)))


def _checked_json(data: bytes) -> bytes:
    try:
        decode_any(data)
    except ValueError as error:
        raise LocalProtocolError(f"version 2 data must be JSON: {error}") from None
    return data


def _content(incoming: Incoming) -> Any:
    try:
        return decode_any(incoming.data or b"null")
    except ValueError:
        return None


def _failed_id(incoming: Incoming) -> str | None:
    content = _content(incoming)
    found = content.get("id") if isinstance(content, dict) else None
    return found if isinstance(found, str) else None


def _describe(incoming: Incoming) -> str:
    if incoming.message_type == UNAUTHORIZED:
        return "no rule of the broker allows it"  # the message says no more
    if incoming.message_type == TTL_EXPIRED:
        return "its lifetime was over before it was delivered"
    content = _content(incoming)
    if isinstance(content, str):
        return content
    if isinstance(content, dict):
        return str(content.get("description") or content.get("reason") or incoming.message_type)
    return incoming.message_type
