"""A duration histogram cheap enough for a hot path: one bisection and two additions per observation."""

from __future__ import annotations

import bisect
import itertools


class Durations:
    """Counts durations in seconds by upper bound; the last count is for those above all bounds."""

    __slots__ = ("_bounds", "_counts", "sum_s")

    def __init__(self, bounds_s: tuple[float, ...]) -> None:
        self._bounds = bounds_s
        self._counts = [0] * (len(bounds_s) + 1)
        self.sum_s = 0.0

    def observe(self, seconds: float) -> None:
        """Count one duration."""
        self._counts[bisect.bisect_left(self._bounds, seconds)] += 1
        self.sum_s += seconds

    def cumulative(self) -> list[tuple[str, int]]:
        """Return (upper bound as text, cumulative count) pairs, like Prometheus buckets."""
        names = [*map(str, self._bounds), "+Inf"]
        return list(zip(names, itertools.accumulate(self._counts), strict=True))
