"""Checks that a block leaves no task, thread or socket behind."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
from collections.abc import AsyncIterator
from pathlib import Path


def sockets() -> int:
    """Number of open sockets of this process."""
    count = 0
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            count += str(entry.readlink()).startswith("socket:")
    return count


def threads() -> set[threading.Thread]:
    """The threads of this process, without the pools of event loops, which end with their loops."""
    return {thread for thread in threading.enumerate() if not thread.name.startswith("asyncio_")}


@contextlib.asynccontextmanager
async def nothing_left() -> AsyncIterator[None]:
    """Counts tasks, threads and sockets before and after; allows time for closing."""
    before = (asyncio.all_tasks(), threads(), sockets())
    yield
    for _ in range(500):
        gc.collect(0)
        now = (asyncio.all_tasks(), threads(), sockets())
        if now[0] <= before[0] and now[1] <= before[1] and now[2] <= before[2]:
            return
        await asyncio.sleep(0.01)
    assert now[0] <= before[0]
    assert now[1] <= before[1]
    assert now[2] <= before[2]
