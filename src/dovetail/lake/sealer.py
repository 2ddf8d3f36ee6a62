"""Sealing as a process: every journal of the site goes to the lake, again and again.

A journal is read beside the server that writes it. One that cannot be sealed now (no checkpoint yet, no room, damage)
is told of and tried again the next time; the others go on.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from pathlib import Path

from dovetail.lake.seal import seal_journal
from dovetail.model.errors import DovetailError

log = logging.getLogger("dovetail.seal")


class Sealer:
    """Seals journals into a lake until stopped; `stop` may be called from anywhere, also from a signal handler."""

    def __init__(self, journals: Sequence[Path], lake: Path, *, interval_s: float, target_bytes: int) -> None:
        self._journals = journals
        self._lake = lake
        self._interval_s = interval_s
        self._target_bytes = target_bytes
        self._stopped = threading.Event()
        self._problems: dict[Path, str] = {}

    def stop(self) -> None:
        """Let `run` end after one last sealing."""
        self._stopped.set()

    def run(self) -> None:
        """Seal now and then, and once more at the end: what the servers wrote before they stopped is sealed too."""
        while not self._stopped.wait(self._interval_s):
            self.seal()
        self.seal()

    def seal(self) -> int:
        """Seal what is new in every journal; returns how many hops that was."""
        hops = 0
        for path in self._journals:
            if not path.exists():
                continue  # its server has not started yet
            try:
                manifest = seal_journal(path, self._lake, target_bytes=self._target_bytes)
            except (DovetailError, OSError) as error:
                self._note(path, f"{path} is not sealed: {_text_of(error)}")
                continue
            self._note(path, None)
            if manifest is not None:
                count = manifest.end - manifest.first_seq
                hops += count
                log.info("sealed %d hops of %s in %d files", count, manifest.server, len(manifest.files))
        return hops

    def _note(self, path: Path, problem: str | None) -> None:
        """Tell of a problem when it is new, and of its end."""
        before = self._problems.pop(path, None)
        if problem is not None:
            self._problems[path] = problem
            if problem != before:
                log.error("%s; it is tried again every %g s", problem, self._interval_s)
        elif before is not None:
            log.info("%s can be sealed again", path)


def _text_of(error: Exception) -> str:
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
