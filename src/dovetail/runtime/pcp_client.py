"""A PCP client for asyncio applications: connects, associates, reconnects after a loss, sends and awaits replies.

    async with PcpClient("wss://broker:8142/pcp", "pcp://me/controller", context=context) as client:
        reply = await client.request("http://example.com/ping", "pcp://agent1/agent", {"hello": 1})

Calls wait for the association if there is none yet, for at most their TTL. All are safe to cancel. A subscription
survives reconnects: what changed in between is reported as changes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import ssl
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from types import TracebackType
from typing import Any, NamedTuple, Self, assert_never

import msgspec

from dovetail.model.errors import ConnectFailed, DovetailError, NotAllowed, UsageError
from dovetail.pcp.client import Client, ClientOptions, ClientState, Submitted
from dovetail.pcp.client_events import (
    Associated,
    AssociationRefused,
    ClientEvent,
    DestinationReported,
    Disconnected,
    FailureKind,
    Incoming,
    InventoryChanged,
    MessageReceived,
    ReplyReceived,
    RequestFailed,
)
from dovetail.pcp.uri import BROKER_URI
from dovetail.pcp.vocabulary import (
    CLOSE_SUPERSEDED,
    INVENTORY_REQUEST,
    InventoryRequest,
    InventoryResponse,
)
from dovetail.runtime.acceptor import HandshakeLimits
from dovetail.runtime.clock import now_us
from dovetail.runtime.limits import Limits
from dovetail.runtime.loop import completed, settled
from dovetail.runtime.mailbox import MAX_UNREAD_MESSAGES, Mailbox
from dovetail.runtime.pcp_wire import ClientWire

DEFAULT_TTL_MS = 30_000
PING_INTERVAL_S = 15.0
CONNECT_TIMEOUT_S = 10.0
MAX_UNSENT_BYTES = 64 * 1024 * 1024

log = logging.getLogger("dovetail.pcp.client")


class PcpRequestError(DovetailError):
    """A message of ours was not delivered or answered; `kind` says why."""

    def __init__(self, kind: FailureKind, detail: str) -> None:
        super().__init__(f"{kind.value}: {detail}")
        self.kind = kind
        self.detail = detail


class Posted(NamedTuple):
    """A sent message: its id, its frame, and the futures of its report and reply."""

    id: str
    frame: bytes
    report: asyncio.Future[tuple[str, ...]]
    reply: asyncio.Future[Incoming]


class PcpClient:
    """A client. Use it as an asynchronous context manager."""

    def __init__(
        self,
        url: str,
        uri: str,
        *,
        version: int = 1,
        context: ssl.SSLContext | None = None,
        server_hostname: str | None = None,
        options: ClientOptions | None = None,
    ) -> None:
        if not url.startswith(("ws://", "wss://")):
            raise UsageError(f"{url[:80]!r} is not the address of a broker, expected ws://HOST:PORT/pcp or wss://...")
        self._url = url
        self._options = options or ClientOptions()
        self._core = Client(uri, version, lambda: str(uuid.uuid4()), random.random, self._options)
        limits = Limits(
            max_message_bytes=self._options.max_message_bytes,
            max_unsent_bytes=MAX_UNSENT_BYTES,
            handshake=HandshakeLimits(timeout_s=CONNECT_TIMEOUT_S),
            ping_s=PING_INTERVAL_S,
        )
        self._wire = ClientWire(self._core, url, limits, context, server_hostname)
        self._associated = asyncio.Event()
        self._decided = asyncio.Event()
        """Set when an attempt ends: with an association, its refusal, or a failed connection."""
        self.trouble: str | None = None
        """Why the last attempt failed, or why the connection was lost."""
        self._refusal: str | None = None
        self._replies: dict[str, asyncio.Future[Incoming]] = {}
        self._reports: dict[str, asyncio.Future[tuple[str, ...]]] = {}
        self.unread: Mailbox[Incoming] = Mailbox(MAX_UNREAD_MESSAGES, lambda message: len(message.raw))
        """Messages that are not replies to our requests."""
        self._changes: asyncio.Queue[tuple[tuple[str, int], ...] | None] | None = None

    @property
    def uri(self) -> str:
        """The client's own URI."""
        return self._core.uri

    @property
    def is_associated(self) -> bool:
        """True if the client is associated now."""
        return self._core.state is ClientState.ASSOCIATED

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._driver = self._wire.drive(self._hear, self._give_up)
        self._driver.call(self._core.start)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await completed(self._close())

    async def _close(self) -> None:
        self._driver.call(self._core.stop)
        with contextlib.suppress(DovetailError):
            await settled(self._driver)
        self._driver.stop()
        self.unread.close()
        await self._wire.close()

    # For applications

    async def wait_associated(self, timeout_s: float | None = None) -> None:
        """Wait for the association; raises NotAllowed if the broker refuses, TimeoutError if it takes too long."""
        async with asyncio.timeout(timeout_s):
            await self._associated.wait()
        if self._refusal is not None and not self.is_associated:
            raise NotAllowed(f"{self.uri}: {self._refusal}")

    async def try_associate(self, within_s: float = 0.0) -> None:
        """Wait for the association; ConnectFailed says why the first attempt, or the last in this time, failed.

        NotAllowed if the broker refuses: another attempt would not help.
        """
        deadline = self._loop.time() + within_s
        while not self.is_associated:
            self._decided.clear()
            try:
                async with asyncio.timeout(
                    max(self._options.association_timeout_ms / 1000, deadline - self._loop.time())
                ):
                    await self._decided.wait()
            except TimeoutError:
                self.trouble = "no answer in time"
            if self._refusal is not None and not self.is_associated:
                raise NotAllowed(f"{self._url}: {self.uri}: {self._refusal}")
            if self.trouble is not None and self._loop.time() >= deadline:
                raise ConnectFailed(self._url, self.trouble)

    async def send(
        self,
        message_type: str,
        targets: str | Sequence[str],
        data: object = None,
        *,
        ttl_ms: int = DEFAULT_TTL_MS,
        in_reply_to: str | None = None,
    ) -> str:
        """Send a message and return its id. `bytes` are sent unchanged, anything else as JSON, None as no data."""
        await self._wait_ready(ttl_ms / 1000)
        return self._send(message_type, targets, data, ttl_ms, in_reply_to).id

    async def request(
        self, message_type: str, target: str, data: object = None, *, ttl_ms: int = DEFAULT_TTL_MS
    ) -> Incoming:
        """Send a message and await the first reply to it; raises PcpRequestError."""
        async with self.posting(message_type, target, data, ttl_ms=ttl_ms, wants_reply=True) as posted:
            return await posted.reply

    @contextlib.asynccontextmanager
    async def posting(
        self,
        message_type: str,
        targets: str | Sequence[str],
        data: object = None,
        *,
        ttl_ms: int = DEFAULT_TTL_MS,
        in_reply_to: str | None = None,
        wants_report: bool = False,
        wants_reply: bool = False,
    ) -> AsyncIterator[Posted]:
        """Send a message; in the block its report and its reply can be awaited, if requested.

        Both raise PcpRequestError, at the latest when the lifetime is over. After the block they are discarded.
        """
        await self._wait_ready(ttl_ms / 1000)
        submitted = self._send(
            message_type,
            targets,
            data,
            ttl_ms,
            in_reply_to,
            destination_report=wants_report,
            awaits_reply=wants_reply,
        )
        posted = Posted(*submitted, self._loop.create_future(), self._loop.create_future())
        self._reports[posted.id] = posted.report
        self._replies[posted.id] = posted.reply
        try:
            yield posted
        finally:
            for waiting in (self._reports.pop(posted.id), self._replies.pop(posted.id)):
                if waiting.done() and not waiting.cancelled():
                    waiting.exception()  # retrieved, so that asyncio does not report it as never retrieved
            self._core.forget(posted.id)

    async def reply(self, message: Incoming, message_type: str, data: object = None, **more: Any) -> str:
        """Answer a message."""
        return await self.send(message_type, message.sender, data, in_reply_to=message.id, **more)

    async def inventory(self, *patterns: str, subscribe: bool = False) -> list[str]:
        """The connected clients that match any of the patterns."""
        request = InventoryRequest(list(patterns), subscribe)
        answer = await self.request(INVENTORY_REQUEST, BROKER_URI, request)
        return msgspec.json.decode(answer.data or b"", type=InventoryResponse).uris

    async def messages(self) -> AsyncIterator[Incoming]:
        """Messages that are not replies to our requests, as they arrive; at a limit the oldest unread are dropped."""
        while (message := await self.unread.get()) is not None:
            yield message

    async def subscribe(self, *patterns: str) -> AsyncGenerator[tuple[str, int], None]:
        """Each connected client that matches (1), then each connect (1) and disconnect (-1); survives reconnects."""
        self._changes = asyncio.Queue()
        known: set[str] = set()
        try:
            while True:
                try:
                    present = set(await self.inventory(*patterns, subscribe=True))
                except (PcpRequestError, TimeoutError) as error:
                    if isinstance(error, PcpRequestError) and error.kind is not FailureKind.DISCONNECTED:
                        raise
                    continue
                for uri in sorted(known - present):
                    yield uri, -1
                for uri in sorted(present - known):
                    yield uri, 1
                known = present
                while (changes := await self._changes.get()) is not None:
                    for uri, change in changes:
                        (known.add if change == 1 else known.discard)(uri)
                        yield uri, change
        finally:
            self._changes = None

    async def flush(self) -> None:
        """Wait until everything sent has left this process."""
        await settled(self._driver)
        await self._wire.is_writable.wait()

    # Between the core and the link

    async def _wait_ready(self, timeout_s: float) -> None:
        """Wait for the association, and until the kernel has taken what was sent before."""
        async with asyncio.timeout(timeout_s):
            if not self._driver.is_idle:
                await asyncio.sleep(0)  # a caller that never waits would never let anything leave
            await self._wire.is_writable.wait()
            await self.wait_associated()

    def _send(
        self,
        message_type: str,
        targets: str | Sequence[str],
        data: object,
        ttl_ms: int,
        in_reply_to: str | None,
        *,
        destination_report: bool = False,
        awaits_reply: bool = False,
    ) -> Submitted:
        submitted = self._core.send(
            message_type,
            [targets] if isinstance(targets, str) else targets,
            data if data is None or isinstance(data, bytes) else msgspec.json.encode(data),
            ttl_ms=ttl_ms,
            now=now_us(),
            in_reply_to=in_reply_to,
            destination_report=destination_report,
            awaits_reply=awaits_reply,
        )
        self._driver.wake()
        return submitted

    def _give_up(self, error: Exception) -> None:
        """Internal error: leave nobody waiting."""
        self._refusal = str(error)
        self._associated.set()
        self._decided.set()

    def _hear(self, events: Sequence[ClientEvent]) -> None:
        for event in events:
            self._act(event)

    def _act(self, event: ClientEvent) -> None:
        match event:
            case Associated():
                log.info("%s is associated", self.uri)
                self._refusal = self.trouble = None
                self._associated.set()
                self._decided.set()
            case AssociationRefused(detail=detail):
                self._refusal = detail
                self._associated.set()
                self._decided.set()
            case Disconnected(detail=detail, code=code):
                is_told = code != CLOSE_SUPERSEDED or self._reports or self._replies  # by a call that fails
                log.log(logging.INFO if is_told else logging.WARNING, "%s is disconnected: %s", self.uri, detail)
                self.trouble = detail
                self._decided.set()
                if self._refusal is None:
                    self._associated.clear()
                if self._changes is not None:
                    self._changes.put_nowait(None)
            case MessageReceived(message=message):
                self.unread.put(message)
            case ReplyReceived(id=message_id, reply=reply):
                _finish(self._replies.get(message_id), reply)
            case DestinationReported(id=message_id, targets=targets):
                _finish(self._reports.get(message_id), targets)
            case RequestFailed(id=failed, kind=kind, detail=detail):
                self._fail(failed, PcpRequestError(kind, detail))
            case InventoryChanged(changes=changes):
                if self._changes is not None:
                    self._changes.put_nowait(changes)
            case _:
                assert_never(event)

    def _fail(self, message_id: str | None, error: PcpRequestError) -> None:
        log.info("%s: message %s %s", self.uri, message_id, error)
        for waiting in (self._replies.get(message_id or ""), self._reports.get(message_id or "")):
            if waiting is not None and not waiting.done():
                waiting.set_exception(error)


def _finish(future: asyncio.Future[Any] | None, result: object) -> None:
    if future is not None and not future.done():
        future.set_result(result)
