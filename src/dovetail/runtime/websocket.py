"""WebSockets for servers and clients: the same limits on both sides, with picows behind our own interface.

A `Link` is one open WebSocket, opened by either side. `listen` and `dial` create links and report their events to a
`LinkHandler`. picows delivers frames, not messages: fragments are reassembled here, within limits. Whatever breaks a
limit or a rule of RFC 6455 closes the link, after `refused` was called if bytes were refused.

The transport's high-water mark is zero: `paused` is called as soon as the kernel does not take everything at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Generic, NamedTuple, TypeVar, cast
from urllib.parse import urlsplit

import aiofastnet
import picows

from dovetail.model.errors import ConnectFailed
from dovetail.model.hop import Reason
from dovetail.model.wire import CLOSE_ABNORMAL, CLOSE_INTERNAL_ERROR, CLOSE_NORMAL, CLOSE_TOO_BIG
from dovetail.runtime.acceptor import Acceptor, format_address, host_of, log
from dovetail.runtime.frames import Assembler, Memory
from dovetail.runtime.http import Reply
from dovetail.runtime.limits import NO_LIMIT, Limits
from dovetail.runtime.picows_protocol import LinkProtocol
from dovetail.runtime.tls import ServerTls, TransportLoop, describe_connecting, refuse_hello, wait_for_hello

MAX_PONG_BACKLOG_BYTES = 64 * 1024
MAX_CLOSE_DETAIL_BYTES = 123
LINGER_S = 1.0
ROOM_CHECK_S = 0.05
_SPARE_S = 1.0  # the caller's time limit for a handshake must expire before the transport's

_NO_CODE = 1005
_PROTOCOL_ERROR = 1002

_BINARY = picows.WSMsgType.BINARY
_TEXT = picows.WSMsgType.TEXT
_DATA = (_BINARY, _TEXT)
_CONTINUATION = picows.WSMsgType.CONTINUATION
_PING = picows.WSMsgType.PING
_PONG = picows.WSMsgType.PONG
_CLOSE = picows.WSMsgType.CLOSE

LinkId = TypeVar("LinkId")


class LinkHandler(Generic[LinkId]):
    """Receives link events; called from the event loop, must not raise. Override what you need."""

    def opened(self, link: Link, label: str) -> None:
        """The handshake is complete; `label` is from `dial` or `admit`."""

    def frame(self, data: bytes, link: LinkId, is_text: bool) -> None:
        """A whole message arrived; the hot path."""

    def pinged(self, link: LinkId) -> None:
        """A ping, already answered, or a pong arrived."""

    def refused(self, data: bytes, link: LinkId, reason: Reason, size: int) -> None:
        """A message of at least `size` bytes, starting with `data`, was refused; the link is closed next."""

    def exhausted(self, link: LinkId, messages: int, size: int) -> None:
        """Its turn is over, with this many frames and bytes received; `give_turn` lets it continue."""

    def paused(self, link: LinkId) -> None:
        """The kernel takes no more."""

    def resumed(self, link: LinkId) -> None:
        """The kernel has taken everything."""

    def closed(self, link: LinkId, code: int) -> None:
        """The link is closed: with the peer's close code, 1005 if it gave none, 1006 if there was no close frame."""


class Request(NamedTuple):
    """A GET, before any upgrade, and the host that it is from."""

    path: bytes
    headers: Any
    host: str


@dataclass(frozen=True, slots=True)
class Accept(Generic[LinkId]):
    """Upgrade the request to a link with this id."""

    link: LinkId
    label: str = ""


class Link(picows.WSListener):
    """An open WebSocket, of either side: what the runtime calls, then what picows calls."""

    __slots__ = (
        "_assembler",
        "_code",
        "_count_unsent",
        "_handler",
        "_is_closing",
        "_is_full",
        "_is_held_back",
        "_is_resting",
        "_is_trusted",
        "_is_wanted",
        "_label",
        "_left_bytes",
        "_left_messages",
        "_limits",
        "_memory",
        "_receive",
        "_transport",
        "_underlying",
        "_unsent",
        "id",
        "is_broken",
        "lost_bytes",
        "write",
    )

    def __init__(
        self, handler: LinkHandler[Any], link: Any, label: str, limits: Limits, memory: Memory, unsent: Memory
    ) -> None:
        self.id = link
        self._handler = handler
        self._receive = handler.frame
        self._label = label
        self._limits = limits
        self._assembler: Assembler | None = None
        self._memory = memory
        self._unsent = unsent
        self._is_held_back = self._is_resting = False
        self._left_messages = NO_LIMIT if limits.turn_messages is None else limits.turn_messages
        self._left_bytes = NO_LIMIT if limits.turn_messages is None else limits.turn_bytes
        self._is_trusted = limits.untrusted_bytes is None
        self._is_wanted = True
        self._code = CLOSE_ABNORMAL
        self._is_closing = False
        self._is_full = False
        self.lost_bytes = 0
        """What the kernel had not taken when the link ended, or when last known; for `closed`."""

    @property
    def host(self) -> str:
        """Address of the other side."""
        return host_of(self._underlying.get_extra_info("peername"))

    @property
    def peer(self) -> str:
        """Address and port of the other side."""
        return format_address(self._underlying.get_extra_info("peername"))

    def send(self, message: bytes, *, is_text: bool) -> None:
        """Write one message; a peer that leaves more than `max_unsent_bytes` unread is dropped."""
        limit = self._limits.max_unsent_bytes
        if limit is not None and self.unsent_bytes > limit:
            log.warning("link %s to %s is dropped: more than %d bytes unsent", self.id, self.peer, limit)
            self.abort()
        elif not self._is_closing and not self.is_broken():
            self._transport.send(_TEXT if is_text else _BINARY, message)
            self._count_unread()

    def close(self, code: int, detail: str = "") -> None:
        """Write a close frame and disconnect without waiting for an answer; idempotent."""
        if self._is_closing:
            return
        self._is_closing = True
        self._assembler = None
        self._memory.release(self)
        text = detail.encode()[:MAX_CLOSE_DETAIL_BYTES].decode(errors="ignore")
        self._transport.send_close(cast(Any, code), text)
        self._underlying.close()
        asyncio.get_running_loop().call_later(LINGER_S, self.abort)

    def abort(self) -> None:
        """Disconnect immediately."""
        self._is_closing = True
        self.lost_bytes = self.unsent_bytes or self.lost_bytes
        self._underlying.abort()

    def set_reading(self, wanted: bool) -> None:
        """Stop or resume reading from the peer."""
        self._is_wanted = wanted
        if not wanted or self._is_held_back or self._is_resting:
            self._underlying.pause_reading()
        elif not self._underlying.is_reading():
            # aiofastnet would first read more from the socket, which fails if its buffered data leaves no room
            hand_on = getattr(self._underlying, "_retry_ssl_read", None)
            if hand_on is not None:
                asyncio.get_running_loop().call_soon(hand_on)
            self._underlying.resume_reading()

    def trust(self) -> None:
        """The peer has proven its identity: `untrusted_bytes` no longer applies."""
        self._is_trusted, self._is_held_back = True, False
        self.set_reading(self._is_wanted)

    def give_turn(self) -> None:
        """Let it continue after `exhausted`."""
        self._left_messages, self._left_bytes = self._limits.turn_messages or NO_LIMIT, self._limits.turn_bytes
        self._is_resting = False
        if not self._is_closing:
            self.set_reading(self._is_wanted)

    def hold(self, more_bytes: int) -> None:
        """Count bytes of incomplete messages; an untrusted peer is not read beyond its limit."""
        if not self._is_closing:
            held = self._memory.hold(self, more_bytes)
            if not self._is_trusted and held > (self._limits.untrusted_bytes or 0):
                self._is_held_back = True
                self._underlying.pause_reading()

    def refuse_more(self, size: int) -> None:
        """All links together hold too much, and this one the most."""
        self._handler.refused(b"", self.id, Reason.QUEUE_FULL, size)
        self.close(CLOSE_INTERNAL_ERROR, "unfinished messages exceed the memory limit")

    def drop_unread(self, size: int) -> None:
        """All links together leave too much unread, and this one the most."""
        log.warning("link %s to %s is dropped: it leaves %d bytes unread", self.id, self.peer, size)
        self._unsent.release(self)
        self.abort()

    @property
    def unsent_bytes(self) -> int:
        """Bytes that the kernel has not taken yet; with TLS including those already encrypted."""
        return int(self._count_unsent())

    def take_certificate(self) -> dict[str, Any] | None:
        """The peer's certificate, as `ssl` describes it. Clears the transport's copy, which takes 1 KiB."""
        kept: dict[str, Any] | None = self._underlying.get_extra_info("peercert")
        if kept is None:
            return None
        certificate = dict(kept)
        kept.clear()
        return certificate

    # Called by picows

    def on_ws_connected(self, transport: picows.WSTransport) -> None:
        self._transport = transport
        self._underlying: Any = transport.underlying_transport
        self._underlying.set_write_buffer_limits(high=0)
        # aiofastnet's TLS encrypts into its own buffer, which its write buffer size does not include
        self._count_unsent = getattr(
            self._underlying, "get_local_write_buffer_size", self._underlying.get_write_buffer_size
        )
        has_tls = self._underlying.get_extra_info("ssl_object") is not None
        # both are called for every delivery; a link is broken if writes go nowhere now
        self.write = self._write_encrypted if has_tls else self._underlying.write
        self.is_broken = self._underlying.is_closing
        # picows keeps both for the life of the connection; their headers take 2 KiB
        for exchanged in (transport.request, transport.response):
            exchanged.headers.clear()
        self._handler.opened(self, self._label)

    def on_ws_frame(self, transport: picows.WSTransport, frame: picows.WSFrame) -> None:
        if self._is_closing:
            return
        kind = frame.msg_type
        self._left_messages -= 1
        self._left_bytes -= frame.payload_size
        if (self._left_messages <= 0 or self._left_bytes <= 0) and not self._is_resting:
            self._rest()
        if frame.rsv1 or frame.rsv2 or frame.rsv3:
            self._refuse(frame, "a reserved bit is set, but no extension was agreed on")
        elif frame.fin and self._assembler is None and kind in _DATA:
            self._receive(frame.get_payload_as_bytes(), self.id, kind == _TEXT)
        elif kind == _PING:
            # the transport logs each write to a connection that is lost
            if self.unsent_bytes <= MAX_PONG_BACKLOG_BYTES and not self.is_broken():
                transport.send_pong(frame.get_payload_as_bytes())
            self._handler.pinged(self.id)
        elif kind == _PONG:
            self._handler.pinged(self.id)
        elif kind == _CLOSE:
            self._code = int(cast(int, frame.get_close_code())) or _NO_CODE
            self.close(CLOSE_NORMAL if self._code == _NO_CODE else self._code)
        else:
            self._take_fragment(frame)

    def _rest(self) -> None:
        """The turn is over: a link that sends much lets the others go first."""
        self._is_resting = True
        self._underlying.pause_reading()
        messages = (self._limits.turn_messages or 0) - self._left_messages
        self._handler.exhausted(self.id, messages, self._limits.turn_bytes - self._left_bytes)

    def _take_fragment(self, frame: picows.WSFrame) -> None:
        if frame.msg_type == _CONTINUATION:
            if self._assembler is None:
                self._refuse(frame, "a continuation of nothing")
                return
        elif self._assembler is not None:
            self._refuse(frame, "a message began inside another")
            return
        else:
            limits, is_text = self._limits, frame.msg_type == _TEXT
            self._assembler = Assembler(limits.max_message_bytes, limits.max_fragments, is_text=is_text)
        assembler = self._assembler
        try:
            assembler.add(frame.get_payload_as_bytes())
        except OverflowError as error:
            size = len(assembler.parts) + frame.payload_size
            self._handler.refused(bytes(assembler.parts), self.id, Reason.TOO_LARGE, size)
            self.close(CLOSE_TOO_BIG, str(error))
            return
        if frame.fin:
            self._assembler = None
            self.hold(frame.payload_size - len(assembler.parts))
            self._receive(bytes(assembler.parts), self.id, assembler.is_text)
        else:
            self.hold(frame.payload_size)

    def _refuse(self, frame: picows.WSFrame, detail: str) -> None:
        self._handler.refused(frame.get_payload_as_bytes(), self.id, Reason.MALFORMED, frame.payload_size)
        self.close(_PROTOCOL_ERROR, detail)

    def on_ws_disconnected(self, transport: picows.WSTransport) -> None:
        sent = transport.close_handshake and transport.close_handshake.sent
        if not self._is_closing and sent and cast(int, sent.code) == CLOSE_TOO_BIG:
            # picows refuses a frame by its header, before any of it is stored
            self._handler.refused(b"", self.id, Reason.TOO_LARGE, self._limits.max_message_bytes + 1)
        self._is_closing = True
        self._memory.release(self)
        self._unsent.release(self)
        self._handler.closed(self.id, self._code)

    def _write_encrypted(self, frames: bytes) -> None:
        self._underlying.write(frames)
        self._count_unread()

    def _count_unread(self) -> None:
        """After each write: TLS does not report that the kernel took less, and a link that keeps writing holds more."""
        unsent = self.unsent_bytes
        if unsent and not self._is_full:
            self.pause_writing()
            self._await_room()
        elif unsent > self.lost_bytes and not self._is_closing:
            more, self.lost_bytes = unsent - self.lost_bytes, unsent
            self._unsent.hold(self, more)

    def _await_room(self) -> None:
        """Poll, since nothing reports when the TLS buffer is empty."""
        if self.is_broken() or not self._is_full:
            return
        if self.unsent_bytes:
            asyncio.get_running_loop().call_later(ROOM_CHECK_S, self._await_room)
        else:
            self.resume_writing()

    def pause_writing(self) -> None:
        self.lost_bytes = self.unsent_bytes
        if not self._is_full:
            self._is_full = True
            self._handler.paused(self.id)
            if not self._is_closing:
                self._unsent.hold(self, self.lost_bytes)

    def resume_writing(self) -> None:
        if self.unsent_bytes:
            self._await_room()
        elif self._is_full:
            self.lost_bytes, self._is_full = 0, False
            self._unsent.release(self)
            self._handler.resumed(self.id)


PROCESS_MEMORY = Memory(1 << 30)
PROCESS_UNSENT = Memory(1 << 30, Link.drop_unread)


async def listen(
    handler: LinkHandler[LinkId],
    host: str,
    port: int,
    *,
    admit: Callable[[Request], Accept[LinkId] | Reply],
    tls: ServerTls | None,
    limits: Limits,
    memory: Memory = PROCESS_MEMORY,
    unsent: Memory = PROCESS_UNSENT,
) -> Acceptor:
    """Accept links until the acceptor is closed; `admit` decides the response to each GET, before any upgrade.

    A failed handshake is one line in the log, and counted by the acceptor.
    """
    loop: Any = TransportLoop()

    def upgrade(host: str, request: picows.WSUpgradeRequest) -> Any:
        answer = admit(Request(request.path, request.headers, host))
        if isinstance(answer, Accept):
            return Link(handler, answer.link, answer.label, limits, memory, unsent)
        response = picows.WSUpgradeResponse.create_101_response()
        response.status = HTTPStatus(answer.status)
        response.headers.clear()
        response.headers.extend([("Content-Type", answer.media_type), *answer.headers])
        response.body = answer.body
        return picows.WSUpgradeResponseWithListener(response, None)

    async def greet(accepted: socket.socket, host: str, acceptor: Acceptor) -> None:
        protocol = LinkProtocol(functools.partial(upgrade, host), limits, None, None)
        context = timeout_s = None
        try:
            if tls is None:
                await refuse_hello(accepted)
            else:
                await wait_for_hello(accepted)
                await acceptor.take_turn(host)
        except BaseException:
            accepted.close()
            raise
        if tls is not None:
            context, timeout_s = tls.current(), limits.handshake.timeout_s + _SPARE_S
        connecting = aiofastnet.connect_accepted_socket(
            loop, lambda: protocol, accepted, ssl=context, ssl_handshake_timeout=timeout_s
        )
        await _open(protocol, connecting)

    acceptor = Acceptor(greet, limits.handshake)
    await acceptor.start(host, port)
    return acceptor


async def dial(
    handler: LinkHandler[LinkId],
    url: str,
    link: LinkId,
    *,
    tls: ssl.SSLContext | None,
    limits: Limits,
    label: str = "",
    server_hostname: str | None = None,
    address: str | None = None,
    memory: Memory = PROCESS_MEMORY,
    unsent: Memory = PROCESS_UNSENT,
) -> Link:
    """Open a link; `opened` is called before this returns. Raises ConnectFailed with one line.

    Leaves no socket open if cancelled.
    """
    loop: Any = TransportLoop()
    parts = urlsplit(url)
    host = parts.hostname or ""
    opened = Link(handler, link, label, limits, memory, unsent)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    protocol = LinkProtocol(lambda: opened, limits, parts.netloc, path)
    more: dict[str, Any] = {}
    if parts.scheme == "wss":
        more = {"ssl": tls or ssl.create_default_context(), "server_hostname": server_hostname or host}
        more["ssl_handshake_timeout"] = limits.handshake.timeout_s + _SPARE_S
    try:
        async with asyncio.timeout(limits.handshake.timeout_s):
            port = parts.port or (443 if more else 80)
            await _open(protocol, aiofastnet.create_connection(loop, lambda: protocol, address or host, port, **more))
            if protocol.listener is None:
                raise ConnectionResetError
            asyncio.ensure_future(_forget_end(protocol.transport))  # noqa: RUF006 - the transport keeps it
    except TimeoutError:
        raise ConnectFailed(url, f"did not answer within {limits.handshake.timeout_s:g} s") from None
    except OSError as error:
        error.__traceback__ = None  # otherwise its frames and the transport keep each other alive
        raise ConnectFailed(url, f"cannot be reached: {describe_connecting(error, is_tls=bool(more))}") from None
    except picows.WSError as error:
        raise ConnectFailed(url, f"refuses: {error}") from None
    return opened


async def _forget_end(transport: picows.WSTransport) -> None:
    """Take the error with which a dialled link ended: asyncio logs one that nobody takes. `closed` has told of it."""
    with contextlib.suppress(picows.WSError, OSError):
        await transport.wait_disconnected()


async def _open(protocol: LinkProtocol, connecting: Awaitable[object]) -> None:
    """Wait until a protocol's transport is connected and its upgrade is done; abandon both on any error."""
    try:
        await connecting
        await protocol.wait_until_handshake_complete()
    except BaseException:
        if protocol.transport is not None:
            protocol.transport.disconnect(False)
        raise
