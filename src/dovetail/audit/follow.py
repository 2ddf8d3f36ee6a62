"""`audit follow`: a run every few seconds, each new finding reported once.

A run that finds nothing new in a quiet lake costs a listing. A file may be removed from a quiet lake, and a chain may
become overdue there; so the lake is judged in every cycle. On stop, work in progress is abandoned: the next run rolls
back what it wrote.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import threading
from dataclasses import dataclass, field

from pyspark.errors import PySparkException

from dovetail.audit.alerts import Alerts
from dovetail.audit.progress import Progress
from dovetail.audit.run import Audit

SETTLING_S = 600
"""Servers seal while the follower runs: their files exist for a while before a manifest announces them."""

_LOOK_S = 0.2


class Stopped(Exception):
    """Raised between two steps after a stop was requested."""


@dataclass(frozen=True, slots=True)
class _StoppingProgress:
    """Forwards steps; ends the work at the next one after `stop` is set."""

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
    _problem: BaseException | None = None

    def run(self) -> None:
        """Follow until a stop is requested; raises PipelineError if the audit cannot continue."""
        self.audit.progress = _StoppingProgress(self.audit.progress, self.stop)
        self.audit.settling_s = SETTLING_S
        worker = threading.Thread(target=self._work, name="follow", daemon=True)
        worker.start()
        try:
            while not self.stop.wait(_LOOK_S) and worker.is_alive():
                pass
            if self._problem is not None:
                raise self._problem
        finally:
            self.stop.set()
            self._end(worker)

    def _work(self) -> None:
        try:
            while not self.stop.is_set():
                self.audit.refresh()
                self.alerts.update(dt.datetime.now(dt.UTC))
                self.stop.wait(self.every_s)
        except Stopped:
            pass
        except Exception as error:
            if not self.stop.is_set():
                self._problem = error

    def _end(self, worker: threading.Thread) -> None:
        """End quietly: Spark and its bridge would report the requested interruption in many lines."""
        with contextlib.suppress(PySparkException, OSError):
            self.audit.spark.sparkContext.setLogLevel("OFF")
            self.audit.spark.sparkContext.cancelAllJobs()
        with contextlib.suppress(PySparkException, OSError):
            worker.join(self.every_s + 1)
            self.audit.spark.stop()
