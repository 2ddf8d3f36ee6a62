"""Sealing as a process: seals every journal of a site periodically, and cleans up the lake.

A journal is read while its server writes it. One that cannot be sealed now (no checkpoint yet, full disk, damage) is
reported and retried the next time; the others continue.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from dovetail.lake.retain import DEFAULT_GRACE_S, sweep
from dovetail.lake.seal import seal_journal
from dovetail.lake.store import Store
from dovetail.model.errors import DovetailError

SWEEP_INTERVAL_S = 86_400.0
"""A sweep lists the whole lake, and what it deletes is at least a day old."""

log = logging.getLogger("dovetail.seal")


class Sealer:
    """Seals journals into a lake until stopped; `stop` may be called from anywhere, including a signal handler."""

    def __init__(
        self,
        journals: Sequence[Path],
        lake: Store,
        *,
        interval_s: float,
        target_bytes: int,
        grace_s: float = DEFAULT_GRACE_S,
    ) -> None:
        self._journals = journals
        self._lake = lake
        self._interval_s = interval_s
        self._target_bytes = target_bytes
        self._grace_s = grace_s
        self._stopped = threading.Event()
        self._problems: dict[object, str] = {}

    def stop(self) -> None:
        """Make `run` return after one last sealing."""
        self._stopped.set()

    def run(self) -> None:
        """Seal at every interval, and again at the end: what servers wrote while stopping is sealed too."""
        next_sweep_s = time.monotonic() + SWEEP_INTERVAL_S
        while not self._stopped.wait(self._interval_s):
            self.seal()
            if time.monotonic() >= next_sweep_s:
                self.sweep()
                next_sweep_s = time.monotonic() + SWEEP_INTERVAL_S
        self.seal()

    def seal(self) -> int:
        """Seal what is new in every journal; returns the number of hops."""
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

    def sweep(self) -> None:
        """Delete what compactions replaced, and what interrupted writers left, once it is old enough."""
        try:
            swept = sweep(self._lake, grace_s=self._grace_s)
        except (DovetailError, OSError) as error:
            self._note(self._lake, f"{self._lake} is not swept: {_text_of(error)}")
            return
        self._note(self._lake, None)
        if swept.files:
            log.info("deleted %d replaced or abandoned files (%d bytes)", swept.files, swept.bytes)

    def _note(self, subject: object, problem: str | None) -> None:
        """Report a problem when it is new, and when it is over."""
        before = self._problems.pop(subject, None)
        if problem is not None:
            self._problems[subject] = problem
            if problem != before:
                log.error("%s; retrying", problem)
        elif before is not None:
            log.info("%s works again", subject)


def _text_of(error: Exception) -> str:
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
