"""A process's own clock: world time with an offset and a drift."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dovetail.model.errors import LocalProtocolError
from dovetail.runtime.driver import Cancellable
from dovetail.sim.timeline import Timeline

START_US = 1_767_225_600_000_000
"""Where world time begins: 2026-01-01T00:00:00Z."""

_MILLION = 1_000_000
MAX_TIMER_SPINS = 1000


class Clock:
    """Reads `world time + skew + drift`; with a positive drift it runs fast by that many parts per million."""

    def __init__(self, start_us: int, skew_us: int = 0, drift_ppm: int = 0) -> None:
        if abs(drift_ppm) >= _MILLION:
            raise ValueError(f"drift of {drift_ppm} ppm, expected less than {_MILLION} either way")
        self._start_us = start_us
        self.skew_us = skew_us
        self.drift_ppm = drift_ppm

    def read(self, world_us: int) -> int:
        """The reading of this clock at a world time."""
        if not self.drift_ppm:
            return world_us + self.skew_us
        return world_us + self.skew_us + (world_us - self._start_us) * self.drift_ppm // _MILLION

    def when(self, shown_us: int) -> int:
        """The first world time at which this clock reads `shown_us`."""
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


class ProcessClock:
    """The clock of one life of a process, for its driver. `run` calls an action in it, unless it is dead or paused."""

    def __init__(
        self, name: str, clock: Clock, timeline: Timeline, run: Callable[[Callable[[], None], Any], None]
    ) -> None:
        self._name = name
        self._clock = clock
        self._timeline = timeline
        self._run = run
        self._spins = 0
        self._last_us = 0

    def now(self) -> int:
        """The reading of the process's clock."""
        return self._clock.read(self._timeline.now)

    def call_soon(self, action: Callable[[], None]) -> None:
        """Call it at the current time, after everything already scheduled for it."""
        self._timeline.push(self._timeline.now, self._run, action, None)

    def call_at(self, when: int, action: Callable[[], None]) -> Cancellable:
        """Call it when the clock reads `when`; setting the clock meanwhile does not change that."""
        at_us = max(self._timeline.now, self._clock.when(when))
        self._spins = self._spins + 1 if at_us == self._last_us == self._timeline.now else 0
        self._last_us = at_us
        if self._spins > MAX_TIMER_SPINS:
            raise LocalProtocolError(f"{self._name} wants its timer more than {MAX_TIMER_SPINS} times in a microsecond")
        call = _Call(action)
        self._timeline.push(at_us, self._run, call, None)
        return call


class _Call:
    def __init__(self, action: Callable[[], None]) -> None:
        self._action: Callable[[], None] | None = action

    def __call__(self) -> None:
        if self._action is not None:
            self._action()

    def cancel(self) -> None:
        self._action = None
