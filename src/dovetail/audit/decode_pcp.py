"""pcp: versions 1 and 2, read with the broker's own codecs."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pyarrow as pa
from msgspec import UNSET, UnsetType

from dovetail.audit.decode import Batches, Row, decode_rows, link, rejected
from dovetail.model.errors import RemoteProtocolError
from dovetail.model.hop import Relation
from dovetail.pcp.codec_v1 import VERSION_1, decode_frame
from dovetail.pcp.codec_v2 import decode_message


def decode_pcp(batches: Batches) -> Iterator[pa.RecordBatch]:
    """Decode batches of pcp messages."""
    return decode_rows(batches, decode_pcp_row)


def decode_pcp_row(raw: bytes, given: Row) -> Row:
    """The fields of one message; the version is told by its first byte, which no JSON text begins with."""
    try:
        fields = _decode_v1(raw) if raw[:1] == bytes([VERSION_1]) else _decode_v2(raw)
    except RemoteProtocolError as error:
        return rejected(error.reason.value, error.detail)
    return {"message": given["digest"], "address_valid": True} | fields


def _decode_v1(raw: bytes) -> Row:
    frame = decode_frame(raw)
    envelope = frame.envelope
    return _fields(envelope.id, envelope.message_type, envelope.sender, envelope.targets, envelope.in_reply_to) | {
        "expires_us": frame.expires_us,
        "version": "1",
    }


def _decode_v2(raw: bytes) -> Row:
    message = decode_message(raw)
    targets = [] if message.target is UNSET else [message.target]
    sender = None if message.sender is UNSET else message.sender
    return _fields(message.id, message.message_type, sender, targets, message.in_reply_to) | {"version": "2"}


def _fields(
    message_id: str, message_type: str, sender: str | None, targets: list[str], in_reply_to: str | UnsetType
) -> Row:
    links = [] if in_reply_to is UNSET else [link(uuid.UUID(in_reply_to).bytes, Relation.IN_REPLY_TO)]
    return {
        "key": uuid.UUID(message_id).bytes,
        "id": message_id.lower(),
        "type": message_type,
        "sender": sender,
        "recipients": targets,
        "links": links,
    }
