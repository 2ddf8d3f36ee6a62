"""What is owed to another node: a queue per destination.

A message is owed from the moment its s1 is stored until the other node's response is. Over an open link messages go
out in order, at most `window` without response. When the link breaks, everything without response is sent again over
the next one, from the oldest on; the receiver answers a message it knows with the response it stored. Links are tried
again after a pause that doubles, with jitter, for as long as anything is owed: catching up needs no new traffic.
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import islice

from dovetail.won.settings import WonSettings


class Outbox:
    """The queue for one destination; the node core asks it what to do, it never acts itself."""

    def __init__(self, node: str, settings: WonSettings) -> None:
        self.node = node
        self.link: str | None = None
        self.is_open = False
        self.attempts = 0
        self.retry_at: int | None = None
        self._settings = settings
        # Ordered, and quick at the front: a plain dict would have to step over all that was deleted there.
        self._waiting: OrderedDict[str, None] = OrderedDict()
        self._under_way: OrderedDict[str, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._waiting) + len(self._under_way)

    def oldest(self) -> list[str]:
        """A few messages, among which is the one that is owed the longest."""
        # What was sent again may have changed places, but only within a window.
        return [*self._under_way, *islice(self._waiting, self._settings.window)]

    @property
    def is_full(self) -> bool:
        """True if nothing more may be owed to this destination."""
        return len(self) >= self._settings.max_queue

    def add(self, uri: str) -> None:
        """The message is owed."""
        self._waiting[uri] = None

    def settle(self, uri: str) -> None:
        """The response to the message came."""
        self._waiting.pop(uri, None)
        self._under_way.pop(uri, None)

    def take(self, now: int) -> list[str]:
        """The messages to send now over the open link, oldest first."""
        if not self.is_open:
            return []
        free = self._settings.window - len(self._under_way)
        batch = [uri for uri, _ in zip(self._waiting, range(free), strict=False)]
        for uri in batch:
            del self._waiting[uri]
            self._under_way[uri] = now
        return batch

    def take_overdue(self, now: int) -> list[str]:
        """Messages that had no response for too long; they are to be sent again now."""
        limit = now - self._settings.response_timeout_ms * 1000
        overdue = [uri for uri, sent in self._under_way.items() if sent <= limit] if self.is_open else []
        for uri in overdue:
            del self._under_way[uri]
            self._under_way[uri] = now
        return overdue

    def opened(self) -> None:
        """The link is open."""
        self.is_open = True
        self.attempts = 0
        self.retry_at = None

    def lost(self, now: int, jitter: float) -> None:
        """The link broke or could not be opened: all without response waits again, in its old order."""
        self.link = None
        self.is_open = False
        self._waiting = OrderedDict.fromkeys([*self._under_way, *self._waiting])
        self._under_way = OrderedDict()
        pause_ms = min(self._settings.retry_ms << min(self.attempts, 20), self._settings.max_retry_ms)
        self.attempts += 1
        self.retry_at = now + int(pause_ms * 1000 * (0.5 + jitter / 2))

    def next_timer(self) -> int | None:
        """When the outbox wants to be looked at again."""
        if self.link is None:
            return (self.retry_at or 0) if len(self) else None
        if not self.is_open or not self._under_way:
            return None
        # Entries are kept in the order in which they were sent, so the first is the oldest.
        return next(iter(self._under_way.values())) + self._settings.response_timeout_ms * 1000
