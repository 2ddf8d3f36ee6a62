"""Servers as separate processes: start, wait until ready, kill without warning, stop."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dovetail.model.errors import DovetailError

READY_S = 40.0
STOP_S = 20.0
_SOURCE = Path(__file__).resolve().parents[2]


class ServerProcess:
    """One `dovetail ...` process whose first line on stdout is JSON that says it is ready."""

    def __init__(self, name: str, arguments: Sequence[object], log: Path) -> None:
        self.name = name
        self._arguments = [str(argument) for argument in arguments]
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def is_running(self) -> bool:
        """True if the process is running."""
        return self._process is not None and self._process.poll() is None

    async def start(self, *, says_ready: bool = True) -> dict[str, Any]:
        """Launch it, and wait for its first line; DovetailError says why there is none."""
        self._launch()
        if not says_ready:
            return {}
        return await self._hear_ready()

    def _launch(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - our own program with our own arguments
                [sys.executable, "-m", "dovetail", "--log-level", "warning", *self._arguments],
                stdout=subprocess.PIPE,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env=os.environ | {"PYTHONPATH": str(_SOURCE)},
                start_new_session=True,  # the demo handles Ctrl-C, not the servers
            )

    async def _hear_ready(self) -> dict[str, Any]:
        assert self._process is not None
        assert self._process.stdout is not None
        try:
            async with asyncio.timeout(READY_S):
                line = await asyncio.to_thread(self._process.stdout.readline)
        except TimeoutError:
            self.kill()
            raise DovetailError(f"{self.name} was not ready within {READY_S:.0f} s") from None
        if not line:
            self._reap()
            raise DovetailError(f"{self.name} did not start: {self._last_words()}")
        ready: dict[str, Any] = json.loads(line)
        return ready

    def kill(self) -> None:
        """SIGKILL: no warning, no cleanup."""
        if self.is_running:
            assert self._process is not None
            self._process.kill()
        self._reap()

    async def stop(self) -> None:
        """SIGTERM, then SIGKILL if that does not help."""
        if not self.is_running:
            self._reap()
            return
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(STOP_S):
                await asyncio.to_thread(self._process.wait)
        except TimeoutError:
            self.kill()
            raise DovetailError(f"{self.name} did not stop within {STOP_S:.0f} s") from None
        self._reap()

    def _reap(self) -> None:
        if self._process is not None:
            self._process.wait()
            if self._process.stdout is not None:
                self._process.stdout.close()

    def _last_words(self) -> str:
        with contextlib.suppress(OSError):
            lines = self._log.read_text(errors="replace").strip().splitlines()
            if lines:
                return lines[-1]
        return "it printed nothing"
