"""Finds clients that did not associate in time, and those that were silent for too long."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection

from dovetail.pcp.session import Session

SWEEPS_PER_IDLE_TIMEOUT = 10


class Timeouts:
    """The two time limits of sessions. Idle sessions are found by sweeps, so that a frame costs no timer."""

    __slots__ = ("_association_us", "_awaiting", "_idle_us", "_sweep_us")

    def __init__(self, association_us: int, idle_us: int) -> None:
        self._association_us = association_us
        self._idle_us = idle_us
        self._awaiting: deque[tuple[int, Session]] = deque()
        self._sweep_us: int | None = None

    def watch(self, session: Session, now: int) -> None:
        """Watch a new session; one of v1 has to associate."""
        if self._sweep_us is None:
            self._sweep_us = now + self._sweep_interval_us
        if session.version == 1:
            self._awaiting.append((now + self._association_us, session))

    def take_unassociated(self, now: int) -> list[Session]:
        """The sessions whose time to associate is over."""
        late = []
        if self._awaiting and self._awaiting[0][0] > now + self._association_us:  # the clock was set back
            self._awaiting = deque([(min(due, now + self._association_us), each) for due, each in self._awaiting])
        waiting = self._awaiting
        while waiting and (waiting[0][0] <= now or waiting[0][1].uri is not None or waiting[0][1].is_closing):
            session = waiting.popleft()[1]
            if session.uri is None and not session.is_closing:
                late.append(session)
        return late

    def take_idle(self, sessions: Collection[Session], now: int) -> list[Session]:
        """The sessions that were silent for too long; empty if no sweep is due."""
        if self._sweep_us is None or now < self._sweep_us <= now + self._sweep_interval_us:
            return []
        self._sweep_us = now + self._sweep_interval_us if sessions else None
        limit = now - self._idle_us
        return [session for session in sessions if session.last_seen_us <= limit]

    def next_us(self) -> int | None:
        """When the next check is due."""
        association_us = self._awaiting[0][0] if self._awaiting else None
        if association_us is None or (self._sweep_us is not None and self._sweep_us < association_us):
            return self._sweep_us
        return association_us

    @property
    def _sweep_interval_us(self) -> int:
        return max(1, self._idle_us // SWEEPS_PER_IDLE_TIMEOUT)
