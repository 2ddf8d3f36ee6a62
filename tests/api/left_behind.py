"""Cancels a call at each of its await points, and checks that a block leaves no task, thread or open file behind."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Generator
from functools import partial
from pathlib import Path
from typing import Any

IDLE_S = 0.5
"""A call that has not gone on for this long waits for what will not come."""


def open_files() -> int:
    """Number of open files, sockets among them, of this process."""
    return len(list(Path("/proc/self/fd").iterdir()))


def threads() -> set[threading.Thread]:
    """The threads of this process, without the pools of event loops, which end with their loops."""
    return {thread for thread in threading.enumerate() if not thread.name.startswith("asyncio_")}


@contextlib.asynccontextmanager
async def nothing_left() -> AsyncIterator[None]:
    """Counts tasks, threads and open files before and after; allows time for closing."""
    before = (asyncio.all_tasks(), threads(), open_files())
    yield
    for _ in range(500):
        gc.collect(0)
        now = (asyncio.all_tasks(), threads(), open_files())
        if now[0] <= before[0] and now[1] <= before[1] and now[2] <= before[2]:
            return
        await asyncio.sleep(0.01)
    assert now[0] - before[0] == set()
    assert now[1] - before[1] == set()
    assert now[2] <= before[2]


class CancelledAt:
    """Awaits a coroutine, and cancels the task when it is suspended for the `point`-th time."""

    def __init__(self, work: Coroutine[Any, Any, Any], point: int) -> None:
        self._work = work
        self._point = point
        self.reached = 0
        self.resumed = asyncio.Event()

    def __await__(self) -> Generator[Any, Any, Any]:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        steps = self._work.__await__()
        step: Callable[[], Any] = partial(steps.send, None)
        while True:
            try:
                awaited = step()
            except StopIteration as end:
                return end.value
            self.reached += 1
            self.resumed.set()
            if self.reached == self._point:
                loop.call_soon(task.cancel)
            try:
                step = partial(steps.send, (yield awaited))
            except BaseException as error:
                step = partial(steps.throw, error)


async def cancel_at(work: Coroutine[Any, Any, Any], point: int) -> bool:
    """Cancel at this await point, from 1, or where it waits forever before; False once there is no such point."""
    stepped = CancelledAt(work, point)

    async def awaiting() -> None:
        await stepped

    task = asyncio.ensure_future(awaiting())
    while not task.done():
        stepped.resumed.clear()
        waiting = asyncio.ensure_future(stepped.resumed.wait())
        await asyncio.wait([task, waiting], timeout=IDLE_S, return_when=asyncio.FIRST_COMPLETED)
        is_idle = not waiting.done() and not task.done()
        waiting.cancel()
        if is_idle:
            task.cancel()
            await asyncio.wait([task])
    await asyncio.gather(task, return_exceptions=True)
    return stepped.reached >= point
