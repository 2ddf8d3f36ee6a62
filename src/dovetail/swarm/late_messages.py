"""Remembers messages that arrived late, so that a peer that pulls only recent times does not miss them.

Theory of operation. A peer pulls from each partner what is newer than its last question to that partner, with an
overlap (`gossip`). The window is one of timestamps, and what the partner received late is before it: a message whose
first pushes were all lost, that was delayed by a partition, or whose composer's clock is slow. So the answering peer
remembers, for `KEPT_US`, every message that was older than the overlap on arrival, and adds it to each list whose range
starts after it. In that time a partner asks several times, and other peers answer it too: every peer that asks learns
of the message, however late it arrived, and so do those that ask it in turn. A list entry costs 8 bytes.

Lateness depends on the asker's clock: if that is ahead of ours, messages that are late by its clock are remembered
too. At most `MAX_KEPT` messages are remembered; the oldest are dropped. A list includes at most `MAX_LISTED` of them,
from a random position on: if there are more, as after a long partition, the newest refer to the others, and those are
pulled by reference.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from dovetail.swarm.acceptance import Entry
from dovetail.swarm.contacts import RandomSource
from dovetail.swarm.gossip import OVERLAP_MS

KEPT_US: Final = 120_000_000
LEAD_US: Final = 600_000_000
"""How long the lead of an asker's clock is remembered."""
MAX_KEPT: Final = 1_024
MAX_LISTED: Final = 32


class LateMessages:
    """The late messages of one peer; the caller notes every message older than `from_age_ms` on arrival."""

    def __init__(self, random_source: RandomSource, max_lead_ms: int) -> None:
        self._random = random_source
        self._max_lead_ms = max_lead_ms
        self._kept: deque[tuple[int, Entry]] = deque(maxlen=MAX_KEPT)
        self._lead_until_us = 0
        self.from_age_ms = OVERLAP_MS

    def __len__(self) -> int:
        return len(self._kept)

    def note_asker(self, asked_ms: int, now: int) -> None:
        """A peer asked whose clock shows `asked_ms`; a lead beyond what messages may have is ignored."""
        lead_ms = asked_ms - now // 1000
        if now >= self._lead_until_us:
            self.from_age_ms = OVERLAP_MS
        if 0 < lead_ms <= self._max_lead_ms and OVERLAP_MS - lead_ms <= self.from_age_ms:
            self.from_age_ms = OVERLAP_MS - lead_ms
            self._lead_until_us = now + LEAD_US

    def note(self, entry: Entry, at_us: int) -> None:
        """A message arrived at this time that questions may not reach back to."""
        if entry.ttl_epochs:
            self._kept.append((at_us, entry))

    def handle_clock_step(self, now: int) -> None:
        """The clock was set back: arrivals recorded by the wrong clock count as arrivals now."""
        self._lead_until_us = 0
        self._kept = deque([(now, entry) for _, entry in self._kept], maxlen=MAX_KEPT)

    def before(self, start_ms: int, room: int, now: int) -> list[Entry]:
        """Unexpired late messages from before a range, at most `room`, in order of time."""
        kept = self._kept
        while kept and now - kept[0][0] >= KEPT_US:
            kept.popleft()
        found = [entry for _, entry in kept if entry.timestamp_ms < start_ms and entry.is_live]
        count = max(0, min(MAX_LISTED, room))
        if len(found) > count:
            first = int(self._random.random() * len(found))
            found = (found + found)[first : first + count]
        return sorted(found, key=lambda entry: (entry.timestamp_ms, entry.address))
