"""The broker's own messages: answers, reports, errors and inventory updates, in the client's protocol version."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec
from msgspec import UNSET

from dovetail.model.address import address_of
from dovetail.model.hop import Reason, Stage
from dovetail.model.times import time_text
from dovetail.pcp.codec_v1 import Frame, decode_frame, encode_frame
from dovetail.pcp.codec_v2 import encode_message
from dovetail.pcp.delivery import Delivery, Failure
from dovetail.pcp.envelope import Envelope, MessageV2
from dovetail.pcp.message import Message
from dovetail.pcp.outbound import Outbound
from dovetail.pcp.session import Session
from dovetail.pcp.settings import PcpSettings
from dovetail.pcp.uri import BROKER_URI
from dovetail.pcp.vocabulary import (
    ASSOCIATE_RESPONSE,
    DESTINATION_REPORT,
    ERROR_MESSAGE,
    INVENTORY_RESPONSE,
    INVENTORY_UPDATE,
    TTL_EXPIRED,
    UNAUTHORIZED,
    VERSION_ERROR,
    AssociateResponse,
    DestinationReport,
    ErrorMessage,
    InventoryChange,
    InventoryResponse,
    InventoryUpdate,
    TtlExpired,
    VersionError,
)

_encoder = msgspec.json.Encoder()


class Replies:
    """Creates the broker's own messages and enqueues them; `new_id` returns a new UUID string each time."""

    def __init__(
        self,
        settings: PcpSettings,
        outbound: Outbound,
        delivery: Delivery,
        new_id: Callable[[], str],
        keeps_body: Callable[[str], bool],
    ) -> None:
        self._outbound = outbound
        self._delivery = delivery
        self._new_id = new_id
        self._ttl_us = settings.reply_ttl_ms * 1000
        self._notice_ttl_us = settings.notice_ttl_ms * 1000
        self._keeps_body = keeps_body

    def associate(self, session: Session, request: str, now: int, refusal: str | None = None) -> None:
        """The result of an association."""
        response = AssociateResponse(request, refusal is None, UNSET if refusal is None else refusal)
        self._send(session, ASSOCIATE_RESPONSE, response, request, now)

    def report(self, session: Session, message_id: str, targets: list[str], now: int) -> None:
        """The destination report: the recipients of the message."""
        self._send(session, DESTINATION_REPORT, DestinationReport(message_id, targets), message_id, now)

    def refuse(self, session: Session, message_id: str | None, description: str, now: int) -> None:
        """An error message; v2 clients get only the description."""
        if session.version == 2:
            self._send(session, ERROR_MESSAGE, description, message_id, now)
        else:
            content = ErrorMessage(description, UNSET if message_id is None else message_id)
            self._send(session, ERROR_MESSAGE, content, message_id, now)

    def deny(self, session: Session, message_id: str | None, now: int) -> None:
        """The message was not authorised; no data, the offending id in the reply field."""
        self._send(session, UNAUTHORIZED, None, message_id, now)

    def expire(self, session: Session | None, expired: Message, now: int) -> None:
        """Tell the sender once that a message expired; if it is disconnected, when it is back."""
        if expired.is_expiry_told:
            return
        expired.is_expiry_told = True
        expires_us = now + self._notice_ttl_us
        envelope = Envelope(
            self._new_id(),
            TTL_EXPIRED,
            time_text(expires_us),
            [expired.sender],
            BROKER_URI,
            in_reply_to=expired.id,
        )
        payload = encode_frame(envelope, _encoder.encode(TtlExpired(expired.id)))
        frame = decode_frame(payload)  # it waits, and its recipient may come back with version 2
        message = self._create(payload, envelope.id, TTL_EXPIRED, frame, expires_us, now, expires_us)
        if session is None:
            self._delivery.hold(message, expired.sender, now)
        else:
            self._delivery.deliver_own(message, session, now)

    def notify_failure(self, session: Session | None, failure: Failure, now: int) -> None:
        """Tell a sender why a target will not get an accepted message; if it is disconnected, only that it expired."""
        message, uri, reason, detail = failure
        if message.expires_us is not None and reason is not Reason.NOT_TRANSLATABLE:
            self.expire(session, message, now)
        elif session is None:
            return
        elif reason is Reason.NOT_TRANSLATABLE:
            self._send(session, VERSION_ERROR, VersionError(message.id, uri, detail), message.id, now)
        else:
            self.refuse(session, message.id, f"{uri}: {detail}", now)

    def inventory(self, session: Session, request: str, uris: list[str], now: int) -> None:
        """The clients connected now."""
        self._send(session, INVENTORY_RESPONSE, InventoryResponse(uris), request, now)

    def update(self, session: Session, changes: list[tuple[str, int]], now: int) -> None:
        """The clients that connected and disconnected since the last update."""
        listed = [InventoryChange(uri, change) for uri, change in changes]
        self._send(session, INVENTORY_UPDATE, InventoryUpdate(listed), None, now)

    def note(self, message_type: str, content: Mapping[str, object], now: int) -> None:
        """A message of the broker to itself: journaled, not sent."""
        expires = time_text(now + self._ttl_us)
        envelope = Envelope(self._new_id(), message_type, expires, [BROKER_URI], BROKER_URI)
        raw = encode_frame(envelope, _encoder.encode(content))
        address = address_of(raw)
        self._outbound.observe(Stage.CREATED, address, (), now, raw=raw)
        self._outbound.observe_delivered(address, (BROKER_URI,), now)

    def _send(
        self, session: Session, message_type: str, content: object | None, in_reply_to: str | None, now: int
    ) -> None:
        message_id = self._new_id()
        data = None if content is None else _encoder.encode(content)
        answered = UNSET if in_reply_to is None else in_reply_to
        target = session.address_for_replies
        purged_us = None  # bytes are purged by the expiry they state; those of version 2 state none
        if session.version == 1:
            purged_us = now + self._ttl_us
            expires = time_text(purged_us)
            envelope = Envelope(message_id, message_type, expires, [target], BROKER_URI, in_reply_to=answered)
            payload = encode_frame(envelope, data)
        else:
            raw = UNSET if data is None else msgspec.Raw(data)
            payload = encode_message(MessageV2(message_id, message_type, target, BROKER_URI, answered, raw))
        message = self._create(payload, message_id, message_type, None, None, now, purged_us)
        self._delivery.deliver_own(message, session, now)

    def _create(
        self,
        payload: bytes,
        message_id: str,
        message_type: str,
        origin: Frame | None,
        expires_us: int | None,
        now: int,
        purged_us: int | None,
    ) -> Message:
        address = address_of(payload)
        kept = payload if self._keeps_body(message_type) else None
        self._outbound.observe(Stage.CREATED, address, (), now, raw=kept, size=len(payload), expires_us=purged_us)
        return Message(address, message_id, message_type, BROKER_URI, now, expires_us, origin, payload)
