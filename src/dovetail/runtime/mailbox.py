"""A bounded queue of items for an application to read."""

from __future__ import annotations

import asyncio
from typing import Final, Generic, TypeVar

MAX_UNREAD_MESSAGES: Final = 10_000

T = TypeVar("T")


class Mailbox(Generic[T]):
    """A queue that keeps the newest `max_items`; the reader learns how many older ones it missed."""

    def __init__(self, max_items: int) -> None:
        self._max_items = max_items
        self._items: asyncio.Queue[T | None] = asyncio.Queue()
        self.missed = 0

    def put(self, item: T) -> None:
        """Add an item; at the limit the oldest is dropped."""
        if self._items.qsize() >= self._max_items:
            self._items.get_nowait()
            self.missed += 1
        self._items.put_nowait(item)

    def close(self) -> None:
        """Accept no more items: every reader gets None once the rest is read."""
        self._items.put_nowait(None)

    async def get(self) -> T | None:
        """The next item; None once the mailbox is closed."""
        item = await self._items.get()
        if item is None:
            self._items.put_nowait(None)  # for other readers
        return item

    def take_missed(self) -> int:
        """How many items were dropped since the last call."""
        missed, self.missed = self.missed, 0
        return missed
