"""Messages that came here late, so that nobody who asks only for what is new can overlook them.

Theory of operation. A peer asks each partner for what is newer than its last question to that partner, with an overlap
(`gossip`). The window is one of timestamps, and what the partner got late lies before it: a message whose first pushes
were all lost, that was cut off by a partition, or whose composer's clock is slow. So whoever answers remembers what was
older than the overlap when it came, for `KEPT_US`, and names it in every list whose range begins after it. In that time
a partner asks several times, and others answer it too: what one peer has, all that ask it learn of, however late it
came, and then all that ask those. A peer that already has it pays 8 bytes.

Whether a message is late is a question of the asker's clock: where the clock of one that asks is ahead of ours, what is
late by that clock is remembered too. At most `MAX_KEPT` are remembered; the oldest give way. A list
names at most `MAX_NAMED` of them, beginning at random: of more, as after a long partition, the newest refer to the
others, and those are pulled by their references.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from dovetail.swarm.contacts import Chance
from dovetail.swarm.dag import Entry
from dovetail.swarm.gossip import OVERLAP_MS

KEPT_US: Final = 120_000_000
LEAD_US: Final = 600_000_000
"""How long an asker's clock is remembered."""
MAX_KEPT: Final = 1_024
MAX_NAMED: Final = 32


class Latecomers:
    """What one peer got late; whatever is older than `from_age_ms` when it comes has to be noted."""

    def __init__(self, chance: Chance, max_lead_ms: int) -> None:
        self._chance = chance
        self._max_lead_ms = max_lead_ms
        self._kept: deque[tuple[int, Entry]] = deque(maxlen=MAX_KEPT)
        self._lead_until_us = 0
        self.from_age_ms = OVERLAP_MS

    def __len__(self) -> int:
        return len(self._kept)

    def note_asker(self, asked_ms: int, now: int) -> None:
        """Somebody asked whose clock shows `asked_ms`; one that is off by more than messages may be does not count."""
        lead_ms = asked_ms - now // 1000
        if now >= self._lead_until_us:
            self.from_age_ms = OVERLAP_MS
        if 0 < lead_ms <= self._max_lead_ms and OVERLAP_MS - lead_ms <= self.from_age_ms:
            self.from_age_ms = OVERLAP_MS - lead_ms
            self._lead_until_us = now + LEAD_US

    def note(self, entry: Entry, at_us: int) -> None:
        """A message came at this time that a question may not reach back to."""
        if entry.ttl_epochs:
            self._kept.append((at_us, entry))

    def turn_back(self, now: int) -> None:
        """The clock was set back: what came by the wrong clock came now."""
        self._lead_until_us = 0
        self._kept = deque([(now, entry) for _, entry in self._kept], maxlen=MAX_KEPT)

    def named_before(self, start_ms: int, room: int, now: int) -> list[Entry]:
        """Live ones from before a range, at most `room`, in the order of time."""
        kept, now_ms = self._kept, now // 1000
        while kept and now - kept[0][0] >= KEPT_US:
            kept.popleft()
        found = [entry for _, entry in kept if entry.timestamp_ms < start_ms and entry.expires_ms > now_ms]
        count = max(0, min(MAX_NAMED, room))
        if len(found) > count:
            first = int(self._chance.random() * len(found))
            found = (found + found)[first : first + count]
        return sorted(found, key=lambda entry: (entry.timestamp_ms, entry.address))
