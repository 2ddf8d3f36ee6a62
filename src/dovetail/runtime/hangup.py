"""Holds SIGHUP, which asks a process to reload its configuration, until it can be handled, so it does not kill it."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

_HANGUP = {signal.SIGHUP}
_starting: list[None] = []


def hold_hangup() -> None:
    """Block SIGHUP until `release_hangup`; child processes started meanwhile inherit this."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _HANGUP)


def release_hangup() -> None:
    """Unblock SIGHUP once there is a handler or never will be: a pending one is delivered."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _HANGUP)


@contextmanager
def hangup_held() -> Iterator[None]:
    """Processes started in this block have SIGHUP blocked from the start; blocks may overlap."""
    _starting.append(None)
    hold_hangup()
    try:
        yield
    finally:
        _starting.pop()
        if not _starting:
            release_hangup()
