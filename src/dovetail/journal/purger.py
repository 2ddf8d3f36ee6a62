"""Purging inside a server's process: deletes the bytes of expired and sealed messages from its journal.

A journal has one writer, the server, so this runs as a thread beside it and uses the writer between two commits. The
caller knows how far the journal is sealed.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from dovetail.journal.journal import Journal
from dovetail.journal.purge import purge_step
from dovetail.journal.writer import JournalWriter
from dovetail.model.errors import DovetailError, JournalError
from dovetail.model.fabric import Agreement

log = logging.getLogger("dovetail.purge")


def start_purging(
    journal: Journal,
    sealed_end: Callable[[], int],
    *,
    interval_s: float,
    now_us: Callable[[], int],
    agreement: Agreement | None = None,
    delay_us: int = 0,
) -> None:
    """Purge what expired `delay_us` ago, before `sealed_end()`, every `interval_s` until the journal is closed."""
    name = f"purge {journal.path.name}"
    arguments = (journal, sealed_end, interval_s, now_us, agreement, delay_us)
    threading.Thread(target=_purge_loop, args=arguments, name=name, daemon=True).start()


def _purge_loop(
    journal: Journal,
    sealed_end: Callable[[], int],
    interval_s: float,
    now_us: Callable[[], int],
    agreement: Agreement | None,
    delay_us: int,
) -> None:
    while not journal.wait_closing(interval_s):
        try:
            purged = purge_expired(journal, sealed_end(), now_us(), agreement, delay_us)
        except (DovetailError, OSError) as error:
            if journal.wait_closing(0):
                return
            log.warning("%s was not purged: %s", journal.path, error)
            if isinstance(error, JournalError) and not error.retriable:
                return  # damaged: its server reports that
        else:
            if purged:
                log.info("purged the bytes of %d expired messages from %s", purged, journal.path)


def purge_expired(
    journal: Journal, sealed_end: int, now_us: int, agreement: Agreement | None = None, delay_us: int = 0
) -> int:
    """Delete bytes that expired `delay_us` ago and are on hops before `sealed_end`; returns the number of messages."""
    total = 0
    step = 0

    def purge(writer: JournalWriter) -> None:
        nonlocal step
        step = purge_step(writer, now_us=now_us, below_seq=sealed_end, agreement=agreement, delay_us=delay_us)

    while True:
        journal.call(purge)
        total += step
        if step == 0:
            return total
