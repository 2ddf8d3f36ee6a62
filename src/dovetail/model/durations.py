"""A histogram of durations that is cheap enough for a hot path: one bisection and two additions an observation."""

from __future__ import annotations

import bisect
import itertools


class Durations:
    """Counts durations in seconds by upper bound; the last count is of those above all bounds."""

    __slots__ = ("_bounds", "_counts", "sum_s")

    def __init__(self, bounds_s: tuple[float, ...]) -> None:
        self._bounds = bounds_s
        self._counts = [0] * (len(bounds_s) + 1)
        self.sum_s = 0.0

    def observe(self, seconds: float) -> None:
        """Count one."""
        self._counts[bisect.bisect_left(self._bounds, seconds)] += 1
        self.sum_s += seconds

    def cumulative(self) -> list[tuple[str, int]]:
        """Each bound as text with how many took at most that long, as Prometheus has its buckets."""
        names = [*map(str, self._bounds), "+Inf"]
        return list(zip(names, itertools.accumulate(self._counts), strict=True))
