"""The bytes of a message for a client of either version: unchanged, with hops, or translated.

v1 and v2 clients talk to each other: `targets` of one maps to `target`, `in-reply-to` to `in_reply_to`, an error's
{id, description} to a plain string. v1 data that is not JSON cannot be expressed in v2.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET

from dovetail.model.errors import RemoteProtocolError
from dovetail.model.hop import Reason, Stage
from dovetail.model.times import time_text
from dovetail.pcp.codec_v1 import Frame, append_debug, encode_chunks, encode_frame
from dovetail.pcp.codec_v2 import encode_message
from dovetail.pcp.envelope import Envelope, MessageV2, is_uuid
from dovetail.pcp.message import Message
from dovetail.pcp.strict_json import decode_any
from dovetail.pcp.vocabulary import ERROR_MESSAGE

_encoder = msgspec.json.Encoder()


class HopEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One item of a debug chunk's `hops`."""

    server: str
    time: str
    stage: str = ""


class DebugChunk(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of a debug chunk that lists hops."""

    hops: list[HopEntry]


_debug_decoder = msgspec.json.Decoder(DebugChunk)


class Renderer:
    """Renders messages for clients; `server` is the broker's URI in hops, None if hops are off."""

    def __init__(self, server: str | None, translated_ttl_us: int) -> None:
        self._server = server
        self.is_plain = server is None  # v1 messages go to v1 clients unchanged
        self._translated_ttl_us = translated_ttl_us

    def render(self, message: Message, version: int, uri: str, stage: Stage, now: int) -> bytes:
        """The bytes for one client; raises RemoteProtocolError if the message cannot be translated."""
        origin = message.origin
        if isinstance(origin, Frame):
            if version == 2:
                return encode_message(translate_to_v2(origin, uri))
            if self._server is None or message.is_own:
                return message.payload
            return self._with_hops(message, origin, stage, now)
        if origin is None or version == 2:
            return message.payload
        return translate_to_v1(origin, uri, message.sender, now + self._translated_ttl_us)

    def _with_hops(self, message: Message, frame: Frame, stage: Stage, now: int) -> bytes:
        """Append to the hops of our own debug chunk; foreign chunks are left unchanged."""
        assert self._server is not None
        hops = [
            HopEntry(self._server, time_text(message.accepted_us), Stage.ACCEPTED.value),
            HopEntry(self._server, time_text(now), stage.value),
        ]
        for index in reversed(range(len(frame.debug))):
            earlier = _own_hops(frame.debug[index], self._server)
            if earlier is not None:
                chunks = [*frame.debug]
                chunks[index] = _encoder.encode(DebugChunk([*earlier, *hops]))
                end = 6 + int.from_bytes(message.payload[2:6])
                return encode_chunks(message.payload[6:end], frame.data, chunks)
        return append_debug(message.payload, _encoder.encode(DebugChunk(hops)))


def _own_hops(content: bytes, server: str) -> list[HopEntry] | None:
    try:
        hops = _debug_decoder.decode(content).hops
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return hops if hops and all(hop.server == server for hop in hops) else None


def translate_to_v2(frame: Frame, uri: str) -> MessageV2:
    """Translate a v1 message for one v2 client; raises RemoteProtocolError if its data is not JSON."""
    envelope = frame.envelope
    data: msgspec.Raw | msgspec.UnsetType = UNSET
    answered = envelope.in_reply_to
    if frame.data:
        try:
            content = decode_any(frame.data)
        except ValueError as error:
            raise RemoteProtocolError(Reason.NOT_TRANSLATABLE, f"data is not JSON: {error}") from None
        data = msgspec.Raw(frame.data)
        if envelope.message_type == ERROR_MESSAGE and isinstance(content, dict) and "description" in content:
            data = msgspec.Raw(_encoder.encode(str(content["description"])))
            failed = content.get("id")
            if answered is UNSET and isinstance(failed, str) and is_uuid(failed.encode()):
                answered = failed
    return MessageV2(envelope.id, envelope.message_type, uri, envelope.sender, answered, data)


def translate_to_v1(message: MessageV2, uri: str, sender: str, expires_us: int) -> bytes:
    """Translate a v2 message for one v1 client, with the lifetime that v2 lacks."""
    envelope = Envelope(
        message.id,
        message.message_type,
        time_text(expires_us),
        [uri],
        sender,
        in_reply_to=message.in_reply_to,
    )
    if message.data is UNSET:
        return encode_frame(envelope)
    data = bytes(message.data)
    if message.message_type == ERROR_MESSAGE:
        content: dict[str, Any] = {"description": decode_any(data)}
        if message.in_reply_to is not UNSET:
            content = {"id": message.in_reply_to, **content}
        data = _encoder.encode(content)
    return encode_frame(envelope, data)
