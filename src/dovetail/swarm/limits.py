"""Rate limits on what other peers can make us do: token buckets, and the journaling of refusals."""

from __future__ import annotations

from collections import Counter

from dovetail.model.hop import Reason


class TokenBucket:
    """`rate_per_second` units on average, accumulating up to `burst`; starts full."""

    __slots__ = ("_burst", "_left", "_rate", "_seen_us")

    def __init__(self, rate_per_second: float, burst: float) -> None:
        self._rate = rate_per_second
        self._burst = burst
        self._left = burst
        self._seen_us: int | None = None

    def available(self, now: int) -> float:
        """How much may be spent now. A clock that is set back adds nothing."""
        if self._seen_us is None:
            self._seen_us = now
        elif now > self._seen_us:
            self._left = min(self._burst, self._left + (now - self._seen_us) * self._rate / 1_000_000)
            self._seen_us = now
        return self._left

    def take(self, amount: float, now: int) -> bool:
        """Spend `amount` if it is available now; otherwise nothing is spent."""
        if amount > self.available(now):
            return False
        self._left -= amount
        return True


class RefusalLog:
    """Counts every refusal by reason and limits how many are journaled, so that a flood cannot fill the disk."""

    def __init__(self, journaled_per_second: float) -> None:
        self.counts: Counter[Reason] = Counter()
        self.journaled = 0
        self._bucket = TokenBucket(journaled_per_second, 10 * journaled_per_second)

    def note(self, reason: Reason, now: int) -> bool:
        """Count a refusal; True if it should be journaled."""
        self.counts[reason] += 1
        if not self._bucket.take(1, now):
            return False
        self.journaled += 1
        return True
