"""Captured bytes as the fields they hold, for people: the protocol version is recognised by the first byte."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET

from dovetail.model.address import address_of
from dovetail.model.errors import RemoteProtocolError
from dovetail.pcp.codec_v1 import decode_frame
from dovetail.pcp.codec_v2 import decode_message
from dovetail.pcp.strict_json import decode_any

_JSON_STARTS = frozenset(b"{ \t\r\n")


def explain_frame(message: bytes, layer: str = "auto", now_us: int | None = None) -> dict[str, Any]:
    """The fields of a whole frame, or `error` (its class) and `detail`."""
    try:
        if layer == "v2" or (layer == "auto" and message[:1] and message[0] in _JSON_STARTS):
            fields = _explain_v2(message)
        else:
            fields = _explain_v1(message, now_us)
    except RemoteProtocolError as error:
        return {"error": error.reason.value, "detail": error.detail}
    fields["address"] = address_of(message).hex()
    fields["size"] = len(message)
    return fields


def _explain_v1(message: bytes, now_us: int | None) -> dict[str, Any]:
    frame = decode_frame(message)
    fields: dict[str, Any] = {"version": 1, **msgspec.to_builtins(frame.envelope)}
    if now_us is not None:
        fields["expired"] = frame.expires_us <= now_us
    if frame.data is not None:
        fields |= _explain_content("data", frame.data)
    if frame.debug:
        fields["debug"] = [_explain_content("content", chunk) for chunk in frame.debug]
    return fields


def _explain_v2(message: bytes) -> dict[str, Any]:
    decoded = decode_message(message)
    fields: dict[str, Any] = {"version": 2}
    for name in decoded.__struct_fields__:
        value = getattr(decoded, name)
        if value is not UNSET:
            fields[name] = decode_any(bytes(value)) if name == "data" else value
    return fields


def _explain_content(name: str, content: bytes) -> dict[str, Any]:
    try:
        return {name: decode_any(content)}
    except ValueError:
        return {f"{name}_hex": content.hex()}
