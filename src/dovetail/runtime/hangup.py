"""SIGHUP, by which a process is asked to read its configuration again, waits until it can, and does not end it."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

_HANGUP = {signal.SIGHUP}
_starting: list[None] = []


def hold_hangup() -> None:
    """Let SIGHUP wait until `release_hangup`; processes that are started meanwhile hold it, too."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _HANGUP)


def release_hangup() -> None:
    """There is a handler now, or never will be: take what waited."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _HANGUP)


@contextmanager
def hangup_held() -> Iterator[None]:
    """Start a process here that holds SIGHUP from its first moment on; several may be started beside each other."""
    _starting.append(None)
    hold_hangup()
    try:
        yield
    finally:
        _starting.pop()
        if not _starting:
            release_hangup()
