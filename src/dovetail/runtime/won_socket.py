"""WebSocket and HTTP GET for won, with picows behind a thin interface: the only place that knows it.

A `Wire` is one WebSocket. It hands whole messages to its handler, reassembling fragments within bounds. Frames larger
than the core takes still reach it, up to MAX_WIRE_BYTES, so that their refusal is journaled; beyond that it hangs up.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from typing import Any, Protocol, cast
from urllib.parse import urlsplit

import picows

from dovetail.model.errors import KeyFileError
from dovetail.runtime.dialling import dial
from dovetail.runtime.listening import listening

MAX_WIRE_BYTES = 16 << 20
MAX_UNSENT_BYTES = 32 << 20
MAX_DOCUMENT_BYTES = 1 << 20
MAX_HEADER_BYTES = 16 << 10
HANDSHAKE_S = 10.0
FETCH_S = 8.0
PING_IDLE_S = 20.0
READ_BUFFER_BYTES = 16 << 10

_CONTINUATION = picows.WSMsgType.CONTINUATION
_DATA = (picows.WSMsgType.TEXT, picows.WSMsgType.BINARY, picows.WSMsgType.CONTINUATION)
_CLOSE = picows.WSMsgType.CLOSE
_quiet = logging.getLogger("dovetail.won.picows")
_quiet.setLevel(logging.CRITICAL)  # it logs two lines per connection; what matters is journaled


class Handler(Protocol):
    """Who is told what happens on a wire; called from the event loop."""

    def receive_opened(self, wire: Wire) -> None: ...
    def receive_message(self, data: bytes, wire: Wire) -> None: ...
    def receive_closed(self, wire: Wire) -> None: ...


class Wire(picows.WSListener):
    """One WebSocket, of either side."""

    def __init__(self, name: str, kind: str, handler: Handler) -> None:
        self.name = name
        self.kind = kind
        self._handler = handler
        self._parts: list[bytes] = []
        self._size = 0
        self._transport: picows.WSTransport | None = None

    def on_ws_connected(self, transport: picows.WSTransport) -> None:
        """picows: the handshake is done."""
        self._transport = transport
        self._handler.receive_opened(self)

    def on_ws_frame(self, transport: picows.WSTransport, frame: picows.WSFrame) -> None:
        """picows: a frame came."""
        if frame.msg_type == _CLOSE:
            transport.send_close(picows.WSCloseCode.OK)
            transport.disconnect()
        elif frame.msg_type in _DATA:
            self._take(frame.get_payload_as_bytes(), is_last=bool(frame.fin))

    def on_ws_disconnected(self, transport: picows.WSTransport) -> None:
        """picows: the wire is gone."""
        del transport
        self._transport = None
        self._handler.receive_closed(self)

    def _take(self, payload: bytes, *, is_last: bool) -> None:
        if is_last and not self._parts:
            self._handler.receive_message(payload, self)
            return
        self._parts.append(payload)
        self._size += len(payload)
        if self._size > MAX_WIRE_BYTES:
            self.abort()
        elif is_last:
            whole, self._parts, self._size = b"".join(self._parts), [], 0
            self._handler.receive_message(whole, self)

    def send(self, data: bytes) -> None:
        """Write one message; a peer that does not read in time is dropped, it can catch up later."""
        transport = self._transport
        if transport is None:
            return
        if int(transport.underlying_transport.get_write_buffer_size()) > MAX_UNSENT_BYTES:
            self.abort()
            return
        transport.send(picows.WSMsgType.TEXT, data)

    def close(self, code: int) -> None:
        """Say goodbye and hang up."""
        if self._transport is not None:
            self._transport.send_close(cast(Any, code))
            self._transport.disconnect()

    def abort(self) -> None:
        """Hang up at once."""
        if self._transport is not None:
            self._transport.disconnect(False)

    def set_reading(self, wanted: bool) -> None:
        """Stop or go on taking bytes from the peer."""
        if self._transport is not None:
            underlying = cast(asyncio.ReadTransport, self._transport.underlying_transport)
            if wanted and not underlying.is_reading():
                underlying.resume_reading()
            elif not wanted and underlying.is_reading():
                underlying.pause_reading()


class Request(Protocol):
    """What `serve` is told of a GET before any upgrade."""

    path: bytes
    headers: Any


Answer = Wire | tuple[int, str, bytes]
"""A wire for a WebSocket, or status, content type and body of a document."""


async def serve(
    answer: Callable[[str, str], Answer], host: str, port: int, context: ssl.SSLContext | None
) -> asyncio.Server:
    """Listen; `answer(path, accept)` decides what each GET gets."""

    def route(request: Request) -> Any:
        reply = answer(request.path.decode("latin-1"), str(request.headers.get("accept", "")))
        if isinstance(reply, Wire):
            return reply
        status, content_type, body = reply
        headers = {"Content-Type": content_type, "Vary": "Accept"}
        if status < 400:
            response = picows.WSUpgradeResponse.create_ok_response(body, headers)
        else:
            response = picows.WSUpgradeResponse.create_error_response(status, body, headers)
        return picows.WSUpgradeResponseWithListener(response, None)

    with listening("tcp", host, port):
        return await picows.ws_create_server(
            cast(Any, route),
            host,
            port,
            ssl=context,
            websocket_handshake_timeout=HANDSHAKE_S,
            enable_auto_ping=True,
            auto_ping_idle_timeout=PING_IDLE_S,
            auto_ping_reply_timeout=PING_IDLE_S,
            max_frame_size=MAX_WIRE_BYTES,
            read_buffer_init_size=READ_BUFFER_BYTES,
            logger_name=_quiet,
        )


async def connect(wire: Wire, node: str, context: ssl.SSLContext | None) -> None:
    """Open a wire to a node; raises OSError or picows.WSError."""
    url = f"{node.replace('http', 'ws', 1)}/link/{wire.kind}"
    await dial(
        wire,
        url,
        ssl_context=context if url.startswith("wss:") else None,
        websocket_handshake_timeout=HANDSHAKE_S,
        enable_auto_ping=True,
        auto_ping_idle_timeout=PING_IDLE_S,
        auto_ping_reply_timeout=PING_IDLE_S,
        max_frame_size=MAX_WIRE_BYTES,
        logger_name=_quiet,
    )


async def fetch(uri: str, context: ssl.SSLContext | None, accept: str = "application/trig") -> bytes | None:
    """GET a document; None if it is not there, too large, or nobody answers in time."""
    try:
        async with asyncio.timeout(FETCH_S):
            return await _fetch(uri, context, accept)
    except (OSError, TimeoutError, ValueError, EOFError, asyncio.LimitOverrunError):
        return None


async def _fetch(uri: str, context: ssl.SSLContext | None, accept: str) -> bytes | None:
    parts = urlsplit(uri)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return None
    is_secure = parts.scheme == "https"
    reader, writer = await asyncio.open_connection(
        parts.hostname,
        parts.port or (443 if is_secure else 80),
        ssl=(context or ssl.create_default_context()) if is_secure else None,
        limit=MAX_HEADER_BYTES,
    )
    try:
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        request = f"GET {path} HTTP/1.1\r\nHost: {parts.netloc}\r\nAccept: {accept}\r\nConnection: close\r\n\r\n"
        writer.write(request.encode("ascii"))
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        if head[0].split(" ")[1:2] != ["200"]:
            return None
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])}
        size = int(headers.get("content-length", "-1"))
        if size > MAX_DOCUMENT_BYTES:
            return None
        if size >= 0:
            return await reader.readexactly(size)
        body = b"".join([chunk async for chunk in _chunks(reader)])
        return body if len(body) <= MAX_DOCUMENT_BYTES else None
    finally:
        writer.close()


async def _chunks(reader: asyncio.StreamReader) -> Any:
    size = 0
    while size <= MAX_DOCUMENT_BYTES and (chunk := await reader.read(65536)):
        size += len(chunk)
        yield chunk


def server_context(certificate: str, key: str) -> ssl.SSLContext:
    """TLS for a node that listens; owners and nodes prove who they are by signatures, not certificates."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise KeyFileError(f"{certificate} or {key} cannot be used: {error}") from None
    return context


def client_context(authority: str | None) -> ssl.SSLContext:
    """TLS towards nodes: their host names must be certified by `authority`, or by the system's own."""
    try:
        context = ssl.create_default_context(cafile=authority)
    except (OSError, ssl.SSLError) as error:
        raise KeyFileError(f"{authority} cannot be used: {error}") from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context
