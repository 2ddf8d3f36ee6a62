"""Shows the progress of a run: the step by name, and its tasks from Spark's status tracker."""

from __future__ import annotations

import threading
from typing import Protocol

from pyspark.sql import SparkSession

_REFRESH_S = 0.5


class Progress(Protocol):
    """Receives the name of each step."""

    def step(self, name: str) -> None:
        """This step starts now."""


class _Silent:
    def step(self, name: str) -> None:
        """Ignore the step."""


silent: Progress = _Silent()


class TerminalProgress:
    """One line on a terminal's stderr: the step, tasks done of tasks known, and the time."""

    def __init__(self, spark: SparkSession) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bar

        self._context = spark.sparkContext
        self._bar = Bar(
            TextColumn("{task.description:<36}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._task = self._bar.add_task("start", total=None)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> TerminalProgress:
        self._bar.start()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._bar.stop()

    def step(self, name: str) -> None:
        """Show this step from now on."""
        self._context.setJobDescription(name)
        self._bar.reset(self._task, total=None, description=name)

    def _watch(self) -> None:
        tracker = self._context.statusTracker()
        while not self._stop.wait(_REFRESH_S):
            done = known = 0
            for stage in tracker.getActiveStageIds():
                info = tracker.getStageInfo(stage)
                if info is not None:
                    done += info.numCompletedTasks
                    known += info.numTasks
            if known:
                self._bar.update(self._task, completed=done, total=known)
