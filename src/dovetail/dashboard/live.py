"""What the servers do now: each journal is followed, its new commits are counted, a bounded part per look.

A journal that was there before is counted from its beginning, so that stages and reasons are those of all its hops;
until that has caught up the snapshot says how far it has come. Rates come from the journals' sizes, at once.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dovetail.dashboard.site_sources import MAX_SOURCES, Site, name_of
from dovetail.journal.layout import REASON_OF_CODE, STAGE_OF_CODE, unpack_names
from dovetail.journal.reader import JournalReader
from dovetail.model.errors import DovetailError
from dovetail.runtime.clock import now_us

SECONDS_PER_LOOK = 0.3
RATE_WINDOW_S = 10.0
HISTORY_S = 120


@dataclass(slots=True)
class Follower:
    """One journal, with a connection of its own; for one thread at a time."""

    path: Path
    reader: JournalReader
    inode: int
    counted: int = 0
    size: int = 0
    last_at_us: int | None = None
    stages: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    sizes: deque[tuple[float, int]] = field(default_factory=deque)
    signed: int = 0
    damage: str = ""

    def look(self, now_s: float, deadline_s: float) -> None:
        """Count what is new until the deadline; what cannot be read is noted and passed over."""
        try:
            self.size = self.reader.size
            signed = self.reader.latest_checkpoint()
            self.signed = signed.size if signed else 0
            row = self.reader.one("SELECT last_at_us FROM commits ORDER BY first_seq DESC LIMIT 1")
            self.last_at_us = row[0] if row else None
        except DovetailError as error:
            self.damage = str(error)
            return
        self.sizes.append((now_s, self.size))
        while self.sizes[0][0] < now_s - HISTORY_S:
            self.sizes.popleft()
        while self.counted < self.size and time.monotonic() < deadline_s:
            self._count_some(deadline_s)

    def _count_some(self, deadline_s: float) -> None:
        try:
            for commit in self.reader.commits(self.counted, self.size):
                for run in commit.runs:
                    hops = len(unpack_names(run.counterparts)) or 1
                    self.stages[_word(STAGE_OF_CODE, run.stage)] += hops
                    if run.reason:
                        self.reasons[_word(REASON_OF_CODE, run.reason)] += hops
                self.counted = commit.end
                if time.monotonic() >= deadline_s:
                    return
        except DovetailError as error:
            self.damage = str(error)
            row = self.reader.one("SELECT min(first_seq) FROM commits WHERE first_seq > ?", (self.counted,))
            self.counted = self.size if row is None or row[0] is None else row[0]

    def rate(self, now_s: float) -> float:
        """Hops per second over the last few seconds."""
        recent = [each for each in self.sizes if each[0] >= now_s - RATE_WINDOW_S]
        if len(recent) < 2 or recent[-1][0] <= recent[0][0]:
            return 0.0
        return max(0.0, (recent[-1][1] - recent[0][1]) / (recent[-1][0] - recent[0][0]))

    def history(self, now_s: float, points: int = 60) -> list[int]:
        """New hops in each of the last `points` stretches of two seconds, oldest first."""
        width = HISTORY_S / points
        counts = [0] * points
        for (_, before), (at_s, size) in zip(self.sizes, list(self.sizes)[1:], strict=False):
            counts[min(points - 1, max(0, points - 1 - int((now_s - at_s) / width)))] += max(0, size - before)
        return counts


def _word(words: Any, code: int) -> str:
    return str(words.get(code, f"unknown code {code}"))


class Live:
    """All journals of a site; `look` makes the next snapshot."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._followers: dict[Path, Follower] = {}
        self._unreadable: dict[Path, str] = {}

    def look(self) -> dict[str, Any]:
        """The present state, as plain data."""
        now_s = time.monotonic()
        self._meet()
        followers = sorted(self._followers.values(), key=lambda each: each.reader.identity.server)
        for number, follower in enumerate(followers, start=1):
            # everybody gets a share; what one does not use is left for those behind
            follower.look(now_s, now_s + SECONDS_PER_LOOK * number / len(followers))
        servers = [_describe(follower, now_s) for follower in followers]
        damaged = [
            {"file": name_of(path), "server": None, "text": text} for path, text in sorted(self._unreadable.items())
        ]
        damaged += [
            {"file": name_of(each.path), "server": each.reader.identity.server, "text": each.damage}
            for each in followers
            if each.damage
        ]
        return {
            "at_us": now_us(),
            "hops": sum(each.size for each in followers),
            "rate": round(sum(each.rate(now_s) for each in followers), 1),
            "servers": servers,
            "damaged": damaged,
        }

    def close(self) -> None:
        """Release the files."""
        for follower in self._followers.values():
            follower.reader.close()
        self._followers.clear()

    def _meet(self) -> None:
        """Open journals that are new, and let go of those that are gone or that another file has replaced."""
        files = self._site.files()[:MAX_SOURCES]
        self._unreadable = {}
        for path, follower in list(self._followers.items()):
            if path not in files or _inode_of(path) != follower.inode:
                self._followers.pop(path).reader.close()
        for path in files:
            if path not in self._followers:
                try:
                    self._followers[path] = Follower(path, JournalReader.open(path), path.stat().st_ino)
                except (DovetailError, OSError) as error:
                    self._unreadable[path] = str(error)


def _inode_of(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except OSError:
        return None


def _describe(follower: Follower, now_s: float) -> dict[str, Any]:
    identity = follower.reader.identity
    return {
        "server": identity.server,
        "fabric": str(identity.fabric),
        "file": name_of(follower.path),
        "hops": follower.size,
        "counted": follower.counted,
        "signed": follower.signed,
        "rate": round(follower.rate(now_s), 1),
        "history": follower.history(now_s),
        "last_at_us": follower.last_at_us,
        "stages": dict(follower.stages.most_common()),
        "reasons": dict(follower.reasons.most_common()),
        "damage": follower.damage,
    }
