"""Who may change the lake: audits read it side by side, a compaction has it alone.

The lock is a `flock` on the directory of the manifests, so that nothing has to be written into a lake to read it, and
the end of a process frees it however it comes. Sealing needs no such lock: it only adds, and has one of its own.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from dovetail.lake.manifest import MANIFESTS
from dovetail.model.errors import PipelineError

_POLL_S = 0.1
_TELL_S = 0.5


@contextlib.contextmanager
def reading(lake: Path, waiting: Callable[[str], None] | None = None) -> Iterator[None]:
    """Keep compactions away; waits for one that is under way, and tells so, now and then, to `waiting`."""
    with _opened(lake) as lock:
        while not _is_taken(lock, fcntl.LOCK_SH):
            if waiting is not None:
                waiting("wait for a compaction to end")
            time.sleep(_TELL_S)
        yield


@contextlib.contextmanager
def changing(lake: Path, wait_s: float) -> Iterator[None]:
    """Have the lake alone; PipelineError if others still read it after `wait_s`."""
    deadline = time.monotonic() + wait_s
    with _opened(lake) as lock:
        while not _is_taken(lock, fcntl.LOCK_EX):
            if time.monotonic() >= deadline:
                raise PipelineError(
                    f"{lake} is in use by an audit or another compaction after {wait_s:g} s; "
                    "try again when it has ended, or wait longer (--wait)"
                )
            time.sleep(_POLL_S)
        yield


@contextlib.contextmanager
def _opened(lake: Path) -> Iterator[int]:
    lock = os.open(lake / MANIFESTS, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield lock
    finally:
        os.close(lock)


def _is_taken(lock: int, kind: int) -> bool:
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
