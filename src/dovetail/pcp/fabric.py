"""pcp for the packages above the core: frames of both versions as messages."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Set
from types import MappingProxyType
from typing import Any, Final

import msgspec
from msgspec import UNSET, UnsetType

from dovetail.model.address import Address, address_of
from dovetail.model.errors import RemoteProtocolError
from dovetail.model.fabric import Agreement, Conflict, ExpiryTemplate, Fabric, Link, MessageInfo, Refused, Role, Thread
from dovetail.model.hop import Hop, Relation, Stage
from dovetail.pcp import vocabulary as v
from dovetail.pcp.codec_v1 import VERSION_1, decode_frame
from dovetail.pcp.codec_v2 import decode_message
from dovetail.pcp.frame_template import make_template
from dovetail.pcp.recovery import find_unfinished
from dovetail.pcp.strict_json import decode_any

ERROR_TYPES: Final = (v.ERROR_MESSAGE, v.UNAUTHORIZED, v.TTL_EXPIRED, v.VERSION_ERROR)
"""The message types with which a broker answers a message that it did not deliver."""
SHARED_ID: Final = "shared_id"

_JSON_STARTS = frozenset(b"{ \t\r\n")
_HANDED_OVER = "that the client received it: the broker handed it to the connection; only a reply to it shows more"
_NOT_PROVEN: Mapping[Stage, str] = {
    Stage.DELIVERED: _HANDED_OVER,
    Stage.REDELIVERED: _HANDED_OVER,
    Stage.ACCEPTED: "who wrote it: the broker says from which client's connection it came",
}


class PcpFabric(Fabric):
    """Messages are named by the UUIDs that their senders choose."""

    name = "pcp"
    hashes_bytes = True
    key_bytes = None
    thread = Thread.EXCHANGE
    conflicts = MappingProxyType(
        {
            SHARED_ID: Conflict(
                "error",
                "Two messages with the same id",
                "Two pcp messages with different contents have the same id.",
                "The sender must give each message a new id.",
            )
        }
    )

    def read(self, raw: bytes, agreement: Agreement | None = None) -> MessageInfo | Refused:
        """The first byte tells the version: it cannot start a JSON text."""
        del agreement
        try:
            return _read_v1(raw) if raw[:1] == bytes([VERSION_1]) else _read_v2(raw)
        except RemoteProtocolError as error:
            return Refused(error.reason, error.detail)

    def expiry_template(self, raw: bytes) -> ExpiryTemplate | None:
        """The frame template of a version 1 message, the same that the broker uses for its senders."""
        try:
            return make_template(raw, decode_frame(raw))
        except RemoteProtocolError:
            return None

    def explain(self, raw: bytes, layer: str = "auto", now_us: int | None = None) -> dict[str, object]:
        """`layer` is v1, v2, or auto: decided by the first byte. With `now_us`, also whether it is expired then."""
        try:
            if layer == "v2" or (layer == "auto" and raw[:1] and raw[0] in _JSON_STARTS):
                fields = _explain_v2(raw)
            else:
                fields = _explain_v1(raw, now_us)
        except RemoteProtocolError as error:
            return {"error": error.reason.value, "detail": error.detail}
        return fields | {"address": address_of(raw).hex(), "size": len(raw)}

    def not_proven(self, stage: Stage) -> str | None:
        """The broker knows about connections, not about what clients do."""
        return _NOT_PROVEN.get(stage)

    def show_key(self, key: bytes) -> str:
        """The UUID."""
        return str(uuid.UUID(bytes=key)) if len(key) == 16 else key.hex()

    def needle(self, key: bytes) -> bytes:
        """The text of the UUID."""
        return self.show_key(key).encode()

    def show_uri(self, uri: str) -> str:
        """Only the broker's name."""
        return super().show_uri(uri).removesuffix("/server")

    def conflict_keys(self, message: MessageInfo) -> dict[str, bytes]:
        """An id identifies one message."""
        return {SHARED_ID: message.key}

    def unfinished(self, hops: Iterable[Hop]) -> Set[Address]:
        """Messages with a recipient that has no outcome."""
        return {each.address for each in find_unfinished(hops)}


FABRIC: Final = PcpFabric()


def _read_v1(raw: bytes) -> MessageInfo:
    frame = decode_frame(raw)
    e = frame.envelope
    return _info(raw, "1", e.id, e.message_type, e.sender, tuple(e.targets), e.in_reply_to, frame.expires_us)


def _read_v2(raw: bytes) -> MessageInfo:
    m = decode_message(raw)
    targets = () if m.target is UNSET else (m.target,)
    return _info(raw, "2", m.id, m.message_type, m.sender, targets, m.in_reply_to)


def _info(
    raw: bytes,
    version: str,
    message_id: str,
    message_type: str,
    sender: str | UnsetType,
    targets: tuple[str, ...],
    in_reply_to: str | UnsetType,
    expires_us: int | None = None,
) -> MessageInfo:
    links: tuple[Link, ...] = ()
    role = None
    if in_reply_to is not UNSET:
        links = (Link(uuid.UUID(in_reply_to).bytes, Relation.IN_REPLY_TO),)
        role = Role.FAILURE if message_type in ERROR_TYPES else Role.FIRST
    return MessageInfo(
        address=address_of(raw),
        key=uuid.UUID(message_id).bytes,
        id=message_id.lower(),
        type=message_type,
        version=version,
        sender=None if sender is UNSET else sender,
        recipients=targets,
        expires_us=expires_us,
        links=links,
        role=role,
    )


def _explain_v1(raw: bytes, now_us: int | None) -> dict[str, object]:
    frame = decode_frame(raw)
    fields: dict[str, Any] = {"version": 1, **msgspec.to_builtins(frame.envelope)}
    if now_us is not None:
        fields["expired"] = frame.expires_us <= now_us
    if frame.data is not None:
        fields |= _explain_content("data", frame.data)
    if frame.debug:
        fields["debug"] = [_explain_content("content", chunk) for chunk in frame.debug]
    return fields


def _explain_v2(raw: bytes) -> dict[str, object]:
    decoded = decode_message(raw)
    fields: dict[str, object] = {"version": 2}
    for name in decoded.__struct_fields__:
        value = getattr(decoded, name)
        if value is not UNSET:
            fields[name] = decode_any(bytes(value)) if name == "data" else value
    return fields


def _explain_content(name: str, content: bytes) -> dict[str, object]:
    try:
        return {name: decode_any(content)}
    except ValueError:
        return {f"{name}_hex": content.hex()}
