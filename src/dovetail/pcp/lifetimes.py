"""When a message is expired: the one place that judges `expires` against the clock."""

from __future__ import annotations

NEVER_US = 1 << 62
"""Stands for `expires` where a message has none."""


class Lifetimes:
    """Lifetimes as a broker sees them, with a tolerance for the clocks of its clients."""

    __slots__ = ("_skew_us",)

    def __init__(self, clock_skew_ms: int) -> None:
        self._skew_us = clock_skew_ms * 1000

    def end_us(self, expires_us: int) -> int:
        """The first moment at which a message is expired."""
        return expires_us + self._skew_us

    def latest_expired_us(self, now: int) -> int:
        """The latest `expires` that is over now: a message is expired if its own is not later."""
        return now - self._skew_us

    def is_over(self, expires_us: int | None, now: int) -> bool:
        """Whether a message is expired; one without `expires` never is."""
        return expires_us is not None and expires_us <= self.latest_expired_us(now)
