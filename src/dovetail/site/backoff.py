"""How long to wait before a process is started again: longer each time, never the same, short again once it is well."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

JITTER = 0.25
"""A pause is up to this part shorter than planned, so that processes that fell together do not come back together."""


@dataclass(slots=True)
class Backoff:
    """The pauses of one process. `draw` gives a number from 0 up to 1, such as `random.random`."""

    min_s: float
    max_s: float
    well_after_s: float
    draw: Callable[[], float]
    failures: int = field(default=0, init=False)
    """How often it ended without having been well in between."""

    def next_pause(self, ran_s: float) -> float:
        """The pause after a run of `ran_s` seconds."""
        if ran_s >= self.well_after_s:
            self.failures = 0
        # bounded before it is shifted: a process may fail for months
        planned = min(self.max_s, self.min_s * 2.0 ** min(self.failures, 64))
        self.failures += 1
        return planned * (1 - JITTER * self.draw())
