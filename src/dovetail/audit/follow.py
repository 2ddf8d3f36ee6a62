"""`audit follow`: the stream of manifests with a processing-time trigger, and a look at the lake when it is quiet.

A trigger without new manifests runs nothing. But a file may be removed from a quiet lake, and a chain may become
overdue there; so a second thread looks at the same pace, judges the lake as it is, and tells what is new. Only one of
the two works at a time.

Told to stop, the follower stops at once: what was under way is done again by the next start.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from dovetail.audit.alerts import Alerts
from dovetail.audit.jobs.run import Audit, wait
from dovetail.audit.progress import Progress

SETTLING_S = 600
"""Servers seal while the follower looks: their files are there for a while before a manifest announces them."""

_LOOK_S = 0.2


class Stopped(Exception):
    """Raised between two steps of the work after the follower was told to stop."""


@dataclass(frozen=True, slots=True)
class _StoppingProgress:
    """Passes steps on; ends the work at the next one after `stop` is set."""

    behind: Progress
    stop: threading.Event

    def step(self, name: str) -> None:
        if self.stop.is_set():
            raise Stopped
        self.behind.step(name)


@dataclass(slots=True)
class Follower:
    """Follows one lake until `stop` is set."""

    audit: Audit
    alerts: Alerts
    every_s: float
    stop: threading.Event = field(default_factory=threading.Event)
    _turn: threading.Lock = field(default_factory=threading.Lock)
    _problem: BaseException | None = None

    def run(self) -> None:
        """Follow; returns when told to stop, PipelineError where the audit cannot go on."""
        progress = _StoppingProgress(self.audit.progress, self.stop)
        self.audit = replace(self.audit, progress=progress, settling_s=SETTLING_S)
        query = self.audit.stream(self._process).trigger(processingTime=f"{self.every_s} seconds").start()
        looker = threading.Thread(target=self._look_on, name="follow", daemon=True)
        looker.start()
        try:
            while not self.stop.wait(_LOOK_S):
                if self._problem is not None:
                    raise self._problem
                if not query.isActive:
                    wait(query)
                    return
        finally:
            self.stop.set()
            with _quiet(self.audit):
                query.stop()
                looker.join(self.every_s + 1)
                self.audit.spark.stop()

    def _process(self, rows: DataFrame, number: int) -> None:
        try:
            with self._turn:
                self.audit.process(rows, number)
                self._conclude()
        except Exception:
            if self.stop.is_set():
                # a short text: Spark looks through the whole trace of what comes here, with a regular expression that
                # runs out of stack on that of a cancelled job
                raise Stopped from None
            raise

    def _look_on(self) -> None:
        """Look at the lake at the stream's pace; a batch that is under way looks itself."""
        try:
            while not self.stop.wait(self.every_s):
                if self.audit.store.batch_ids() and self._turn.acquire(blocking=False):
                    try:
                        self._conclude()
                    finally:
                        self._turn.release()
        except Exception as error:
            if not self.stop.is_set():
                self._problem = error

    def _conclude(self) -> None:
        self.audit.refresh()
        self.alerts.update(dt.datetime.now(dt.UTC))


@contextlib.contextmanager
def _quiet(audit: Audit) -> Iterator[None]:
    """Spark and its bridge tell in many lines that work was interrupted; whoever asked for it knows."""
    with contextlib.suppress(PySparkException, OSError):
        audit.spark.sparkContext.setLogLevel("OFF")
        audit.spark.sparkContext.cancelAllJobs()
    with contextlib.suppress(PySparkException, OSError):
        yield
