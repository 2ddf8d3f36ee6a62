"""What the servers are doing: follows each journal and counts its new commits, a bounded part per snapshot.

An existing journal is counted from its beginning, so that stages and reasons cover all its hops; until that has caught
up the snapshot shows the progress. Rates come from the journals' sizes and are available immediately.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter, deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dovetail.audit.server_names import name_server_briefly, named_by, names_of, shorten_uri
from dovetail.dashboard.site_sources import MAX_SOURCES, Site, name_of, open_lake
from dovetail.journal.layout import REASON_OF_CODE, STAGE_OF_CODE, unpack_names
from dovetail.journal.reader import JournalReader
from dovetail.model.errors import DovetailError
from dovetail.model.hop import Stage
from dovetail.runtime.clock import now_us

SECONDS_PER_LOOK = 0.3
RATE_WINDOW_S = 10.0
PARTS, PART_S = 60, 15.0
"""A sparkline has this many parts of this many seconds: a quarter of an hour."""
SIGNED_WITHIN_S = 60.0
"""A hop not covered by a checkpoint after this time is a fault: servers sign every few seconds."""
IDLE_AFTER_S = 60.0
LOOK_AT_LAKE_EVERY_S = 30.0
SEALED_WITHIN_S = 3_600.0

STATES = ("damaged", "unsigned", "sealing behind", "writing", "idle")
"""The states of a server, the worst first."""


@dataclass(slots=True)
class Follower:
    """One journal with its own connection; use it from one thread at a time."""

    path: Path
    reader: JournalReader
    inode: int
    counted: int = 0
    size: int = 0
    last_at_us: int | None = None
    stages: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    sizes: deque[tuple[float, int]] = field(default_factory=deque)
    grown: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=PARTS))
    signed: int = 0
    damage: str = ""

    def look(self, now_s: float, deadline_s: float) -> None:
        """Count new hops until the deadline; unreadable parts are recorded and skipped."""
        try:
            self.size = self.reader.size
            signed = self.reader.latest_checkpoint()
            self.signed = signed.size if signed else 0
            row = self.reader.one("SELECT last_at_us FROM commits ORDER BY first_seq DESC LIMIT 1")
            self.last_at_us = row[0] if row else None
        except DovetailError as error:
            self.damage = str(error)
            return
        part = int(now_s / PART_S)
        grown = max(0, self.size - self.sizes[-1][1]) if self.sizes else 0
        if self.grown and self.grown[-1][0] == part:
            grown += self.grown.pop()[1]
        self.grown.append((part, grown))
        self.sizes.append((now_s, self.size))
        while self.sizes[0][0] < now_s - 2 * SIGNED_WITHIN_S:
            self.sizes.popleft()
        while self.counted < self.size and time.monotonic() < deadline_s:
            self._count_some(deadline_s)

    def _count_some(self, deadline_s: float) -> None:
        try:
            for commit in self.reader.commits(self.counted, self.size):
                for run in commit.runs:
                    hops = len(unpack_names(run.counterparts)) or 1
                    self.stages[_word(STAGE_OF_CODE, run.stage)] += hops
                    if run.reason and run.stage != Stage.NOTED.code:
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

    def state(self, now_s: float, sealed: SealedUpTo | None) -> str:
        """One of `STATES`."""
        if self.damage:
            return "damaged"
        now = now_us()
        age_s = (now - self.last_at_us) / 1e6 if self.last_at_us is not None else 0.0
        if self.signed < self._size_before(now_s - SIGNED_WITHIN_S) or (
            self.signed < self.size and age_s > SIGNED_WITHIN_S
        ):
            return "unsigned"
        if sealed is not None and sealed.size < self.size and sealed.is_behind(now):
            return "sealing behind"
        # a clock that is far ahead says nothing about now; a growing journal does
        is_recent = self.last_at_us is not None and abs(age_s) <= IDLE_AFTER_S
        has_grown = any(size < self.size for at_s, size in self.sizes if at_s >= now_s - IDLE_AFTER_S)
        return "writing" if is_recent or has_grown else "idle"

    def _size_before(self, then_s: float) -> int:
        """The number of hops at a time; 0 if nothing was observed by then."""
        return next((size for at_s, size in reversed(self.sizes) if at_s <= then_s), 0)

    def history(self, now_s: float) -> list[int]:
        """New hops in each of the last equal parts of the history, oldest first."""
        counts = [0] * PARTS
        for part, grown in self.grown:
            place = PARTS - 1 - (int(now_s / PART_S) - part)
            if place >= 0:
                counts[place] = grown
        return counts


@dataclass(frozen=True, slots=True)
class SealedUpTo:
    """How much of a journal the lake holds; `hop_at_us` is the time of the first hop that it lacks."""

    size: int
    hop_at_us: int | None

    def is_behind(self, now: int) -> bool:
        """True if that hop has waited for too long."""
        return self.hop_at_us is not None and (now - self.hop_at_us) / 1e6 > SEALED_WITHIN_S


def _word(words: Any, code: int) -> str:
    return str(words.get(code, f"unknown code {code}"))


class Live:
    """All journals of a site; `look` takes the next snapshot."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self.names: dict[str, str] = {}
        """The servers by the names of their journals, as of the latest look."""
        self._followers: dict[Path, Follower] = {}
        self._unreadable: dict[Path, str] = {}
        self._sealed: dict[str, SealedUpTo] = {}
        self._lake_seen_s = -LOOK_AT_LAKE_EVERY_S

    def look(self) -> dict[str, Any]:
        """The current state, as plain data."""
        now_s = time.monotonic()
        self._meet()
        followers = sorted(self._followers.values(), key=lambda each: each.reader.identity.server)
        for number, follower in enumerate(followers, start=1):
            # every journal gets a share of the time; what one does not use is left for those behind
            follower.look(now_s, now_s + SECONDS_PER_LOOK * number / len(followers))
        self._look_at_lake(now_s)
        sealed = {each.reader.identity.server: self._sealed_up_to(each) for each in followers}
        self.names = names_of({each.reader.identity.server: each.path for each in followers})
        with named_by(self.names):
            servers = [_describe(each, now_s, sealed[each.reader.identity.server]) for each in followers]
        servers.sort(key=lambda server: (STATES.index(server["state"]), server["server"]))
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

    def _look_at_lake(self, now_s: float) -> None:
        """Find out periodically how much of each journal the lake holds; an unreadable lake is reported elsewhere."""
        if self._site.lake is None or now_s - self._lake_seen_s < LOOK_AT_LAKE_EVERY_S:
            return
        self._lake_seen_s = now_s
        with contextlib.suppress(DovetailError, OSError):
            self._sealed = {
                source.server: SealedUpTo(source.size, None) for source in open_lake(self._site.lake, damages=[])
            }

    def _sealed_up_to(self, follower: Follower) -> SealedUpTo | None:
        known = self._sealed.get(follower.reader.identity.server)
        if self._site.lake is None or follower.damage:
            return None
        size = known.size if known is not None else 0
        if size >= follower.size:
            return SealedUpTo(size, None)
        if known is not None and known.hop_at_us is not None:
            return known
        with contextlib.suppress(DovetailError):
            row = follower.reader.one(
                "SELECT last_at_us FROM commits WHERE first_seq <= ? ORDER BY first_seq DESC LIMIT 1", (size,)
            )
            known = SealedUpTo(size, row[0] if row else None)
            self._sealed[follower.reader.identity.server] = known
        return known

    def close(self) -> None:
        """Release the files."""
        for follower in self._followers.values():
            follower.reader.close()
        self._followers.clear()

    def _meet(self) -> None:
        """Open new journals, and close those that are gone or were replaced by another file."""
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


def _describe(follower: Follower, now_s: float, sealed: SealedUpTo | None) -> dict[str, Any]:
    identity = follower.reader.identity
    return {
        "server": identity.server,
        "name": name_server_briefly(identity.server),
        "uri": shorten_uri(identity.server),
        "state": follower.state(now_s, sealed),
        "sealed": None if sealed is None else sealed.size,
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
