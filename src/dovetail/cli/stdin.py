"""Input of commands from stdin, which the caller may have closed."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from dovetail.model.errors import DovetailError


def read_stdin(limit: int) -> bytes:
    """Read at most `limit` bytes; -1 reads everything."""
    _check()
    return sys.stdin.buffer.read(limit)


def stdin_lines(limit: int) -> Iterator[str]:
    """Lines without surrounding whitespace, none longer than `limit`."""
    _check()
    return (line.strip() for line in iter(lambda: sys.stdin.readline(limit), ""))


def _check() -> None:
    if sys.stdin is None:
        raise DovetailError("there is nothing to read: stdin is closed")
