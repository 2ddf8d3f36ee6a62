"""Removes the start-up messages of Java and Spark from stderr, which mean nothing to a user of the audit.

Java inherits a pipe as its stderr, and a thread forwards all other lines. Logging settings could not do it: the first
lines come from Java itself, and from Spark before it has read any settings.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import signal
import threading
from collections.abc import Iterator
from types import FrameType

_CHATTER = re.compile(
    rb"WARNING: Using incubator modules|Using Spark's default log4j|Setting (default|Spark) log level|"
    rb"To adjust logging level|\d\d/\d\d/\d\d \d\d:\d\d:\d\d (INFO|WARN) "
)
_STDERR = 2


@contextlib.contextmanager
def filtered_stderr() -> Iterator[None]:
    """Processes started in this block have a filtered stderr, for their whole life."""
    try:
        own = os.dup(_STDERR)
    except OSError:  # there is no stderr
        yield
        return
    reading, writing = os.pipe()
    os.dup2(writing, _STDERR)
    os.close(writing)
    threading.Thread(target=_pass_on, args=(reading, os.dup(own)), daemon=True).start()
    try:
        yield
    finally:
        os.dup2(own, _STDERR)
        os.close(own)


@contextlib.contextmanager
def own_interrupt() -> Iterator[None]:
    """Keep Ctrl-C in this process, and defer it until Java has started; a second one is not deferred.

    Spark's handler calls Java inside a call, and the bridge reports that in many lines. And a Java abandoned during
    start-up never ends: it watches for our end only later.
    """
    logging.getLogger().addFilter(_is_not_of_bridge)
    logging.getLogger("py4j").setLevel(logging.CRITICAL + 1)
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    pressed = False

    def hold(_number: int, _frame: FrameType | None) -> None:
        nonlocal pressed
        pressed = True
        signal.signal(signal.SIGINT, handler)

    signal.signal(signal.SIGINT, hold)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
    if pressed:
        signal.raise_signal(signal.SIGINT)


def _is_not_of_bridge(record: logging.LogRecord) -> bool:
    """False for what the bridge to Java logs to the root logger; it raises the same as an error."""
    return "py4j" not in record.pathname


def _pass_on(source: int, target: int) -> None:
    """Copy lines until all writers have closed the pipe."""
    with open(source, "rb", buffering=0) as lines, contextlib.suppress(OSError):
        rest = b""
        while piece := lines.read(1 << 16):
            *whole, rest = (rest + piece).split(b"\n")
            for line in whole:
                if not _CHATTER.match(line):
                    os.write(target, line + b"\n")
        if rest:
            os.write(target, rest)
    os.close(target)
