"""When a message is expired: the one place that compares lifetimes with the clock.

The broker takes `latest_expired_us` once a turn, and what expires later than that is not expired in this turn.
"""

from __future__ import annotations

from dovetail.model.hop import Reason
from dovetail.pcp.message import Message

NEVER_US = 1 << 62
"""The end of a message that has no `expires`."""


class Lifetimes:
    """Lifetimes as seen by a broker, with a tolerance for the clocks of its clients.

    The sender chooses `expires`, and it is forwarded unchanged; but nothing waits here for longer than
    `max_lifetime_ms` after it was accepted.
    """

    __slots__ = ("_max_us", "_skew_us")

    def __init__(self, clock_skew_ms: int, max_lifetime_ms: int) -> None:
        self._skew_us = clock_skew_ms * 1000
        self._max_us = max_lifetime_ms * 1000

    def end_us(self, message: Message) -> int:
        """The first moment at which a waiting message is given up."""
        own = NEVER_US if message.expires_us is None else message.expires_us + self._skew_us
        return min(own, message.accepted_us + self._max_us)

    def latest_expired_us(self, now: int) -> int:
        """The latest `expires` that is over now: a message has expired if its own is not later."""
        return now - self._skew_us

    def find_end(self, message: Message, now: int) -> Reason | None:
        """Why a waiting message is given up now, None while it may wait; one without `expires` is not given up."""
        if message.expires_us is None or now < self.end_us(message):
            return None
        return Reason.LIFETIME_OVER if message.expires_us <= self.latest_expired_us(now) else Reason.HELD_TOO_LONG
