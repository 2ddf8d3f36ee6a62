"""World time and the event queue.

The queue is a heap of plain tuples `(at, number, act, a, b)`. The number counts every push, so two events due at the
same microsecond happen in the order in which they were scheduled, on every machine and in every run.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

Act = Callable[[Any, Any], None]


class Timeline:
    """`now` is world time in microseconds since 1970 UTC; it moves only inside `run`. `last_us`: the last event."""

    def __init__(self, start_us: int) -> None:
        self.start_us = start_us
        self.now = start_us
        self.last_us = start_us
        self.happened = 0
        self.heap: list[tuple[int, int, Act, Any, Any]] = []
        self.numbers = itertools.count()

    def push(self, at_us: int, act: Act, a: object, b: object) -> None:
        """Schedule `act(a, b)`; a time in the past means now."""
        heappush(self.heap, (max(at_us, self.now), next(self.numbers), act, a, b))

    def run(self, until_us: int) -> bool:
        """Run all events due up to `until_us`; True if the queue is empty."""
        heap = self.heap
        happened = 0
        try:
            while heap and heap[0][0] <= until_us:
                self.now, _, act, a, b = heappop(heap)
                happened += 1
                act(a, b)
        finally:
            self.happened += happened
        if happened:
            self.last_us = self.now
        self.now = max(self.now, until_us)
        return not heap
