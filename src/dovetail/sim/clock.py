"""A place's own clock: world time with an offset and a drift."""

from __future__ import annotations

START_US = 1_767_225_600_000_000
"""Where world time begins: 2026-01-01T00:00:00Z."""

_MILLION = 1_000_000


class Clock:
    """Reads `world time + skew + drift`; with a positive drift it runs fast by so many parts in a million."""

    def __init__(self, start_us: int, skew_us: int = 0, drift_ppm: int = 0) -> None:
        if abs(drift_ppm) >= _MILLION:
            raise ValueError(f"drift of {drift_ppm} ppm, expected less than {_MILLION} either way")
        self._start_us = start_us
        self.skew_us = skew_us
        self.drift_ppm = drift_ppm

    def read(self, world_us: int) -> int:
        """What this clock shows at a moment of world time."""
        if not self.drift_ppm:
            return world_us + self.skew_us
        return world_us + self.skew_us + (world_us - self._start_us) * self.drift_ppm // _MILLION

    def when(self, shown_us: int) -> int:
        """The first moment of world time at which this clock shows so much."""
        world_us = shown_us - self.skew_us
        if not self.drift_ppm:
            return world_us
        elapsed = (world_us - self._start_us) * _MILLION // (_MILLION + self.drift_ppm)
        world_us = self._start_us + elapsed
        while self.read(world_us) < shown_us:
            world_us += 1
        while self.read(world_us - 1) >= shown_us:
            world_us -= 1
        return world_us
