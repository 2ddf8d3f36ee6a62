"""What clients share: receiving messages, one by one or as a stream."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from typing import ClassVar

from dovetail.api.values import Message
from dovetail.model.errors import Closed, Missed, TimedOut


class Receiving(ABC):
    """A client with messages to receive."""

    _ended: ClassVar[str] = "the client is closed"
    """Why there is no next message."""

    @abstractmethod
    async def _next_message(self) -> Message | None:
        """The next message; None once the client is closed."""

    @abstractmethod
    def _take_missed(self) -> int:
        """Number of messages dropped unread since the last call."""

    async def receive(self, timeout: float | None = None) -> Message:
        """The next message since the client connected; TimedOut if none arrives in time.

        Unread messages wait, up to 10,000 of them; after that the oldest are dropped, and Missed says how many.
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
        missed = self._take_missed()
        if missed:
            raise Missed(missed)
        return await self._next_message()
