"""What Java and Spark say on stderr while they start, which tells a user of the audit nothing, is left out.

Java inherits a pipe as its stderr, and a thread passes on all lines but those. Settings of the logging could not do it:
the first lines come from Java itself, and from Spark before it has read any settings.
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
def without_chatter() -> Iterator[None]:
    """Processes that are started in here have a stderr without chatter, for as long as they live."""
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
    """Ctrl-C stays ours, and waits until Java has started; a second one does not wait.

    The handler of Spark calls Java inside a call, and the bridge tells of it in many lines. And a Java that is left
    while it starts never ends: it watches for our end only later.
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
    """False for what the bridge to Java logs as nobody; it raises the same as an error."""
    return "py4j" not in record.pathname


def _pass_on(source: int, target: int) -> None:
    """Copy lines until nobody can write them any more."""
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
