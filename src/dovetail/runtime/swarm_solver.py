"""Proof of work in threads: the search releases the interpreter lock, so each thread uses one core."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from dovetail.swarm.content import NONCES, with_nonce
from dovetail.swarm.pow import RUN, WorkSearch, best_search


class WorkSolver:
    """Solves messages one after the other with all threads; `close` it when done."""

    def __init__(self, threads: int | None = None, search: WorkSearch | None = None) -> None:
        self.threads = threads or os.cpu_count() or 1
        self.search = search or best_search()
        self._pool = ThreadPoolExecutor(self.threads, thread_name_prefix="swarm work")
        self._turn = asyncio.Lock()
        self._random = random.SystemRandom()

    async def solve(self, message: bytes, target: int, progress: Callable[[int], None] = lambda _: None) -> bytes:
        """Return the message with a nonce that meets the target. Cancelling stops the threads within one run.

        The search starts at a random nonce and counts up, wrapping; the threads take runs of nonces in turn. `progress`
        is called from the threads with the number of nonces examined.
        """
        async with self._turn:
            start = self._random.getrandbits(64)
            stop = threading.Event()
            runs = itertools.count()
            loop = asyncio.get_running_loop()

            def work() -> bytes | None:
                while not stop.is_set():
                    run = next(runs)
                    nonce = self.search.find(message, target, (start + run * RUN) % NONCES, RUN)
                    if nonce is not None:
                        stop.set()
                        return with_nonce(message, nonce)
                    progress((run + 1) * RUN)
                return None

            searches = [loop.run_in_executor(self._pool, work) for _ in range(self.threads)]
            try:
                found = await asyncio.gather(*searches)
            finally:
                stop.set()
            return next(solved for solved in found if solved is not None)

    def close(self) -> None:
        """Shut down the threads."""
        self._pool.shutdown(wait=False, cancel_futures=True)
