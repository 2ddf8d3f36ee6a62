"""Purging inside a server's process: the bytes of messages that are expired and sealed go from its journal.

A journal has one writer, the server, so this runs beside it as a thread and asks the writer between two commits.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path

from dovetail.journal.journal import Journal
from dovetail.journal.purge import purge_step
from dovetail.journal.writer import JournalWriter
from dovetail.lake.manifest import latest_manifest
from dovetail.model.errors import DovetailError, JournalError

log = logging.getLogger("dovetail.purge")


def start_purging(journal: Journal, lake: Path, *, interval_s: float, now_us: Callable[[], int]) -> None:
    """Purge what is expired and sealed in `lake`, every `interval_s`, until the journal is closed."""
    thread = threading.Thread(
        target=_purge_loop, args=(journal, lake, interval_s, now_us), name=f"purge {journal.path.name}", daemon=True
    )
    thread.start()


def _purge_loop(journal: Journal, lake: Path, interval_s: float, now_us: Callable[[], int]) -> None:
    while True:
        time.sleep(interval_s)
        try:
            purged = purge_expired(journal, lake, now_us())
        except (DovetailError, OSError) as error:
            log.warning("%s was not purged: %s", journal.path, error)
            if isinstance(error, JournalError) and not error.retriable:
                return  # closed, or damaged: its server tells
        else:
            if purged:
                log.info("purged the bytes of %d expired messages from %s", purged, journal.path)


def purge_expired(journal: Journal, lake: Path, now_us: int) -> int:
    """Delete the bytes of messages that expired by `now_us` and are sealed; returns of how many."""
    manifest = latest_manifest(lake, journal.identity.server)
    if manifest is None:
        return 0
    sealed_end = manifest.end
    total = 0
    step = 0

    def purge(writer: JournalWriter) -> None:
        nonlocal step
        step = purge_step(writer, now_us=now_us, below_seq=sealed_end)

    while True:
        journal.call(purge)
        total += step
        if step == 0:
            return total
