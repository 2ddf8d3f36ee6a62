"""What becomes of a hop's time where the clock lies far behind the journal: it goes on at half speed.

Times in a journal never go back. Where the clock was set back, or a clock that was ahead had been believed, they would
stand still until it has caught up. Instead half of the time that passes is added, so that the two meet; the order of
hops is that of `seq` all the same.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from dovetail.model.hop import Observation

SLACK_US = 30_000_000
"""So far behind, times stand still: callers hand in what they saw a little late."""


class Slewing:
    """Remembers the clock of the last observation that lay behind."""

    __slots__ = ("_clock_us",)

    def __init__(self) -> None:
        self._clock_us: int | None = None

    def correct(self, observations: Sequence[Observation], last_at_us: int) -> Sequence[Observation]:
        """Observations with the times that their hops are to have, behind a journal that ends at `last_at_us`."""
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
