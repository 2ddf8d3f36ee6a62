"""What clients share: opening and closing, and receiving messages, one by one or as a stream."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from types import TracebackType
from typing import ClassVar, Self

from dovetail.api.values import Message
from dovetail.model.errors import Closed, Missed, TimedOut, UsageError


class Receiving(ABC):
    """A client with messages to receive. It is open in one `async with` at a time, and belongs to that event loop."""

    _ended: ClassVar[str] = "the client is closed"
    """Why there is no next message."""
    _loop: asyncio.AbstractEventLoop | None = None
    """The event loop in which it is open."""

    async def __aenter__(self) -> Self:
        if self._loop is not None and not self._loop.is_closed():
            raise UsageError("the client is open already: it can be in one `async with` at a time")
        self._loop = asyncio.get_running_loop()
        try:
            await self._connect()
        except BaseException:
            self._loop = None
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._loop is None:
            return
        self._check_loop()
        try:
            await self._disconnect(kind, error, trace)
        finally:
            self._loop = None

    @abstractmethod
    async def _connect(self) -> None:
        """Open the connection, or leave nothing behind."""

    @abstractmethod
    async def _disconnect(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""

    def _check_loop(self) -> None:
        """Raise UsageError in another event loop than that in which the client is open: waiting there never ends."""
        if self._loop is not None and self._loop is not asyncio.get_running_loop():
            raise UsageError("the client is open in another event loop; open one in each loop")

    @abstractmethod
    async def _next_message(self) -> Message | None:
        """The next message; None once the client is closed."""

    @abstractmethod
    def _take_missed(self) -> int:
        """Number of messages dropped unread since the last call."""

    async def receive(self, timeout: float | None = None) -> Message:
        """The next message since the client connected; TimedOut if none arrives in time.

        Up to 10,000 unread messages, of 256 MiB together, wait; beyond that the oldest are dropped, and Missed says
        how many.
        """
        try:
            async with asyncio.timeout(timeout):
                message = await self._next()
        except TimeoutError:
            raise TimedOut(f"no message within {timeout:g} s") from None
        if message is None:
            raise Closed(self._ended)
        return message

    async def __aiter__(self) -> AsyncIterator[Message]:
        """Messages as they arrive, until the client is closed; raises Missed if some arrived too fast to be read."""
        while (message := await self._next()) is not None:
            yield message

    async def _next(self) -> Message | None:
        self._check_loop()
        missed = self._take_missed()
        if missed:
            raise Missed(missed)
        return await self._next_message()
