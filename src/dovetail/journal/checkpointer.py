"""Signs a checkpoint every few seconds, and watches the journal's file.

The writer hashes what it commits, so a checkpoint costs one signature and one short transaction. A file that was
removed or replaced still accepts writes, but nobody can ever read them: the journal has then failed.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from dovetail.journal.writer import JournalWriter
from dovetail.model.errors import DovetailError, JournalError
from dovetail.tlog.checkpoint import SignedCheckpoint

log = logging.getLogger("dovetail.journal")

WATCH_S = 1.0


class SharedJournal(Protocol):
    """What a checkpointer needs of its journal."""

    path: Path

    @property
    def failure(self) -> JournalError | None: ...

    def call(self, job: Callable[[JournalWriter], object]) -> None: ...


class Checkpointer:
    """Requests checkpoints from its own thread."""

    def __init__(self, journal: SharedJournal) -> None:
        self._journal = journal
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._file = _identify(journal.path)
        self._signed_s = time.monotonic()

    def start(self, interval_s: float) -> None:
        """Sign every `interval_s` seconds if anything is new."""
        name = f"checkpoints {self._journal.path.name}"
        self._thread = threading.Thread(target=self._loop, args=(interval_s,), name=name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread; idempotent."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()

    def checkpoint(self) -> SignedCheckpoint | None:
        """Sign what is committed now; None if the journal is empty."""
        signed: list[SignedCheckpoint | None] = []
        self._journal.call(lambda writer: signed.append(writer.checkpoint()))
        self._signed_s = time.monotonic()
        return signed[0]

    @property
    def age_s(self) -> float:
        """Seconds since all committed hops were last signed, or since this object was created."""
        return time.monotonic() - self._signed_s

    def _loop(self, interval_s: float) -> None:
        due_s = time.monotonic() + interval_s
        while not self._stopped.wait(min(interval_s, WATCH_S)):
            try:
                if _identify(self._journal.path) != self._file:
                    reason = f"{self._journal.path} was removed or replaced while it was being written"
                    self._journal.call(functools.partial(_give_up, JournalError(reason)))
                elif time.monotonic() >= due_s:
                    self.checkpoint()
            except DovetailError as error:
                log.warning("journal %s: no checkpoint: %s", self._journal.path, error)
            if self._journal.failure is not None:
                return
            if time.monotonic() >= due_s:
                due_s = time.monotonic() + interval_s


def _give_up(error: JournalError, writer: JournalWriter) -> None:
    writer.give_up(error)


def _identify(path: Path) -> tuple[int, int] | None:
    """The identity of the file at this path; None if there is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino
