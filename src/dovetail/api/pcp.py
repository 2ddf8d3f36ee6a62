"""The public client of a pcp broker."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from types import TracebackType
from typing import Any, NamedTuple

from dovetail.api.receiving import Receiving
from dovetail.api.values import TLS, Message, Outcome, Presence, Sent, check_text, moment
from dovetail.model.address import address_of
from dovetail.model.errors import Closed, ConnectFailed, DovetailError, NotAllowed, TimedOut, UsageError
from dovetail.pcp.client import BROKEN_RULES
from dovetail.pcp.client_events import FailureKind, Incoming
from dovetail.pcp.uri import BROKER_URIS, parse_uri
from dovetail.runtime import pcp_client
from dovetail.runtime.clock import now_us
from dovetail.runtime.http import is_url
from dovetail.runtime.mailbox import Mailbox
from dovetail.runtime.pcp_client import PcpRequestError, Posted
from dovetail.runtime.tls import CLOSED, client_context, guess_refusal

_OUTCOMES: dict[FailureKind, Outcome] = {
    FailureKind.REFUSED: "rejected",
    FailureKind.UNAUTHORIZED: "rejected",
    FailureKind.NOT_TRANSLATABLE: "rejected",
    FailureKind.EXPIRED: "expired",
    FailureKind.TIMED_OUT: "unknown",
    FailureKind.DISCONNECTED: "unknown",
}
MAX_TTL_S = 1e9
"""Longest lifetime of a message: about 30 years."""
_ABSENT = "is not connected"
_NO_REPORT = "the broker did not say, within its lifetime, whom it goes to"


def check_url(url: str) -> None:
    """Raise UsageError unless this is the URL of a broker."""
    if not is_url(url, "ws", "wss"):
        raise UsageError(f"{url[:80]!r} is not the URL of a broker, such as wss://host:8142/pcp")


def check_uris(uris: Sequence[str]) -> None:
    """Raise UsageError unless these are URIs, or patterns, of clients of a broker."""
    for uri in uris:
        try:
            parse_uri(check_text(uri, "URI"))
        except ValueError as error:
            raise UsageError(str(error)) from None


class Asked(NamedTuple):
    """A message that wants a reply."""

    sent: Sent
    reply: Callable[[], Awaitable[Message]]
    """Waits for the first reply; raises TimedOut when the lifetime is over."""


class PcpClient(Receiving):
    """A client of a broker. Use it with `async with`, which connects, or raises ConnectFailed or NotAllowed at once.

    After that it reconnects by itself when the connection is lost. Every call can be cancelled.
    """

    def __init__(
        self,
        url: str,
        identity: str,
        *,
        tls: TLS | None = None,
        protocol: int = 1,
        wait: float = 0,
        timeout: float = 10,
    ) -> None:
        check_url(url)
        check_uris([identity])
        if protocol not in (1, 2):
            raise UsageError(f"protocol version {protocol}, expected 1 or 2")
        context = None
        self._tls = tls or TLS()
        if url.startswith("wss:"):
            context = client_context(self._tls.certificate, self._tls.key, self._tls.authority)
        self.url = url
        self.identity = identity
        self._version = protocol
        self._wait_s = wait
        self._timeout_s = timeout
        self._context = context
        self._made: pcp_client.PcpClient | None = None
        """The latest connection; what it received can be read after it is closed."""
        self._is_open = False

    @property
    def _wire(self) -> pcp_client.PcpClient:
        if self._made is None or not self._is_open:
            raise Closed("the client is not connected: use `async with`")
        self._check_loop()
        return self._made

    async def _connect(self) -> None:
        made = self._made = pcp_client.PcpClient(self.url, self.identity, version=self._version, context=self._context)
        await made.__aenter__()
        self._is_open = True
        try:
            async with asyncio.timeout(max(self._timeout_s, self._wait_s)):
                await made.try_associate(self._wait_s)
                if self._version == 2:
                    await self._await_turn()  # a version without associations: only an answer shows that we are let in
        except BaseException as error:
            self._is_open = False
            await made.__aexit__(None, None, None)
            failure = self._why_not_connected(error, made.trouble)
            if failure is None:
                raise
            raise ConnectFailed(self.url, failure) from None

    def _why_not_connected(self, error: BaseException, trouble: str | None) -> str | None:
        """The reason for ConnectFailed; None for other errors."""
        match error:
            case PcpRequestError():
                reason = trouble or "closed the connection"
            case TimeoutError():
                return f"did not answer within {max(self._timeout_s, self._wait_s):g} s"
            case ConnectFailed():
                reason = error.reason
            case _:
                return None
        if reason.startswith(BROKEN_RULES):
            return f"{reason}; is this its path for version {self._version}?"
        if reason.endswith(CLOSED) and self._tls.certificate:
            return f"{reason}; {guess_refusal(self._tls.certificate, self._tls.authority)}"
        return reason

    async def _disconnect(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        wire = self._wire
        try:
            if kind is None:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._timeout_s):
                        await wire.flush()
        finally:
            self._is_open = False
            await wire.__aexit__(kind, error, trace)

    async def send(
        self,
        to: str | Sequence[str],
        data: Any = None,
        *,
        type: str = "text",
        ttl: float = 30,
        in_reply_to: str | None = None,
    ) -> Sent:
        """Send a message; returns what the broker did with it.

        `bytes` are sent unchanged, anything else as JSON, None not at all. `ttl` is its lifetime in seconds. The broker
        says which clients it sends the message to; only a reply proves that a client has processed it.
        """
        async with self._posting(to, data, type, ttl, in_reply_to) as posted:
            return await self._outcome(posted, to)

    async def request(
        self,
        to: str,
        data: Any = None,
        *,
        type: str = "text",
        ttl: float = 30,
    ) -> Message:
        """Send a message and await the first reply; raises NotDelivered if no client gets it, TimedOut after `ttl`."""
        async with self.asking(to, data, type=type, ttl=ttl) as asked:
            asked.sent.raise_for_outcome()
            return await asked.reply()

    @contextlib.asynccontextmanager
    async def asking(self, to: str, data: Any = None, *, type: str = "text", ttl: float = 30) -> AsyncIterator[Asked]:
        """Send a message that wants a reply: `sent` has its outcome, `reply()` waits for the answer."""
        async with self._posting(to, data, type, ttl, None, wants_reply=True) as posted:
            if to in BROKER_URIS:
                sent = self._sent(posted, "accepted", (to,), None)  # its answer is the outcome
            else:
                sent = await self._outcome(posted, to)

            async def wait_for_reply() -> Message:
                try:
                    return self._message(await posted.reply)
                except PcpRequestError as error:
                    if error.kind is FailureKind.TIMED_OUT:
                        raise TimedOut(f"{to} did not answer within {ttl:g} s") from None
                    self._sent(posted, _outcome_of(error), (), error.detail).raise_for_outcome()
                    raise

            yield Asked(sent, wait_for_reply)

    async def inventory(self, *patterns: str) -> list[str]:
        """The connected clients that match any of the patterns; all without patterns."""
        check_uris(patterns)
        try:
            return await self._wire.inventory(*(patterns or ("pcp://*/*",)))
        except PcpRequestError as error:
            raise _request_failed(self.url, error) from None
        except TimeoutError:
            raise ConnectFailed(self.url, "is not connected, and did not come back in time") from None

    async def watch(self, *patterns: str) -> AsyncIterator[Presence]:
        """The connected clients, then each connect and disconnect; continues after a reconnect."""
        check_uris(patterns)
        try:
            async with contextlib.aclosing(self._wire.subscribe(*(patterns or ("pcp://*/*",)))) as changes:
                async for uri, change in changes:
                    yield Presence(uri, change == 1)
        except PcpRequestError as error:
            raise _request_failed(self.url, error) from None

    @property
    def _unread(self) -> Mailbox[Incoming]:
        return (self._made or self._wire).unread

    async def _next_message(self) -> Message | None:
        incoming = await self._unread.get()
        return None if incoming is None else self._message(incoming)

    def _take_missed(self) -> int:
        return self._unread.take_missed()

    @contextlib.asynccontextmanager
    async def _posting(
        self,
        to: str | Sequence[str],
        data: Any,
        kind: str,
        ttl: float,
        in_reply_to: str | None,
        *,
        wants_reply: bool = False,
    ) -> AsyncIterator[Posted]:
        if not isinstance(ttl, int | float):
            raise UsageError(f"a lifetime of {ttl!r}, expected a number of seconds")
        check_text(kind, "type")
        if not 0 < ttl <= MAX_TTL_S:
            raise UsageError(f"a lifetime of {ttl:g} s, expected more than 0 and at most {MAX_TTL_S:g}")
        if not isinstance(to, Iterable):
            raise UsageError(f"recipient {to!r}, expected a URI or several")
        targets = [to] if isinstance(to, str) else list(to)
        if not targets:
            raise UsageError("no recipient is named")
        check_uris(targets)
        async with contextlib.AsyncExitStack() as stack:
            posting = self._wire.posting(
                kind,
                targets,
                data,
                ttl_ms=int(ttl * 1000),
                in_reply_to=in_reply_to,
                wants_report=self._version == 1 and not BROKER_URIS.issuperset(targets),
                wants_reply=wants_reply,
            )
            try:
                posted = await stack.enter_async_context(posting)
            except TimeoutError:
                raise ConnectFailed(self.url, f"was not connected for {ttl:g} s; nothing was sent") from None
            except (TypeError, UnicodeEncodeError, RecursionError) as error:
                raise UsageError(f"the data cannot be written as JSON: {error}") from None
            yield posted

    async def _outcome(self, posted: Posted, to: str | Sequence[str]) -> Sent:
        try:
            if self._version == 1 and not BROKER_URIS.issuperset([to] if isinstance(to, str) else to):
                targets = await posted.report
                return self._sent(posted, "accepted" if targets else "nobody_there", targets, None)
            await self._await_turn()
            if posted.report.done():
                posted.report.result()
        except PcpRequestError as error:
            reason = _NO_REPORT if error.kind is FailureKind.TIMED_OUT else error.detail
            return self._sent(posted, _outcome_of(error), (), reason)
        return self._sent(posted, "accepted", (to,) if isinstance(to, str) else tuple(to), None)

    async def _await_turn(self) -> None:
        """Wait until the broker has answered a later request: it answers in order, refusals included."""
        try:
            await self._wire.inventory("pcp:///server")
        except PcpRequestError as error:
            if error.kind is FailureKind.DISCONNECTED:
                raise

    def _sent(self, posted: Posted, outcome: Outcome, targets: tuple[str, ...], reason: str | None) -> Sent:
        return Sent(
            address=address_of(posted.frame).hex(),
            id=posted.id,
            outcome=outcome,
            targets=targets,
            reason=reason,
            at=moment(now_us()),
        )

    def _message(self, incoming: Incoming) -> Message:
        data: Any = incoming.data
        if data is not None:
            with contextlib.suppress(ValueError):
                data = incoming.json()
        return Message(
            address=address_of(incoming.raw).hex(),
            id=incoming.id,
            type=incoming.message_type,
            sender=incoming.sender,
            targets=incoming.targets,
            data=data,
            raw=incoming.raw,
            at=moment(now_us()),
            in_reply_to=incoming.in_reply_to,
            _answer=self._answer,
        )

    async def _answer(self, message: Message, data: Any, kind: str | None) -> Sent:
        return await self.send(message.sender, data, type=kind or message.type, in_reply_to=message.id)


def _outcome_of(error: PcpRequestError) -> Outcome:
    return "nobody_there" if error.detail.endswith(_ABSENT) else _OUTCOMES[error.kind]


def _request_failed(url: str, error: PcpRequestError) -> DovetailError:
    """Why a request to the broker itself has no answer."""
    if error.kind is FailureKind.TIMED_OUT:
        return TimedOut(f"{url} did not answer in time")
    if error.kind is FailureKind.DISCONNECTED:
        return ConnectFailed(url, "closed the connection before it answered")
    return NotAllowed(f"{url}: {error.detail}")
