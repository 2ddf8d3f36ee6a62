"""Slews hop times when the clock is far behind the journal: time advances at half speed.

Times in a journal never decrease. If the clock was set back, or had been ahead and was believed, they would stand still
until it catches up. Instead half of the elapsed time is added, so that the two converge; hops are ordered by `seq`
either way.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from dovetail.model.hop import Observation

SLACK_US = 30_000_000
"""Up to this far behind, times stand still: callers may report what they saw slightly late."""


class Slewing:
    """Remembers the clock of the last observation that was behind."""

    __slots__ = ("_clock_us",)

    def __init__(self) -> None:
        self._clock_us: int | None = None

    def correct(self, observations: Sequence[Observation], last_at_us: int) -> Sequence[Observation]:
        """Observations with the times for their hops, after a journal that ends at `last_at_us`."""
        corrected = []
        for observation in observations:
            if observation.at_us < last_at_us - SLACK_US:
                passed_us = 0 if self._clock_us is None else max(0, observation.at_us - self._clock_us)
                last_at_us += passed_us // 2
                self._clock_us = observation.at_us
                corrected.append(msgspec.structs.replace(observation, at_us=last_at_us))
            else:
                self._clock_us = None
                last_at_us = max(last_at_us, observation.at_us)
                corrected.append(observation)
        return corrected
