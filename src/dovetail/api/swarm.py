"""The public client of a swarm: a peer in this process, or one in another process on this machine."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Literal, Protocol

import msgspec

from dovetail.api.failures import files_as
from dovetail.api.receiving import Receiving
from dovetail.api.values import Message, Sent, is_utf8, moment
from dovetail.model.errors import (
    Closed,
    ConfigError,
    ConnectFailed,
    DovetailError,
    JournalError,
    JournalFull,
    LocalProtocolError,
    Missed,
    TimedOut,
    UsageError,
)
from dovetail.model.times import to_us
from dovetail.runtime.clock import now_us
from dovetail.runtime.swarm_control import CONTROL_FILE, LAST_MS, MAX_REQUEST_BYTES, Request, describe_item
from dovetail.runtime.swarm_node import SwarmNode
from dovetail.runtime.swarm_settings import load_swarm_settings
from dovetail.swarm.content import FIXED_BYTES, MAX_CONTENT_BYTES
from dovetail.swarm.settings import SwarmSettings

MAX_PAYLOAD_BYTES = MAX_CONTENT_BYTES - FIXED_BYTES
Progress = Callable[[int, int], None]
"""Called with the number of hashes tried and the expected number."""


@dataclass(frozen=True, slots=True)
class Gap:
    """A message that others refer to is missing, has arrived after all, or was given up."""

    key: str
    """The first 8 bytes of its address, in hex."""
    state: Literal["missing", "filled", "given_up"]
    referrer: str | None


@dataclass(frozen=True, slots=True)
class Evidence:
    """Messages that collide in their first 8 bytes, or refer to each other in a cycle."""

    kind: Literal["collision", "cycle"]
    messages: tuple[str, ...]


class _Items(Protocol):
    """What a peer hears, one item after another. Cancelling `next` loses none."""

    async def next(self) -> dict[str, Any] | None: ...
    def close(self) -> None: ...


class _PeerAccess(Protocol):
    """How a peer is reached."""

    async def publish(self, data: bytes, ttl_epochs: int, timeout: float | None, progress: Progress | None) -> str: ...
    async def listen(self, since_ms: int | None) -> _Items: ...
    async def query(self, start_ms: int, end_ms: int) -> list[dict[str, Any]]: ...
    async def status(self) -> dict[str, Any]: ...


class SwarmPeer(Receiving):
    """A peer of a swarm. Use it with `async with`: `join` runs one here, `connect("unix:DIR")` uses a running one.

    `receive`, iteration and `events()` read one queue, of what the peer has heard since the client connected.
    """

    _ended: ClassVar[str] = "the peer has ended"

    def __init__(self, access: _PeerAccess | Path | str, *, _node: SwarmNode | None = None) -> None:
        self._node = _node
        self._access: _PeerAccess = (
            _PeerElsewhere(_socket_path(Path(access))) if isinstance(access, Path | str) else access
        )
        self._heard: _Items | None = None
        self._is_open = _node is None  # one call to a running peer needs no `async with`
        self._is_begun = False
        self._reading = asyncio.Lock()

    @classmethod
    @files_as(ConfigError)
    def join(
        cls,
        settings: SwarmSettings | Path | str,
        directory: Path | str,
        *,
        listen: Sequence[str] = ("127.0.0.1:0",),
        bootstrap: Sequence[str] = (),
    ) -> SwarmPeer:
        """A peer that runs in this process; `settings` is the agreement of the swarm, or its file."""
        if not isinstance(settings, SwarmSettings):
            settings = load_swarm_settings(Path(settings))
        node = SwarmNode(settings, Path(directory), listen=listen, bootstrap=bootstrap)
        return cls(_OwnPeer(node), _node=node)

    @property
    def endpoints(self) -> list[str]:
        """Where other peers can reach a peer of this process."""
        return [] if self._node is None else list(self._node.endpoints)

    @property
    def _open_access(self) -> _PeerAccess:
        if not self._is_open:
            raise Closed("the client is not connected: use `async with`")
        self._check_loop()
        return self._access

    async def linked(self, timeout: float | None = None) -> None:
        """Wait until a peer of this process knows another one; raises TimedOut if none answers in time."""
        _ = self._open_access
        try:
            async with asyncio.timeout(timeout):
                if self._node is not None:
                    await self._node.linked()
        except TimeoutError:
            raise TimedOut(f"no other peer within {timeout:g} s") from None

    async def _connect(self) -> None:
        if self._node is not None:
            if self._is_begun:
                raise Closed("the peer has ended: `join` again")
            self._is_begun = True
            with files_as(JournalError):
                await self._node.__aenter__()
        self._is_open = True
        self._reading = asyncio.Lock()
        try:
            self._heard = await self._open_access.listen(None)
        except BaseException:
            await self._disconnect(None, None, None)
            raise

    async def _disconnect(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_open = False
        if self._heard is not None:
            self._heard.close()
        if self._node is not None:
            await self._node.__aexit__(kind, error, trace)

    async def publish(
        self,
        data: bytes | str,
        *,
        ttl_epochs: int = 60,
        timeout: float | None = 10,
        progress: Progress | None = None,
    ) -> Sent:
        """Do the proof of work, journal the message and push it; cancelling ends the work.

        Raises JournalFull if the peer's disk stays full for `timeout` seconds after the work, TimedOut if its journal
        is not written in time for another reason. The message may still be published when there is room.
        """
        payload = check_payload(data)
        address = await self._open_access.publish(payload, ttl_epochs, timeout, progress)
        return Sent(address=address, id=None, outcome="accepted", targets=(), at=moment(now_us()))

    async def events(self, since: dt.datetime | None = None) -> AsyncGenerator[Message | Gap | Evidence | Missed, None]:
        """All messages and gaps as they arrive; with `since`, again from there: the unexpired ones come first."""
        if since is None:
            while (event := await self._next_event()) is not None:
                yield event
            return
        items = await self._open_access.listen(_ms(since))
        try:
            while (item := await items.next()) is not None:
                yield _event_of(item)
        finally:
            items.close()

    async def query(self, start: dt.datetime, end: dt.datetime | None = None) -> list[Message]:
        """The unexpired messages of this period, both ends included."""
        found = await self._open_access.query(_ms(start), LAST_MS if end is None else _ms(end))
        return [_message_of(item) for item in found]

    async def status(self) -> dict[str, Any]:
        """The peer in numbers."""
        return await self._open_access.status()

    async def _next_message(self) -> Message | None:
        while (event := await self._next_event()) is not None:
            if isinstance(event, Missed):
                raise event
            if isinstance(event, Message):
                return event
        return None

    def _take_missed(self) -> int:
        return 0  # the queue says so at its place

    async def _next_event(self) -> Message | Gap | Evidence | Missed | None:
        if self._heard is None:
            raise Closed("the client is not connected: use `async with`")
        self._check_loop()
        async with self._reading:
            item = await self._heard.next()
        return None if item is None else _event_of(item)


class _OwnPeer:
    """A peer of this process."""

    def __init__(self, node: SwarmNode) -> None:
        self._node = node

    async def publish(self, data: bytes, ttl_epochs: int, timeout: float | None, progress: Progress | None) -> str:
        from dovetail.swarm.pow import expected_hashes

        expected = expected_hashes(self._node.peer.rules.pow_target)

        def note(examined: int) -> None:
            if progress is not None:
                progress(examined, expected)

        return (await self._node.publish(data, ttl_epochs, timeout_s=timeout, progress=note)).hex()

    async def listen(self, since_ms: int | None) -> _Items:
        return _NodeItems(self._node, since_ms)

    async def query(self, start_ms: int, end_ms: int) -> list[dict[str, Any]]:
        return [describe_item(message) for message in self._node.query(start_ms, end_ms)]

    async def status(self) -> dict[str, Any]:
        described: dict[str, Any] = msgspec.to_builtins(self._node.status())
        return described | {"endpoints": self._node.endpoints, "journal_hops": self._node.journal.size}


class _NodeItems:
    """What a peer of this process hears."""

    def __init__(self, node: SwarmNode, since_ms: int | None) -> None:
        self._live = node.subscribe()
        self._earlier = deque([] if since_ms is None else node.query(since_ms, LAST_MS))

    async def next(self) -> dict[str, Any] | None:
        if self._earlier:
            return describe_item(self._earlier.popleft())
        item = await anext(self._live, None)
        return None if item is None else describe_item(item)

    def close(self) -> None:
        self._live.close()


_TYPES: dict[str, type[DovetailError]] = {
    kind.__name__: kind for kind in (JournalError, JournalFull, LocalProtocolError, TimedOut)
}
"""Errors that a peer in another process raises as one of this process does."""


class _Asked:
    """A request to a peer in another process, and its answers. What is not read waits there, within its bound."""

    def __init__(self, url: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._url = url
        self._reader = reader
        self._writer = writer

    async def next(self) -> dict[str, Any] | None:
        try:
            line = await self._reader.readline()
            answer: dict[str, Any] | None = msgspec.json.decode(line) if line else None
        except (OSError, ValueError) as error:
            raise ConnectFailed(self._url, f"lost the connection: {error}") from None
        if answer is not None and "error" in answer:
            raise _TYPES.get(answer.get("type", ""), DovetailError)(str(answer["error"]))
        return answer

    def close(self) -> None:
        self._writer.close()


class _PeerElsewhere:
    """A peer reached through the control socket of another process."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._url = f"unix:{path}"

    async def _ask(self, request: Request) -> _Asked:
        try:
            reader, writer = await asyncio.open_unix_connection(self._path, limit=MAX_REQUEST_BYTES)
        except OSError as error:
            why = (error.strerror or str(error)).lower()
            raise ConnectFailed(self._url, f"has no running peer: {why}") from None
        writer.write(msgspec.json.encode(request) + b"\n")
        return _Asked(self._url, reader, writer)

    async def publish(self, data: bytes, ttl_epochs: int, timeout: float | None, progress: Progress | None) -> str:
        request = Request("publish", payload=data.hex(), ttl_epochs=ttl_epochs, timeout_s=timeout)
        with contextlib.closing(await self._ask(request)) as asked:
            while (answer := await asked.next()) is not None:
                if "address" in answer:
                    return str(answer["address"])
                if progress is not None:
                    progress(answer["examined"], answer["expected"])
        raise ConnectFailed(self._url, "ended before the message was published")

    async def listen(self, since_ms: int | None) -> _Items:
        asked = await self._ask(Request("tail", since_ms=since_ms))
        try:
            if await asked.next() is None:
                raise ConnectFailed(self._url, "did not answer")
        except BaseException:
            asked.close()
            raise
        return asked

    async def query(self, start_ms: int, end_ms: int) -> list[dict[str, Any]]:
        found = []
        with contextlib.closing(await self._ask(Request("query", since_ms=start_ms, until_ms=end_ms))) as asked:
            while (item := await asked.next()) is not None:
                found.append(item)
        return found

    async def status(self) -> dict[str, Any]:
        with contextlib.closing(await self._ask(Request("status"))) as asked:
            answer = await asked.next()
        if answer is None:
            raise ConnectFailed(self._url, "did not answer")
        return answer


def check_payload(data: bytes | str) -> bytes:
    """The bytes of a payload; raises UsageError if it is too large for a message."""
    if not isinstance(data, str | bytes):
        raise UsageError(f"a payload is text or bytes, got {type(data).__name__}")
    if isinstance(data, str) and not is_utf8(data):
        raise UsageError("the text cannot be encoded in UTF-8")
    payload = data.encode() if isinstance(data, str) else data
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise UsageError(f"a payload of {len(payload)} bytes, expected at most {MAX_PAYLOAD_BYTES}")
    return payload


def _socket_path(path: Path) -> Path:
    try:
        return path / CONTROL_FILE if path.is_dir() else path
    except OSError:  # such as a name that is too long; connecting says so
        return path


def _ms(time: dt.datetime) -> int:
    return to_us(time) // 1000


def _event_of(item: dict[str, Any]) -> Message | Gap | Evidence | Missed:
    if "message" in item:
        return _message_of(item)
    if "gap" in item:
        return Gap(item["gap"], item["state"], item["referrer"])
    if "missed" in item:
        return Missed(item["missed"])
    return Evidence(item["evidence"], tuple(item["messages"]))


def _message_of(item: dict[str, Any]) -> Message:
    payload = bytes.fromhex(item["payload_hex"])
    data: Any = payload
    with contextlib.suppress(UnicodeDecodeError):
        data = payload.decode()
    return Message(
        address=item["message"],
        id=None,
        type="payload",
        sender=item["source"] or "",
        targets=(),
        data=data,
        raw=payload,
        at=moment(item["timestamp"] * 1000),
        references=tuple(item["references"]),
        ttl_epochs=item["ttl_epoch"],
    )
