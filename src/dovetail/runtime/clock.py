"""The clock of servers and clients: the machine's, protected against single wrong readings.

A reading is compared with a second clock that nobody sets. One that is further ahead than `max_jump_us` is accepted
only after it has persisted for a while; until then time continues from the last accepted reading. `journal.slewing`
handles a clock that was set back.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

from dovetail.model.address import NO_MESSAGE
from dovetail.model.hop import Observation, Reason, Stage

if TYPE_CHECKING:
    from dovetail.journal.journal import Journal

DEFAULT_MAX_JUMP_US = 60_000_000
CONFIRMED_AFTER_US = 10_000_000
NOTED_US = 1_000_000
_STEADY = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def _steady_us() -> int:
    return time.clock_gettime_ns(_STEADY) // 1000


def _wall_us() -> int:
    return time.time_ns() // 1000


class Clock:
    """Microseconds since 1970 UTC. `on_step` is called with steps of a second and more, in microseconds."""

    def __init__(self, wall_us: Callable[[], int] = _wall_us, steady_us: Callable[[], int] = _steady_us) -> None:
        self.max_jump_us = DEFAULT_MAX_JUMP_US
        self.on_step: list[Callable[[int, int], None]] = []
        self._wall_us, self._steady_us = wall_us, steady_us
        self._believed = wall_us(), steady_us()
        self._ahead: tuple[int, int] | None = None

    def now_us(self) -> int:
        """The current time."""
        wall_us, steady_us = self._wall_us(), self._steady_us()
        last_us, last_steady_us = self._believed
        expected_us = last_us + steady_us - last_steady_us
        step_us = wall_us - expected_us
        if step_us > self.max_jump_us and not self._is_confirmed(step_us, steady_us):
            return expected_us
        self._believed, self._ahead = (wall_us, steady_us), None
        if not -NOTED_US < step_us < NOTED_US:
            for tell in tuple(self.on_step):
                tell(step_us, wall_us)
        return wall_us

    def _is_confirmed(self, step_us: int, steady_us: int) -> bool:
        """True if the clock has been that far ahead for long enough."""
        if self._ahead is None or abs(step_us - self._ahead[0]) > self.max_jump_us:
            self._ahead = step_us, steady_us
        return steady_us - self._ahead[1] >= CONFIRMED_AFTER_US


CLOCK = Clock()
now_us = CLOCK.now_us


def note_clock_steps(journal: Journal, clock: Clock = CLOCK) -> None:
    """Record permanently in the journal when, and by how much, its server's clock was set."""

    reference = weakref.ref(journal)  # the clock outlives it

    def note(step_us: int, at_us: int) -> None:
        text = f"clock {step_us / 1e6:+.3f} s"
        observation = Observation(
            at_us=at_us, stage=Stage.NOTED, message=NO_MESSAGE, counterparts=(text,), reason=Reason.CLOCK_STEPPED
        )
        noting = reference()
        if noting is not None:
            noting.commit([observation], lambda _: None)

    clock.max_jump_us = round(journal.max_clock_jump_s * 1e6)
    clock.on_step.append(note)
    weakref.finalize(journal, clock.on_step.remove, note).atexit = False
