"""A bounded queue of items for an application to read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Generic, TypeVar

MAX_UNREAD_MESSAGES: Final = 10_000
MAX_UNREAD_BYTES: Final = 256 << 20

T = TypeVar("T")


class Mailbox(Generic[T]):
    """A queue that keeps the newest `max_items`, and the newest one whatever its size.

    The reader learns how many older ones it missed.
    """

    def __init__(self, max_items: int, size_of: Callable[[T], int], max_bytes: int = MAX_UNREAD_BYTES) -> None:
        self._max_items = max_items
        self._size_of = size_of
        self._max_bytes = max_bytes
        self._bytes = 0
        self._items: asyncio.Queue[T | None] = asyncio.Queue()
        self.missed = 0

    def put(self, item: T) -> None:
        """Add an item; over a limit the oldest are dropped."""
        self._bytes += self._size_of(item)
        self._items.put_nowait(item)
        while self._items.qsize() > 1 and (self._items.qsize() > self._max_items or self._bytes > self._max_bytes):
            self._take(self._items.get_nowait())
            self.missed += 1

    def close(self) -> None:
        """Accept no more items: every reader gets None once the rest is read."""
        self._items.put_nowait(None)

    async def get(self) -> T | None:
        """The next item; None once the mailbox is closed."""
        item = self._take(await self._items.get())
        if item is None:
            self._items.put_nowait(None)  # for other readers
        return item

    def _take(self, item: T | None) -> T | None:
        self._bytes -= 0 if item is None else self._size_of(item)
        return item

    def take_missed(self) -> int:
        """How many items were dropped since the last call."""
        missed, self.missed = self.missed, 0
        return missed
