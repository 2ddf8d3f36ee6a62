"""The public client of a swarm: a peer in this process, or one in another process on this machine."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Protocol, Self

import msgspec

from dovetail.api.values import Message, Sent, moment
from dovetail.model.errors import Closed, ConnectFailed, DovetailError, Missed, TimedOut, UsageError
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


class _Door(Protocol):
    """How a peer is reached."""

    async def publish(self, data: bytes, ttl_epochs: int, progress: Progress | None) -> str: ...
    def items(self, since_ms: int | None) -> AsyncGenerator[dict[str, Any], None]: ...
    async def query(self, start_ms: int, end_ms: int) -> list[dict[str, Any]]: ...
    async def status(self) -> dict[str, Any]: ...


class SwarmPeer:
    """A peer of a swarm. Use it with `async with`: `join` runs one here, `connect("unix:DIR")` uses a running one."""

    def __init__(self, door: _Door | Path | str, *, _node: SwarmNode | None = None) -> None:
        self._node = _node
        self._door: _Door = _SocketDoor(_socket_path(Path(door))) if isinstance(door, Path | str) else door
        self._flow: AsyncGenerator[dict[str, Any], None] | None = None

    @classmethod
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
        return cls(_NodeDoor(node), _node=node)

    @property
    def endpoints(self) -> list[str]:
        """Where other peers can reach a peer of this process."""
        return [] if self._node is None else list(self._node.endpoints)

    async def linked(self, timeout: float | None = None) -> None:
        """Wait until a peer of this process knows another one; raises TimedOut if none answers in time."""
        try:
            async with asyncio.timeout(timeout):
                if self._node is not None:
                    await self._node.linked()
        except TimeoutError:
            raise TimedOut(f"no other peer within {timeout:g} s") from None

    async def __aenter__(self) -> Self:
        if self._node is not None:
            await self._node.__aenter__()
        else:
            await self._door.status()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._end_flow()
        if self._node is not None:
            await self._node.__aexit__(kind, error, trace)

    async def publish(self, data: bytes | str, *, ttl_epochs: int = 60, progress: Progress | None = None) -> Sent:
        """Do the proof of work, journal the message and push it; cancelling ends the work."""
        payload = check_payload(data)
        address = await self._door.publish(payload, ttl_epochs, progress)
        return Sent(address=address, id=None, outcome="accepted", targets=(), at=moment(now_us()))

    async def receive(self, timeout: float | None = None) -> Message:
        """The next message, starting from the first call; raises TimedOut if none arrives in time."""
        if self._flow is None:
            self._flow = self._door.items(None)
        try:
            async with asyncio.timeout(timeout):
                async for item in self._flow:
                    event = _event_of(item)
                    if isinstance(event, Missed):
                        raise event
                    if isinstance(event, Message):
                        return event
        except TimeoutError:
            await self._end_flow()
            raise TimedOut(f"no message within {timeout:g} s") from None
        except asyncio.CancelledError:
            await self._end_flow()
            raise
        raise Closed("the peer has ended")

    async def __aiter__(self) -> AsyncIterator[Message]:
        """Messages as they arrive, each once, until the peer ends; raises Missed if some came too fast to be read."""
        async with contextlib.aclosing(self.events()) as events:
            async for event in events:
                if isinstance(event, Missed):
                    raise event
                if isinstance(event, Message):
                    yield event

    async def events(self, since: dt.datetime | None = None) -> AsyncGenerator[Message | Gap | Evidence | Missed, None]:
        """All messages and gaps; with `since`, the unexpired ones from that time come first."""
        async with contextlib.aclosing(self._door.items(None if since is None else _ms(since))) as items:
            async for item in items:
                yield _event_of(item)

    async def query(self, start: dt.datetime, end: dt.datetime | None = None) -> list[Message]:
        """The unexpired messages of this period, both ends included."""
        found = await self._door.query(_ms(start), LAST_MS if end is None else _ms(end))
        return [_message_of(item) for item in found]

    async def status(self) -> dict[str, Any]:
        """The peer in numbers."""
        return await self._door.status()

    async def _end_flow(self) -> None:
        flow, self._flow = self._flow, None
        if flow is not None:
            await flow.aclose()


class _NodeDoor:
    """A peer of this process."""

    def __init__(self, node: SwarmNode) -> None:
        self._node = node

    async def publish(self, data: bytes, ttl_epochs: int, progress: Progress | None) -> str:
        from dovetail.swarm.pow import expected_hashes

        expected = expected_hashes(self._node.peer.rules.pow_target)

        def note(examined: int) -> None:
            if progress is not None:
                progress(examined, expected)

        return (await self._node.publish(data, ttl_epochs, progress=note)).hex()

    async def items(self, since_ms: int | None) -> AsyncGenerator[dict[str, Any], None]:
        if since_ms is not None:
            for message in self._node.query(since_ms, LAST_MS):
                yield describe_item(message)
        async for item in self._node.subscribe():
            yield describe_item(item)

    async def query(self, start_ms: int, end_ms: int) -> list[dict[str, Any]]:
        return [describe_item(message) for message in self._node.query(start_ms, end_ms)]

    async def status(self) -> dict[str, Any]:
        described: dict[str, Any] = msgspec.to_builtins(self._node.status())
        return described | {"endpoints": self._node.endpoints, "journal_hops": self._node.journal.size}


class _SocketDoor:
    """A peer reached through the control socket of another process."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def _ask(self, request: Request) -> AsyncGenerator[dict[str, Any], None]:
        try:
            reader, writer = await asyncio.open_unix_connection(self._path, limit=MAX_REQUEST_BYTES)
        except OSError as error:
            why = (error.strerror or str(error)).lower()
            raise ConnectFailed(f"unix:{self._path}", f"no peer answers: {why}") from None
        try:
            writer.write(msgspec.json.encode(request) + b"\n")
            while line := await reader.readline():
                answer: dict[str, Any] = msgspec.json.decode(line)
                if "error" in answer:
                    raise DovetailError(str(answer["error"]))
                yield answer
        except (OSError, ValueError) as error:
            raise ConnectFailed(f"unix:{self._path}", f"lost the connection: {error}") from None
        finally:
            writer.close()

    async def publish(self, data: bytes, ttl_epochs: int, progress: Progress | None) -> str:
        async with contextlib.aclosing(
            self._ask(Request("publish", payload=data.hex(), ttl_epochs=ttl_epochs))
        ) as answers:
            async for answer in answers:
                if "address" in answer:
                    return str(answer["address"])
                if progress is not None:
                    progress(answer["examined"], answer["expected"])
        raise ConnectFailed(f"unix:{self._path}", "ended before the message was published")

    def items(self, since_ms: int | None) -> AsyncGenerator[dict[str, Any], None]:
        return self._ask(Request("tail", since_ms=since_ms))

    async def query(self, start_ms: int, end_ms: int) -> list[dict[str, Any]]:
        return [item async for item in self._ask(Request("query", since_ms=start_ms, until_ms=end_ms))]

    async def status(self) -> dict[str, Any]:
        async with contextlib.aclosing(self._ask(Request("status"))) as answers:
            async for answer in answers:
                return answer
        raise ConnectFailed(f"unix:{self._path}", "did not answer")


def check_payload(data: bytes | str) -> bytes:
    """The bytes of a payload; raises UsageError if it is too large for a message."""
    payload = data.encode() if isinstance(data, str) else data
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise UsageError(f"a payload of {len(payload)} bytes, expected at most {MAX_PAYLOAD_BYTES}")
    return payload


def _socket_path(path: Path) -> Path:
    return path / CONTROL_FILE if path.is_dir() else path


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
