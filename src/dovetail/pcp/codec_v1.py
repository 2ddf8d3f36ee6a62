"""Version 1 on the wire: a version byte, then chunks.

    byte 0        version, 1
    then, for each chunk:
      byte 0      descriptor: low nibble 1 envelope, 2 data, 3 debug; high nibble reserved, ignored, sent as 0
      bytes 1-4   length of the content, big-endian, signed
      bytes 5-    content

The envelope comes first and exactly once, data at most once, debug any number of times. `forward` is what to forward:
the exact bytes received, if they may be sent unchanged.
"""

from __future__ import annotations

import struct
from collections.abc import Container

import msgspec
from msgspec import UNSET

from dovetail.model.errors import RemoteProtocolError
from dovetail.model.hop import Reason
from dovetail.pcp.envelope import MAX_TARGETS, Envelope, Salvage, check_envelope, salvage
from dovetail.pcp.strict_json import count_strings

VERSION_1 = 1
CHUNK_ENVELOPE = 1
CHUNK_DATA = 2
CHUNK_DEBUG = 3
MAX_MESSAGE_BYTES = 64 * 1024 * 1024
MAX_ENVELOPE_BYTES = 16 * 1024 * 1024
MAX_DEBUG_CHUNKS = 64

_HEAD = struct.Struct(">BBi")
_CHUNK = struct.Struct(">Bi")
_decode_envelope = msgspec.json.Decoder(Envelope).decode
_encoder = msgspec.json.Encoder()
_MANY_STRINGS = MAX_TARGETS + 16  # all targets, and the rest of an envelope

# Bytes of the shortest envelope without its values, {"id":"","message_type":"","expires":"","targets":[],"sender":""}
_BARE = len('{"id":"","message_type":"","expires":"","targets":[],"sender":""}')


class Frame(msgspec.Struct, frozen=True, gc=False):
    """A decoded v1 message. `expires_us` is the envelope's time; `data` is None if there is no data chunk."""

    envelope: Envelope
    expires_us: int
    data: bytes | None
    debug: tuple[bytes, ...]
    forward: bytes


def decode_frame(message: bytes, max_bytes: int = MAX_MESSAGE_BYTES, known: Container[str] = ()) -> Frame:
    """Decode a v1 message; raises RemoteProtocolError. URIs in `known` are not checked again."""
    size = len(message)
    if size > max_bytes:
        raise RemoteProtocolError(Reason.TOO_LARGE, f"read {size} bytes, expected at most {max_bytes}")
    if size < 6:
        raise RemoteProtocolError(Reason.MALFORMED, f"read {size} bytes, expected at least 6")
    version, descriptor, length = _HEAD.unpack_from(message)
    end = 6 + length
    if version != VERSION_1 or descriptor & 0x0F != CHUNK_ENVELOPE or not 6 <= end <= size:
        raise _bad_head(version, descriptor, length, size)
    if length > MAX_ENVELOPE_BYTES:
        raise RemoteProtocolError(
            Reason.TOO_LARGE, f"read an envelope of {length} bytes, expected at most {MAX_ENVELOPE_BYTES}"
        )
    document = message[6:end]
    envelope = decode_envelope(document)
    expires_us = check_envelope(envelope, known)
    if descriptor == CHUNK_ENVELOPE:
        if end == size:
            return Frame(envelope, expires_us, None, (), message)
        if end + 5 < size:
            kind, length = _CHUNK.unpack_from(message, end)
            if kind == CHUNK_DATA and end + 5 + length == size:  # the common message: an envelope and its data
                return Frame(envelope, expires_us, message[end + 5 :], (), message)
    return _decode_chunks(message, end, document, envelope, expires_us)


def _bad_head(version: int, descriptor: int, length: int, size: int) -> RemoteProtocolError:
    if version != VERSION_1:
        return RemoteProtocolError(Reason.UNSUPPORTED_VERSION, f"version byte {version}, expected {VERSION_1}")
    if descriptor & 0x0F != CHUNK_ENVELOPE:
        detail = f"first chunk is of type {descriptor & 0x0F}, expected an envelope"
        return RemoteProtocolError(Reason.MALFORMED, detail)
    return RemoteProtocolError(Reason.MALFORMED, f"envelope of {length} bytes in a message of {size}")


def _decode_chunks(message: bytes, end: int, document: bytes, envelope: Envelope, expires_us: int) -> Frame:
    """Decode the chunks after the envelope, whatever they are."""
    size = len(message)
    data: bytes | None = None
    debug: list[bytes] = []
    is_clean = message[1] == CHUNK_ENVELOPE
    while end < size:
        if end + 5 > size:
            raise RemoteProtocolError(Reason.MALFORMED, f"chunk header cut off at byte {end} of {size}")
        descriptor, length = _CHUNK.unpack_from(message, end)
        start = end + 5
        end = start + length
        if length < 0 or end > size:
            raise RemoteProtocolError(Reason.MALFORMED, f"chunk of {length} bytes at byte {start} of {size}")
        kind = descriptor & 0x0F
        if kind == CHUNK_DATA:
            if data is not None:
                raise RemoteProtocolError(Reason.MALFORMED, "two data chunks")
            data = message[start:end]
        elif kind == CHUNK_DEBUG:
            if len(debug) == MAX_DEBUG_CHUNKS:
                raise RemoteProtocolError(Reason.TOO_LARGE, f"more than {MAX_DEBUG_CHUNKS} debug chunks")
            debug.append(message[start:end])
        elif kind == CHUNK_ENVELOPE:
            raise RemoteProtocolError(Reason.MALFORMED, "two envelope chunks")
        else:
            raise RemoteProtocolError(Reason.MALFORMED, f"chunk of unknown type {kind}")
        is_clean = is_clean and descriptor == kind and length > 0
    # Reserved nibbles are sent as 0, and an empty data chunk at the end makes existing clients drop a message.
    forward = message if is_clean else encode_chunks(document, data, debug)
    return Frame(envelope, expires_us, data, tuple(debug), forward)


def decode_envelope(document: bytes) -> Envelope:
    """Decode the JSON of an envelope: closed schema, no duplicate keys; raises RemoteProtocolError."""
    if len(document) > _MANY_STRINGS and (strings := count_strings(document)) > _MANY_STRINGS:
        detail = f"envelope: read {strings} strings, expected at most {_MANY_STRINGS}"
        raise RemoteProtocolError(Reason.TOO_LARGE, detail)
    try:
        envelope = _decode_envelope(document)
    except msgspec.ValidationError as error:
        raise RemoteProtocolError(Reason.INVALID_SCHEMA, f"envelope: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RemoteProtocolError(Reason.MALFORMED, f"envelope: {error}") from None
    targets, report, answered = envelope.targets, envelope.destination_report, envelope.in_reply_to
    needed = _BARE + len(envelope.id) + len(envelope.message_type) + len(envelope.expires) + len(envelope.sender)
    if len(targets) == 1:
        needed += len(targets[0]) + 2
    if report is not UNSET:
        needed += 26 if report else 27
    if answered is not UNSET:
        needed += 17 + len(answered)
    # A document exactly as long as its values need has no spaces, escapes or duplicate keys: no second look needed.
    if len(document) != needed:
        strings = 9 + len(targets) + (report is not UNSET) + 2 * (answered is not UNSET)
        if count_strings(document) != strings:
            raise RemoteProtocolError(Reason.MALFORMED, "envelope: a key stands twice")
    return envelope


def encode_chunks(document: bytes, data: bytes | None, debug: list[bytes] | tuple[bytes, ...] = ()) -> bytes:
    """Encode a v1 message from the JSON of its envelope; an empty data chunk is left out."""
    parts = [_HEAD.pack(VERSION_1, CHUNK_ENVELOPE, len(document)), document]
    if data:
        parts += (_CHUNK.pack(CHUNK_DATA, len(data)), data)
    for content in debug:
        parts += (_CHUNK.pack(CHUNK_DEBUG, len(content)), content)
    return b"".join(parts)


def encode_frame(envelope: Envelope, data: bytes | None = None, debug: tuple[bytes, ...] = ()) -> bytes:
    """Encode a v1 message."""
    return encode_chunks(_encoder.encode(envelope), data, debug)


def append_debug(message: bytes, content: bytes) -> bytes:
    """Append a debug chunk to the message."""
    return b"".join((message, _CHUNK.pack(CHUNK_DEBUG, len(content)), content))


def salvage_frame(message: bytes) -> Salvage:
    """Read what is readable of a refused message, so that the error can name it."""
    try:
        length = _HEAD.unpack_from(message)[2]
    except struct.error:
        return Salvage()
    return salvage(message[6 : 6 + min(length, MAX_ENVELOPE_BYTES)])
