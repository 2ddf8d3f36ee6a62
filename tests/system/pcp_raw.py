"""A client on raw bytes that shares no code with the broker, and behaves like the existing C++ library.

It opens a WebSocket by hand, sends its association as soon as the socket is open and without a data chunk, refuses
whatever a closed schema refuses, pings with an empty payload, and reconnects 200 ms after any close.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import json
import os
import ssl
import struct
import uuid
from datetime import UTC, datetime, timedelta
from typing import ClassVar

from pcp.pcp_frames import read_v1

RECONNECT_S = 0.2
_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


class Closed(Exception):
    """The connection is gone; `code` is the close code, 1006 if there was none."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class Refused(Exception):
    """The upgrade was refused with this HTTP status."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


def hello_of(context: ssl.SSLContext) -> bytes:
    """The first record that a client sends."""
    outgoing = ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost").do_handshake()
    return outgoing.read()


class RawPeer:
    """One end of a WebSocket, frame by frame; `is_client` says which."""

    is_client = True

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send_frame(
        self,
        opcode: int,
        payload: bytes = b"",
        *,
        is_final: bool = True,
        length: int | None = None,
        reserved: int = 0,
        is_masked: bool | None = None,
    ) -> None:
        """A frame; `reserved` are the three bits after the first, `length` may lie about what follows."""
        size = len(payload) if length is None else length
        first = (0x80 if is_final else 0) | reserved << 4 | opcode
        masks = self.is_client if is_masked is None else is_masked
        bit = 0x80 if masks else 0
        if size < 126:
            head = struct.pack(">BB", first, bit | size)
        elif size < 65536:
            head = struct.pack(">BBH", first, bit | 126, size)
        else:
            head = struct.pack(">BBQ", first, bit | 127, size)
        if masks:
            mask = os.urandom(4)
            whole = (mask * (len(payload) // 4 + 1))[: len(payload)]
            masked = (int.from_bytes(payload) ^ int.from_bytes(whole)).to_bytes(len(payload)) if payload else b""
            self.writer.write(head + mask + masked)
        else:
            self.writer.write(head + payload)

    async def receive_frame(self) -> tuple[int, bytes]:
        """Opcode and payload of the next frame; Closed at the end."""
        try:
            first, second = await self.reader.readexactly(2)
            assert first & 0x80, "nobody here fragments"
            assert bool(second & 0x80) is not self.is_client, "a client masks and a server does not"
            size = second & 0x7F
            if size == 126:
                (size,) = struct.unpack(">H", await self.reader.readexactly(2))
            elif size == 127:
                (size,) = struct.unpack(">Q", await self.reader.readexactly(8))
            mask = b"" if self.is_client else await self.reader.readexactly(4)
            payload = await self.reader.readexactly(size)
        except (asyncio.IncompleteReadError, OSError):
            self.writer.close()
            raise Closed(1006) from None
        if mask:
            payload = bytes(byte ^ mask[place % 4] for place, byte in enumerate(payload))
        if first & 0x0F == 8:
            self.writer.close()
            raise Closed(struct.unpack(">H", payload[:2])[0])
        return first & 0x0F, payload

    async def closed_with(self, timeout_s: float = 60) -> int:
        """Read until the close; returns its code."""
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    await self.receive_frame()
        except Closed as closed:
            return closed.code

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            await self.writer.wait_closed()


class RawServer(RawPeer):
    """The server's end of a WebSocket, for clients under test."""

    is_client = False

    @classmethod
    async def upgrade(cls, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> RawServer:
        """Answer the request of a connected client."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        (key,) = [line.split(": ")[1] for line in head.split("\r\n") if line.lower().startswith("sec-websocket-key")]
        accept = base64.b64encode(hashlib.sha1(key.encode() + _GUID).digest()).decode()
        writer.write(
            f"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Accept: {accept}\r\n\r\n".encode()
        )
        return cls(reader, writer)


class RawClient(RawPeer):
    writers: ClassVar[list[asyncio.StreamWriter]] = []
    uri = ""

    @classmethod
    async def close_all(cls) -> None:
        """Close whatever tests left open."""
        writers, cls.writers = cls.writers, []
        for writer in writers:
            writer.transport.abort()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    @classmethod
    async def open(cls, port: int, path: str = "/pcp", context: ssl.SSLContext | None = None) -> RawClient:
        hostname = "localhost" if context else None
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", port, ssl=context, server_hostname=hostname, limit=1 << 27
        )
        cls.writers.append(writer)
        key = base64.b64encode(os.urandom(16)).decode()
        writer.write(
            f"GET {path} HTTP/1.1\r\nHost: localhost:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
        )
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, OSError):
            writer.close()
            raise Closed(1006) from None
        status = int(head.split(b" ")[1])
        if status != 101:
            writer.close()
            raise Refused(status)
        assert b"permessage-deflate" not in head.lower()
        assert b"sec-websocket-protocol" not in head.lower()
        return cls(reader, writer)

    @classmethod
    async def associate(cls, port: int, uri: str, context: ssl.SSLContext | None = None) -> RawClient:
        client = await cls.open(port, context=context)
        client.uri = uri
        request = client.send_v1("http://puppetlabs.com/associate_request", ["pcp:///server"])
        envelope, data, _ = await client.receive_v1()
        assert envelope["message_type"] == "http://puppetlabs.com/associate_response", envelope
        content = json.loads(data)
        assert set(content) <= {"id", "success", "reason"}
        assert content["id"] == request
        if not content["success"]:
            raise Closed(await client.closed_with())
        return client

    def send_v1(
        self, message_type: str, targets: list[str], data: bytes | None = None, ttl_s: float = 60, **more
    ) -> str:
        message_id = str(uuid.uuid4())
        expires = datetime.now(UTC) + timedelta(seconds=ttl_s)
        envelope = {
            "id": message_id,
            "message_type": message_type,
            "expires": expires.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            "targets": targets,
            "sender": self.uri,
            **{name.replace("_to", "-to").replace("in_", "in-"): value for name, value in more.items()},
        }
        document = json.dumps(envelope).encode()
        message = b"\x01" + struct.pack(">Bi", 1, len(document)) + document
        if data is not None:
            message += struct.pack(">Bi", 2, len(data)) + data
        self.send_frame(2, message)
        return message_id

    def send_v2(self, message_type: str, target: str | None, **more: object) -> str:
        message = {"id": str(uuid.uuid4()), "message_type": message_type, **more}
        if target is not None:
            message["target"] = target
        self.send_frame(1, json.dumps(message).encode())
        return message["id"]

    async def receive_v1(self, timeout_s: float = 60) -> tuple[dict[str, object], bytes | None, list[bytes]]:
        opcode, payload = await asyncio.wait_for(self.receive_frame(), timeout_s)
        assert opcode == 2, "v1 travels in binary frames"
        return read_v1(payload)

    async def receive_v2(self, timeout_s: float = 60) -> dict[str, object]:
        opcode, payload = await asyncio.wait_for(self.receive_frame(), timeout_s)
        assert opcode == 1, "v2 travels in text frames"
        message = json.loads(payload)
        assert set(message) <= {"id", "message_type", "target", "sender", "in_reply_to", "data"}
        return message
