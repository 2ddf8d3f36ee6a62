"""The journal of a simulated process: commits that take time, a full or failing disk, crashes at a commit.

With `full` a commit is durable and called back some milliseconds later. With `relaxed` it is called back immediately
and becomes durable with the next flush. While the disk is full nothing becomes durable, and commits are retried; a
commit that fails ends the process. Observations lost in a crash are recorded, so that a scenario can check what each
durability promises.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from dovetail.model.address import Address
from dovetail.model.errors import JournalError, JournalFull
from dovetail.model.hop import Observation, Stage
from dovetail.runtime.driver import Durability
from dovetail.sim.core import CrashPoint, Journal
from dovetail.sim.randomness import draw_between
from dovetail.sim.timeline import Timeline

RETRY_US = 100_000
Done = Callable[[JournalError | None], None]


class Disk:
    """What outlives a process: how its disk behaves, what was committed, and what its crashes lost."""

    def __init__(
        self, chance: random.Random, commit_us: tuple[int, int], name_frame: Callable[[bytes], str] | None = None
    ) -> None:
        self.chance = chance
        self.commit_us = commit_us
        self.name_frame = name_frame
        self.full_until_us = 0
        self.slow_until_us = 0
        self.slow_us = 0
        """How long a commit takes until `slow_until_us`."""
        self.is_failing = False
        """True if the next commit fails, like a failed fsync."""
        self.appends = 0
        self.refused = 0
        self.crash_plan: dict[int, tuple[CrashPoint, Callable[[], None]]] = {}
        self.names: dict[Address, str] = {}
        """The names of the messages that were accepted or created here, if frames are named."""
        self.durable: set[str] = set()
        """Names of messages in the journal."""
        self.handed: set[tuple[str, str]] = set()
        """Names of messages that, according to the journal, were handed to a counterpart."""
        self.lost: set[Address] = set()
        """Messages that lost an observation in a crash."""

    def learn_names(self, observations: Sequence[Observation]) -> None:
        """Name the messages that these observations take in."""
        if self.name_frame is not None:
            for observed in observations:
                if observed.stage in (Stage.ACCEPTED, Stage.CREATED) and observed.raw is not None:
                    self.names[observed.message] = self.name_frame(observed.raw)


class SimJournal:
    """One life of a journal. `run` calls an action in the process, unless it is dead or paused; `crash` ends it."""

    def __init__(
        self,
        journal: Journal,
        disk: Disk,
        durability: Durability,
        timeline: Timeline,
        run: Callable[[Callable[[], None], Any], None],
        crash: Callable[[CrashPoint, Callable[[], None]], None],
        fail: Callable[[JournalError], None],
    ) -> None:
        self.stalled: JournalError | None = None
        self.is_busy = False
        """True if something was committed that is not durable yet."""
        self._journal = journal
        self._disk = disk
        self._is_full = durability == "full"
        self._timeline = timeline
        self._run = run
        self._crash = crash
        self._fail = fail
        self._queue: list[tuple[Sequence[Observation], Done | None]] = []

    def commit(self, observations: Sequence[Observation], done: Done) -> None:
        """Commit as a server's journal does."""
        self._disk.learn_names(observations)
        is_waiting = self._is_full or self.stalled is not None
        self._queue.append((observations, done if is_waiting else None))
        if not self.is_busy:
            self.is_busy = True
            slow_us = self._disk.slow_us if self._timeline.now < self._disk.slow_until_us else 0
            self._plan(slow_us + draw_between(self._disk.chance, *self._disk.commit_us))
        if not is_waiting:
            done(None)

    def flush(self) -> None:
        """Make durable what no callback waits for; called at the end of a world."""
        if self.stalled is None and not any(done for _, done in self._queue):
            for observations, _ in self._take():
                self._append(observations)

    def give_up(self) -> None:
        """The process is dead: queued observations are lost."""
        self._disk.lost.update(observed.message for observations, _ in self._take() for observed in observations)

    def _take(self) -> list[tuple[Sequence[Observation], Done | None]]:
        queue, self._queue, self.is_busy = self._queue, [], False
        return queue

    def _plan(self, after_us: int) -> None:
        self._timeline.push(self._timeline.now + after_us, self._run, self._write, None)

    def _write(self) -> None:
        disk = self._disk
        point, crash = disk.crash_plan.get(disk.appends + 1, (None, None))
        observations = [observed for group, _ in self._queue for observed in group]
        if point is CrashPoint.BEFORE_COMMIT and crash is not None:
            disk.appends += 1
            self._crash(point, crash)
        try:
            if self._timeline.now < disk.full_until_us:
                raise JournalFull("no room left")
            if disk.is_failing:
                disk.is_failing = False
                raise JournalError("the disk failed")
            self._append(observations)
        except JournalFull as error:
            disk.refused += 1
            self.stalled = error
            self._plan(RETRY_US)
            return
        except JournalError as error:
            self._fail(error)
            return
        self.stalled = None
        disk.appends += 1
        queue = self._take()
        if point is not None and crash is not None:
            self._crash(point, crash)
        for _, done in queue:
            if done is not None:
                done(None)

    def _append(self, observations: Sequence[Observation]) -> None:
        self._journal.append(observations)
        disk = self._disk
        for observed in observations:
            if (name := disk.names.get(observed.message)) is not None:
                disk.durable.add(name)
                if observed.stage in (Stage.DELIVERED, Stage.REDELIVERED):
                    disk.handed.update((name, counterpart) for counterpart in observed.counterparts)
