"""Progress of a demo: live lines on a terminal, plain lines elsewhere."""

from __future__ import annotations

import os
import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

from dovetail.cli.output import say

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


class PlainScreen:
    """Lines on stderr, each with the seconds since the start; only the last state of a phase is shown."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._status = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self._flush()

    def phase(self, title: str) -> None:
        """A new phase begins."""
        self._flush()
        self._print(title)

    def status(self, text: str) -> None:
        """Set the state of the phase, shown when it ends."""
        self._status = text

    def note(self, text: str) -> None:
        """Print one line."""
        self._print(f"  {text}")

    def _flush(self) -> None:
        if self._status:
            self._print(f"  {self._status}")
        self._status = ""

    def _print(self, text: str) -> None:
        say(f"{time.monotonic() - self._began:6.1f} s  {text}")


class LiveScreen:
    """One spinner per phase on a terminal, with its time; notes scroll by above it."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        self._file = os.fdopen(os.dup(sys.stderr.fileno()), "w")
        self._progress: Progress = Progress(
            SpinnerColumn(finished_text="[green]✓"),
            TimeElapsedColumn(),
            TextColumn("{task.description}", markup=False),
            TextColumn("{task.fields[state]}", style="dim", markup=False),
            # a separate descriptor: stderr is redirected while Java starts
            console=Console(file=self._file),
        )
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self._finish()
        self._progress.stop()
        self._file.close()

    def phase(self, title: str) -> None:
        """A new phase begins; the previous one is done."""
        self._finish()
        self._task = self._progress.add_task(title, total=None, state="")

    def status(self, text: str) -> None:
        """Set the state shown beside the phase."""
        if self._task is not None:
            self._progress.update(self._task, state=text)

    def note(self, text: str) -> None:
        """Print one line above the phases."""
        from rich.text import Text

        self._progress.console.print(Text(f"  {text}", style="dim"))

    def _finish(self) -> None:
        if self._task is not None:
            self._progress.update(self._task, total=1, completed=1)


def open_screen() -> PlainScreen | LiveScreen:
    """The live display if stderr is a terminal, else plain lines."""
    return LiveScreen() if sys.stderr.isatty() else PlainScreen()
