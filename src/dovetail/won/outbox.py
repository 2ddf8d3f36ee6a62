"""The queue of messages for one destination node.

A message is queued from the moment its s1 is stored until the other node's response is. Over an open link messages go
out in order, at most `window` without response. When the link breaks, everything without response is sent again over
the next one, from the oldest on; the receiver answers a message it knows with the response it stored. Links are opened
again after a pause that doubles, with jitter, for as long as anything is queued: catching up needs no new traffic.
"""

from __future__ import annotations

from collections import OrderedDict

from dovetail.won.settings import WonSettings

_MAX_SHIFT = 32


def pause_us(attempts: int, settings: WonSettings, jitter: float) -> int:
    """How long to wait after so many failed attempts in a row; `jitter` is from 0 to 1."""
    pause_ms = min(settings.retry_ms << min(attempts, _MAX_SHIFT), settings.max_retry_ms)
    return int(pause_ms * 1000 * (0.5 + jitter / 2))


class Outbox:
    """The queue for one destination; `NodeOutboxes` asks it what to do, it never acts itself."""

    def __init__(self, node: str, settings: WonSettings) -> None:
        self.node = node
        self.link: str | None = None
        self.is_open = False
        self.attempts = 0
        self.retry_at: int | None = None
        self._settings = settings
        self._added = 0
        # Ordered, and quick at the front: a plain dict would have to step over all that was deleted there.
        self._numbers: OrderedDict[str, int] = OrderedDict()
        self._waiting: OrderedDict[str, None] = OrderedDict()
        self._under_way: OrderedDict[str, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._numbers)

    @property
    def oldest(self) -> str | None:
        """The message that is queued the longest."""
        return next(iter(self._numbers), None)

    @property
    def is_full(self) -> bool:
        """True if nothing more may be queued for this destination."""
        return len(self) >= self._settings.max_queue

    def add(self, uri: str) -> None:
        """Queue a message."""
        self._added += 1
        self._numbers[uri] = self._added
        self._waiting[uri] = None

    def remove(self, uri: str) -> None:
        """The response to the message came, or it is given up."""
        self._numbers.pop(uri, None)
        self._waiting.pop(uri, None)
        self._under_way.pop(uri, None)

    def sent_at(self, uri: str) -> int | None:
        """When the message was sent over the present link."""
        return self._under_way.get(uri)

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
        """The link is open. Attempts count on until a response comes: a node may accept links and end them."""
        self.is_open = True
        self.retry_at = None

    def lost(self, now: int, jitter: float) -> None:
        """The link broke or could not be opened: all without response waits again, in the order of its queueing."""
        self.link = None
        self.is_open = False
        for uri in sorted(self._under_way, key=self._numbers.__getitem__, reverse=True):
            self._waiting[uri] = None
            self._waiting.move_to_end(uri, last=False)
        self._under_way = OrderedDict()
        self.retry_at = now + pause_us(self.attempts, self._settings, jitter)
        self.attempts += 1

    def hurry(self, now: int) -> None:
        """The node was heard of: do not wait for much longer before it is tried again."""
        if self.retry_at is not None:
            self.retry_at = min(self.retry_at, now + self._settings.retry_ms * 1000)

    def next_timer(self) -> int | None:
        """When the outbox wants to be looked at again; its oldest message may fail before."""
        if self.link is None:
            return self.retry_at if len(self) else None
        if not self.is_open or not self._under_way:
            return None
        # Entries are kept in the order in which they were sent, so the first is the oldest.
        return next(iter(self._under_way.values())) + self._settings.response_timeout_ms * 1000
