"""Builders of wire bytes for the tests; they share no code with the codecs they test."""

from __future__ import annotations

import json
import struct

SENDER = "pcp://client_a/controller"
TARGET = "pcp://client_b/agent"
ID = "6f1e7a46-1c1c-4b5e-9d1a-2f1f6a3c9b11"
EXPIRES = "2026-11-15T20:00:00.000000Z"
NOW = 1_794_772_740_000_000  # 2026-11-15T19:59:00Z
BROKER = "pcp:///server"


def envelope(**changes: object) -> dict[str, object]:
    fields: dict[str, object] = {
        "id": ID,
        "message_type": "http://example.com/ping",
        "expires": EXPIRES,
        "targets": [TARGET],
        "sender": SENDER,
    }
    fields.update({name.replace("in_reply_to", "in-reply-to"): value for name, value in changes.items()})
    return {name: value for name, value in fields.items() if value is not None}


def chunk(descriptor: int, content: bytes, length: int | None = None) -> bytes:
    return struct.pack(">Bi", descriptor, len(content) if length is None else length) + content


def frame_v1(data: bytes | None = None, debug: tuple[bytes, ...] = (), **changes: object) -> bytes:
    return raw_v1(compact(envelope(**changes)), data, debug)


def raw_v1(document: bytes, data: bytes | None = None, debug: tuple[bytes, ...] = ()) -> bytes:
    parts = [b"\x01", chunk(1, document)]
    if data is not None:
        parts.append(chunk(2, data))
    parts += [chunk(3, content) for content in debug]
    return b"".join(parts)


def frame_v2(**changes: object) -> bytes:
    fields: dict[str, object] = {"id": ID, "message_type": "http://example.com/ping", "target": TARGET}
    fields.update(changes)
    return compact({name: value for name, value in fields.items() if value is not None})


def compact(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def read_v1(message: bytes) -> tuple[dict[str, object], bytes | None, list[bytes]]:
    """Envelope, data and debug chunks, read as a strict client does."""
    assert message[0] == 1
    at = 1
    found: list[tuple[int, bytes]] = []
    while at < len(message):
        descriptor, length = struct.unpack_from(">Bi", message, at)
        found.append((descriptor, message[at + 5 : at + 5 + length]))
        at += 5 + length
    assert at == len(message)
    assert found[0][0] == 1
    fields = json.loads(found[0][1])
    assert set(fields) <= {"id", "message_type", "expires", "targets", "sender", "destination_report", "in-reply-to"}
    assert None not in fields.values()
    data = [content for kind, content in found if kind == 2]
    assert len(data) <= 1
    assert found[-1][0] != 2 or found[-1][1]
    return fields, (data[0] if data else None), [content for kind, content in found if kind == 3]
