"""Warnings that strangers can cause: a limited number of lines per second, and one that counts the rest."""

from __future__ import annotations

import asyncio
import logging

MAX_LINES_PER_S = 20


class LimitedLog:
    """Warns through a logger; `what` is the subject of the lines, in the plural: `handshakes failed`."""

    def __init__(self, log: logging.Logger, what: str) -> None:
        self._log = log
        self._what = what
        self._count = 0

    def warning(self, text: str, *arguments: object) -> None:
        """Write the line, or count it."""
        self._count += 1
        if self._count == 1:
            asyncio.get_running_loop().call_later(1.0, self._sum_up)
        if self._count <= MAX_LINES_PER_S:
            self._log.warning(text, *arguments)

    def _sum_up(self) -> None:
        if self._count > MAX_LINES_PER_S:
            self._log.warning("%d more %s within a second", self._count - MAX_LINES_PER_S, self._what)
        self._count = 0
