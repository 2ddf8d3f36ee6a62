"""Version 2 on the wire: one closed JSON object in a text frame, its `data` any JSON."""

from __future__ import annotations

import msgspec
from msgspec import UNSET

from dovetail.model.errors import RemoteProtocolError
from dovetail.model.hop import Reason
from dovetail.pcp.codec_v1 import MAX_MESSAGE_BYTES
from dovetail.pcp.envelope import MessageV2, check_message_v2
from dovetail.pcp.strict_json import MAX_NESTING, count_strings, is_nested_too_deep, is_utf8

_decode = msgspec.json.Decoder(MessageV2).decode
_encoder = msgspec.json.Encoder()


def decode_message(message: bytes, max_bytes: int = MAX_MESSAGE_BYTES) -> MessageV2:
    """Decode a v2 message; raises RemoteProtocolError."""
    size = len(message)
    if size > max_bytes:
        raise RemoteProtocolError(Reason.TOO_LARGE, f"read {size} bytes, expected at most {max_bytes}")
    if not is_utf8(message):
        raise RemoteProtocolError(Reason.MALFORMED, "not UTF-8")
    if is_nested_too_deep(message):
        raise RemoteProtocolError(Reason.MALFORMED, f"nested more than {MAX_NESTING} levels deep")
    try:
        decoded = _decode(message)
    except msgspec.ValidationError as error:
        raise RemoteProtocolError(Reason.INVALID_SCHEMA, f"message: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RemoteProtocolError(Reason.MALFORMED, f"message: {error}") from None
    if _repeats_a_key(message, decoded):
        raise RemoteProtocolError(Reason.MALFORMED, "message: a key stands twice")
    check_message_v2(decoded)
    return decoded


def _repeats_a_key(message: bytes, decoded: MessageV2) -> bool:
    strings = 4
    for value in (decoded.target, decoded.sender, decoded.in_reply_to):
        if value is not UNSET:
            strings += 2
    if decoded.data is UNSET:
        return count_strings(message) != strings
    data = bytes(decoded.data)
    if message.count(b"\\") == data.count(b"\\"):  # the usual case, without a copy: only the payload has any
        return message.count(b'"') - data.count(b'"') != 2 * (strings + 1)
    return count_strings(message) - count_strings(data) != strings + 1


def encode_message(message: MessageV2) -> bytes:
    """Encode a v2 message; absent fields stay absent."""
    return _encoder.encode(message)
