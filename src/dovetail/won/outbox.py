"""The queue of messages for one destination node.

A message is queued from the moment its s1 is stored until the other node's response is. Over an open link messages go
out in order, with at most `window` messages and `burst_bytes` unanswered. When the link breaks, all unanswered messages
are sent again over the next one, oldest first; the receiver answers a known message with the response it stored. Links
are reopened after a pause that doubles, with jitter, while anything is queued: catching up needs no new traffic.
"""

from __future__ import annotations

from collections import OrderedDict

from dovetail.won.settings import WonSettings

_MAX_SHIFT = 32


def pause_us(attempts: int, settings: WonSettings, jitter: float) -> int:
    """How long to wait after this many failed attempts in a row; `jitter` is from 0 to 1."""
    pause_ms = min(settings.retry_ms << min(attempts, _MAX_SHIFT), settings.max_retry_ms)
    return int(pause_ms * 1000 * (0.5 + jitter / 2))


class Outbox:
    """The queue for one destination; purely passive: `NodeOutboxes` asks it what to do."""

    def __init__(self, node: str, settings: WonSettings) -> None:
        self.node = node
        self.link: str | None = None
        self.is_open = False
        self.attempts = 0
        self.retry_at: int | None = None
        self.is_alive = False
        """It wrote to us after the last attempt, which is worth another one."""
        self._settings = settings
        self._added = 0
        # Ordered, and fast at the front: a plain dict would have to skip the entries deleted there.
        self._numbers: OrderedDict[str, int] = OrderedDict()
        self._waiting: OrderedDict[str, None] = OrderedDict()
        self._under_way: OrderedDict[str, int] = OrderedDict()
        self._sizes: dict[str, int] = {}
        self._under_way_bytes = 0

    def __len__(self) -> int:
        return len(self._numbers)

    @property
    def oldest(self) -> str | None:
        """The message queued the longest."""
        return next(iter(self._numbers), None)

    @property
    def is_full(self) -> bool:
        """True if the queue for this destination is full."""
        return len(self) >= self._settings.max_queue

    def add(self, uri: str) -> None:
        """Queue a message."""
        self._added += 1
        self._numbers[uri] = self._added
        self._waiting[uri] = None

    def remove(self, uri: str) -> None:
        """Remove a message that was answered or given up."""
        self._numbers.pop(uri, None)
        self._waiting.pop(uri, None)
        self._under_way.pop(uri, None)
        self._under_way_bytes -= self._sizes.pop(uri, 0)

    def sent_at(self, uri: str) -> int | None:
        """When the message was sent over the current link."""
        return self._under_way.get(uri)

    def take(self, now: int) -> str | None:
        """The next message to send over the open link, oldest first; report its size with `note_size`."""
        settings = self._settings
        is_free = len(self._under_way) < settings.window and self._under_way_bytes < settings.burst_bytes
        if not (self.is_open and is_free and self._waiting):
            return None
        uri, _ = self._waiting.popitem(last=False)
        self._under_way[uri] = now
        return uri

    def note_size(self, uri: str, size: int) -> None:
        """Record the size in bytes of a taken message."""
        self._sizes[uri] = size
        self._under_way_bytes += size

    def take_overdue(self, now: int) -> list[str]:
        """Messages without a response for too long; resend them now."""
        limit = now - self._settings.response_timeout_ms * 1000
        overdue = [uri for uri, sent in self._under_way.items() if sent <= limit] if self.is_open else []
        for uri in overdue:
            del self._under_way[uri]
            self._under_way[uri] = now
        return overdue

    def opened(self) -> None:
        """The link is open. Attempts are not reset until a response arrives: a node may accept links and close them."""
        self.is_open = True
        self.retry_at = None

    def lost(self, now: int, jitter: float) -> None:
        """The link broke or could not be opened: all unanswered messages are queued again, in their original order."""
        self.link = None
        self.is_open = self.is_alive = False
        for uri in sorted(self._under_way, key=self._numbers.__getitem__, reverse=True):
            self._waiting[uri] = None
            self._waiting.move_to_end(uri, last=False)
        self._under_way = OrderedDict()
        self._sizes, self._under_way_bytes = {}, 0
        self.retry_at = now + pause_us(self.attempts, self._settings, jitter)
        self.attempts += 1

    def handle_clock_step(self, now: int) -> None:
        """The clock was set back: times recorded by the wrong clock are replaced."""
        self._shorten_pause(now)
        for uri, sent in self._under_way.items():
            self._under_way[uri] = min(sent, now)

    def hurry(self, now: int) -> None:
        """The node showed signs of life: shorten the pause before the next attempt."""
        self.is_alive = True
        self._shorten_pause(now)

    def _shorten_pause(self, now: int) -> None:
        if self.retry_at is not None:
            self.retry_at = min(self.retry_at, now + self._settings.retry_ms * 1000)

    def next_timer(self) -> int | None:
        """When the outbox is next due; its oldest message may fail before."""
        if self.link is None:
            return self.retry_at if len(self) else None
        if not self.is_open or not self._under_way:
            return None
        # Entries are in sending order, so the first is the oldest.
        return next(iter(self._under_way.values())) + self._settings.response_timeout_ms * 1000
