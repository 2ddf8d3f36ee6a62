"""Progress of long work, on a terminal only."""

from __future__ import annotations

import sys
from typing import Self


class Bar:
    """A progress bar on stderr; prints nothing if stderr is not a terminal."""

    def __init__(self, title: str, unit: str) -> None:
        self._title = title
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

            self._progress: Progress | None = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn(unit),
                TimeElapsedColumn(),
                console=Console(stderr=True),
                transient=True,
            )
        else:
            self._progress = None

    def __enter__(self) -> Self:
        if self._progress is not None:
            self._progress.start()
            self._task = self._progress.add_task(self._title, total=None)
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.stop()

    def update(self, done: int, total: int) -> None:
        """Report progress."""
        if self._progress is not None:
            self._progress.update(self._task, completed=done, total=total)
