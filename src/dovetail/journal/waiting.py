"""Appends that wait to be committed, and those who wait for them."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Sequence

from dovetail.errors import DovetailError
from dovetail.hop import Observation


class Waiter:
    """Somebody who is told when hops are durable, or why they are not."""

    __slots__ = ("_error", "_event", "_future", "_size", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop | None) -> None:
        self.loop = loop
        self._future: asyncio.Future[int] | None = loop.create_future() if loop else None
        self._event = None if loop else threading.Event()
        self._size = 0
        self._error: DovetailError | None = None

    def finish(self, size: int, error: DovetailError | None) -> None:
        self._size, self._error = size, error
        if self._event is not None:
            self._event.set()
        elif self._future is not None and not self._future.done():
            if error is None:
                self._future.set_result(size)
            else:
                self._future.set_exception(error)

    def wait(self) -> int:
        assert self._event is not None
        self._event.wait()
        if self._error is not None:
            raise self._error
        return self._size

    async def wait_async(self) -> int:
        assert self._future is not None
        # a caller that is cancelled no longer hears of it; its hops are committed all the same
        return await self._future


Item = tuple[Sequence[Observation], Waiter | None, int]
"""One append: what it appends, who waits for it, and what it counts in the queue, in bytes."""


def observations_of(items: list[Item]) -> list[Observation]:
    """What these append, in their order."""
    return [observation for observations, _, _ in items for observation in observations]


def tell(items: list[Item], size: int, error: DovetailError | None) -> None:
    """Tell all who wait; those in an event loop by one call for each loop."""
    loops: dict[asyncio.AbstractEventLoop, list[Waiter]] = {}
    for _, waiter, _ in items:
        if waiter is None:
            continue
        if waiter.loop is None:
            waiter.finish(size, error)
        else:
            loops.setdefault(waiter.loop, []).append(waiter)
    for loop, members in loops.items():
        # the loop may be gone by now; nobody is left to be told then
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(_finish_in_loop, members, size, error)


def _finish_in_loop(waiters: list[Waiter], size: int, error: DovetailError | None) -> None:
    for waiter in waiters:
        waiter.finish(size, error)
