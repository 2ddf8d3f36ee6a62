"""Pauses before a process is restarted: doubling, with jitter, reset after a good run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

JITTER = 0.25
"""A pause is shortened by up to this fraction, so that processes that failed together do not restart together."""


@dataclass(slots=True)
class Backoff:
    """The pauses of one process. `draw` returns a number from 0 up to but excluding 1, such as `random.random`."""

    min_s: float
    max_s: float
    well_after_s: float
    draw: Callable[[], float]
    failures: int = field(default=0, init=False)
    """Number of ends since the last good run."""

    def next_pause(self, ran_s: float) -> float:
        """The pause after a run of `ran_s` seconds."""
        if ran_s >= self.well_after_s:
            self.failures = 0
        # capped before the shift: a process may fail for months
        planned = min(self.max_s, self.min_s * 2.0 ** min(self.failures, 64))
        self.failures += 1
        return planned * (1 - JITTER * self.draw())
