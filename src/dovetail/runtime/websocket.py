"""WebSocket behind a thin interface: what the shells need of a connection, and picows as the one that provides it.

picows hands over frames, not messages: reassembly of fragments and its bounds are here. Frames for sending are made
here too, so that one prebuilt frame can go to every recipient and all of a turn goes out in one write. The transport's
high-water mark is zero: `receive_paused` comes as soon as the kernel does not take everything at once.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import ssl
import struct
from collections.abc import Iterable
from typing import Any, Protocol, cast

import picows

from dovetail.model.hop import Reason
from dovetail.runtime.listening import listening

MAX_FRAGMENTS = 16_384
MAX_PONG_BACKLOG_BYTES = 64 * 1024
MAX_CLOSE_DETAIL_BYTES = 123
READ_BUFFER_BYTES = 2_048
LARGE_FRAME_BYTES = 1024 * 1024
BACKLOG = 4_096
LINGER_S = 1.0

_BINARY = picows.WSMsgType.BINARY
_TEXT = picows.WSMsgType.TEXT
_CONTINUATION = picows.WSMsgType.CONTINUATION
_PING = picows.WSMsgType.PING
_PONG = picows.WSMsgType.PONG
_CLOSE = picows.WSMsgType.CLOSE
_NORMAL = 1000
_TOO_BIG = 1009
_PROTOCOL_ERROR = 1002
_OPCODE_TEXT = 0x81
_OPCODE_BINARY = 0x82
_OPCODE_CLOSE = 0x88

log = logging.getLogger("dovetail.websocket")
_numbers = itertools.count(1)


class Connection(Protocol):
    """An open WebSocket connection, as shells use it."""

    @property
    def id(self) -> int:
        """A number that no other connection of this process has."""

    def send(self, frames: bytes) -> None:
        """Write whole frames, as `encode_frames` makes them."""

    def close(self, code: int, detail: str) -> None:
        """Write a close frame and drop the wire without waiting for an answer."""

    def abort(self) -> None:
        """Drop the wire at once."""

    @property
    def write_buffer_size(self) -> int:
        """Bytes that the kernel has not taken yet."""

    def take_certificate(self) -> dict[str, Any] | None:
        """The peer's certificate, as `ssl` describes it, which is not kept; None without TLS."""


class Handler(Protocol):
    """Who is told what happens to the connections of a listener; called from the event loop, must not raise."""

    def admit(self, path: str) -> int | None:
        """Before the upgrade: None to go on, or the HTTP status to refuse with."""

    def receive_opened(self, connection: Connection, path: str) -> None: ...
    def receive_message(self, data: bytes, connection: int, is_text: bool) -> None: ...
    def receive_large(self, connection: int, size: int) -> None:
        """A frame so large came that the connection's read buffer stays large: up to twice this size."""

    def receive_ping(self, connection: int) -> None: ...
    def receive_refused(self, data: bytes, connection: int, reason: Reason, size: int) -> None: ...
    def receive_paused(self, connection: int) -> None: ...
    def receive_resumed(self, connection: int) -> None: ...
    def receive_closed(self, connection: int) -> None: ...


def encode_frames(payloads: Iterable[bytes], is_text: bool) -> bytes:
    """Messages as unmasked frames, one after the other; what a server sends (RFC 6455, 5.2)."""
    opcode = _OPCODE_TEXT if is_text else _OPCODE_BINARY
    parts: list[bytes] = []
    for payload in payloads:
        size = len(payload)
        if size < 126:
            parts.append(bytes((opcode, size)))
        elif size < 65_536:
            parts.append(struct.pack(">BBH", opcode, 126, size))
        else:
            parts.append(struct.pack(">BBQ", opcode, 127, size))
        parts.append(payload)
    return b"".join(parts)


def encode_close(code: int, detail: str) -> bytes:
    """A close frame of a server; the detail is cut to what fits."""
    text = detail.encode()[:MAX_CLOSE_DETAIL_BYTES].decode(errors="ignore").encode()
    return struct.pack(">BBH", _OPCODE_CLOSE, 2 + len(text), code) + text


class Assembler:
    """Puts the fragments of one connection together, within bounds."""

    __slots__ = ("_count", "_is_text", "_max_bytes", "_parts")

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._parts: bytearray | None = None
        self._count = 0
        self._is_text = False

    @property
    def is_idle(self) -> bool:
        """Whether no message is begun."""
        return self._parts is None

    @property
    def beginning(self) -> bytes:
        """What has come of the message that is begun."""
        return bytes(self._parts or b"")

    def add(self, payload: bytes, *, opens: bool, is_last: bool, is_text: bool) -> tuple[bytes, bool] | None:
        """Take a fragment; returns the message and whether it is text once it is whole. ValueError if out of bounds."""
        if opens:
            if self._parts is not None:
                raise ValueError("a message began inside another")
            self._parts, self._count, self._is_text = bytearray(), 0, is_text
        elif self._parts is None:
            raise ValueError("a continuation of nothing")
        self._count += 1
        if self._count > MAX_FRAGMENTS or len(self._parts) + len(payload) > self._max_bytes:
            raise OverflowError(f"more than {self._max_bytes} bytes or {MAX_FRAGMENTS} fragments")
        self._parts += payload
        if not is_last:
            return None
        message, self._parts = bytes(self._parts), None
        return message, self._is_text


class PicowsConnection(picows.WSListener):
    """One connection of picows: both its listener and our Connection."""

    __slots__ = (
        "_assembler",
        "_handler",
        "_is_closing",
        "_max_bytes",
        "_path",
        "_receive",
        "_underlying",
        "id",
    )

    def __init__(self, handler: Handler, path: str, max_bytes: int) -> None:
        self.id = next(_numbers)
        self._handler = handler
        self._receive = handler.receive_message
        self._path = path
        self._max_bytes = max_bytes
        self._assembler: Assembler | None = None
        self._underlying: Any = None
        self._is_closing = False

    # Called by picows

    def on_ws_connected(self, transport: picows.WSTransport) -> None:
        self._underlying = transport.underlying_transport
        self._underlying.set_write_buffer_limits(high=0)
        # picows keeps both for as long as the connection lives; their headers take 2 KiB
        for exchanged in (transport.request, transport.response):
            exchanged.headers.clear()
        self._handler.receive_opened(cast(Connection, self), self._path)

    def on_ws_frame(self, transport: picows.WSTransport, frame: picows.WSFrame) -> None:
        if self._is_closing:
            return
        kind = frame.msg_type
        if frame.fin and self._assembler is None and not frame.rsv1:
            if kind == _BINARY:
                payload = frame.get_payload_as_bytes()
                self._receive(payload, self.id, False)
                if len(payload) > LARGE_FRAME_BYTES:
                    self._handler.receive_large(self.id, len(payload))
                return
            if kind == _TEXT:
                payload = frame.get_payload_as_bytes()
                self._receive(payload, self.id, True)
                if len(payload) > LARGE_FRAME_BYTES:
                    self._handler.receive_large(self.id, len(payload))
                return
        if kind == _PING:
            if self.write_buffer_size <= MAX_PONG_BACKLOG_BYTES:
                transport.send_pong(frame.get_payload_as_bytes())
            self._handler.receive_ping(self.id)
        elif kind == _PONG:
            self._handler.receive_ping(self.id)
        elif kind == _CLOSE:
            self.close(int(cast(int, frame.get_close_code())) or _NORMAL, "")
        else:
            self._take_fragment(frame)

    def _take_fragment(self, frame: picows.WSFrame) -> None:
        if frame.rsv1 or frame.rsv2 or frame.rsv3:
            self.close(_PROTOCOL_ERROR, "no extension was agreed on")
            return
        if self._assembler is None:
            self._assembler = Assembler(self._max_bytes)
        kind = frame.msg_type
        try:
            whole = self._assembler.add(
                frame.get_payload_as_bytes(),
                opens=kind != _CONTINUATION,
                is_last=bool(frame.fin),
                is_text=kind == _TEXT,
            )
        except OverflowError as error:
            beginning = self._assembler.beginning
            size = len(beginning) + frame.payload_size
            self._handler.receive_refused(beginning, self.id, Reason.TOO_LARGE, size)
            self.close(_TOO_BIG, str(error))
        except ValueError as error:
            self._handler.receive_refused(frame.get_payload_as_bytes(), self.id, Reason.MALFORMED, frame.payload_size)
            self.close(_PROTOCOL_ERROR, str(error))
        else:
            if whole is not None:
                self._assembler = None
                self._receive(whole[0], self.id, whole[1])

    def on_ws_disconnected(self, transport: picows.WSTransport) -> None:
        handshake = transport.close_handshake
        if handshake is not None and handshake.sent is not None and cast(int, handshake.sent.code) == _TOO_BIG:
            # picows refuses a frame by its header, before any of it is stored
            self._handler.receive_refused(b"", self.id, Reason.TOO_LARGE, self._max_bytes + 1)
        self._is_closing = True
        self._handler.receive_closed(self.id)

    def pause_writing(self) -> None:
        self._handler.receive_paused(self.id)

    def resume_writing(self) -> None:
        self._handler.receive_resumed(self.id)

    # The Connection

    def send(self, frames: bytes) -> None:
        """Write whole frames."""
        self._underlying.write(frames)

    def close(self, code: int, detail: str) -> None:
        """Write a close frame and drop the wire; a peer that does not read has until the linger time is over."""
        if self._is_closing:
            return
        self._is_closing = True
        self._underlying.write(encode_close(code, detail))
        self._underlying.close()
        asyncio.get_running_loop().call_later(LINGER_S, self._underlying.abort)

    def abort(self) -> None:
        """Drop the wire at once."""
        self._is_closing = True
        self._underlying.abort()

    @property
    def write_buffer_size(self) -> int:
        """Bytes that the kernel has not taken yet."""
        return int(self._underlying.get_write_buffer_size())

    def take_certificate(self) -> dict[str, Any] | None:
        """The peer's certificate, as `ssl` describes it. The transport's copy is emptied: it takes 1 KiB."""
        kept: dict[str, Any] | None = self._underlying.get_extra_info("peercert")
        if kept is None:
            return None
        certificate = dict(kept)
        kept.clear()
        return certificate


async def listen(
    handler: Handler,
    host: str,
    port: int,
    *,
    context: ssl.SSLContext | None,
    max_bytes: int,
    handshake_timeout_s: float,
) -> asyncio.Server:
    """Accept connections for a handler until the server that is returned is closed."""

    def upgrade(request: picows.WSUpgradeRequest) -> picows.WSListener | picows.WSUpgradeResponseWithListener:
        path = request.path.decode("latin-1")
        status = handler.admit(path)
        if status is None:
            return PicowsConnection(handler, path, max_bytes)
        headers = {"Connection": "close", **({"Retry-After": "5"} if status == 503 else {})}
        response = picows.WSUpgradeResponse.create_error_response(status, extra_headers=headers)
        return picows.WSUpgradeResponseWithListener(response, None)

    more: dict[str, Any] = {} if context is None else {"ssl_handshake_timeout": handshake_timeout_s}
    with listening("tcp", host, port):
        return await picows.ws_create_server(
            upgrade,
            host,
            port,
            ssl=context,
            websocket_handshake_timeout=handshake_timeout_s,
            enable_auto_pong=False,
            max_frame_size=max_bytes,
            read_buffer_init_size=READ_BUFFER_BYTES,
            logger_name=quiet_log,
            backlog=BACKLOG,
            **more,
        )


_quiet_logger = logging.getLogger("dovetail.websocket.picows")
_quiet_logger.setLevel(logging.CRITICAL)  # it logs two lines per connection; what matters is journaled and counted
quiet_log = logging.LoggerAdapter(_quiet_logger)  # of a Logger it would make one more for each connection
