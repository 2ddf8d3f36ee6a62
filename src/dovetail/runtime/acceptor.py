"""Accepting connections so that strangers cannot take more than their share.

A connection is in its handshake from `accept` until it is a link or answered: TLS, then the HTTP request. Handshakes
have a time limit, a limit at once and a limit per second. Over the first, the connection is dropped; over the second,
the oldest handshake gives way, since an honest one is done within a moment; over the third, connections wait in the
kernel's queue. Every handshake that fails is one line in the log.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from dovetail.runtime.listening import listening
from dovetail.runtime.tls import describe_failure

BACKLOG = 4_096
ACCEPTS_PER_TURN = 64
NO_FILES_S = 1.0
KINDS = ("tls", "closed", "timeout", "dropped")

log = logging.getLogger("dovetail.websocket")


@dataclass(frozen=True, slots=True, kw_only=True)
class HandshakeLimits:
    """How many strangers are dealt with; `per_s` of them may come at once."""

    timeout_s: float = 10.0
    at_once: int = 1_000
    per_s: int = 1_000


class Acceptor:
    """Listening sockets. `greet` shakes hands over an accepted socket, which it closes if it fails or is cancelled."""

    def __init__(
        self,
        greet: Callable[[socket.socket], Awaitable[None]],
        limits: HandshakeLimits,
    ) -> None:
        self._greet = greet
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._sockets: list[socket.socket] = []
        self._handshakes: dict[asyncio.Task[None], None] = {}
        self._tokens = float(limits.per_s)
        self._counted_at = self._loop.time()
        self._waiting: asyncio.TimerHandle | None = None
        self.port = 0
        self.failures = Counter(dict.fromkeys(KINDS, 0))

    @property
    def handshake_count(self) -> int:
        """How many connections are in their handshake."""
        return len(self._handshakes)

    async def start(self, host: str, port: int) -> None:
        """Listen on every address of `host`; raises ResourceBusy with what to do."""
        with listening("tcp", host, port):
            found = await self._loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            for family, address in dict.fromkeys((family, address) for family, _, _, _, address in found):
                try:
                    self._sockets.append(socket.create_server(address, family=family, backlog=BACKLOG))
                except OSError as error:
                    if error.errno != errno.EADDRNOTAVAIL or len(found) == 1:
                        self.close()
                        raise
        self.port = self._sockets[0].getsockname()[1]
        for listener in self._sockets:
            listener.setblocking(False)
        self._resume()

    def close(self) -> None:
        """Take no more connections and drop those in their handshake; links stay."""
        self._pause(None)
        for listener in self._sockets:
            listener.close()
        self._sockets = []
        for task in tuple(self._handshakes):
            task.cancel()

    def _resume(self) -> None:
        self._waiting = None
        for listener in self._sockets:
            self._loop.add_reader(listener, self._accept, listener)

    def _pause(self, delay_s: float | None) -> None:
        for listener in self._sockets:
            self._loop.remove_reader(listener)
        if self._waiting is not None:
            self._waiting.cancel()
        self._waiting = None if delay_s is None else self._loop.call_later(delay_s, self._resume)

    def _accept(self, listener: socket.socket) -> None:
        per_s, now = self._limits.per_s, self._loop.time()
        self._tokens = min(float(per_s), self._tokens + (now - self._counted_at) * per_s)
        self._counted_at = now
        for _ in range(ACCEPTS_PER_TURN):
            if self._tokens < 1:
                self._pause(ACCEPTS_PER_TURN / per_s)
                return
            try:
                accepted, address = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                log.error("no connection can be accepted for %.0f s: %s", NO_FILES_S, error)
                self._pause(NO_FILES_S)
                return
            self._tokens -= 1
            accepted.setblocking(False)
            if len(self._handshakes) >= self._limits.at_once:
                oldest = next(iter(self._handshakes))
                del self._handshakes[oldest]
                oldest.cancel()
            task = self._loop.create_task(self._shake_hands(accepted, address))
            self._handshakes[task] = None
            task.add_done_callback(partial(self._finish, accepted))

    def _finish(self, accepted: socket.socket, task: asyncio.Task[None]) -> None:
        self._handshakes.pop(task, None)
        if task.cancelled():
            accepted.close()  # it had not begun

    async def _shake_hands(self, accepted: socket.socket, address: Any) -> None:
        try:
            async with asyncio.timeout(self._limits.timeout_s):
                await self._greet(accepted)
        except TimeoutError:
            self._fail(address, "timeout", f"no handshake within {self._limits.timeout_s:g} s")
        except asyncio.CancelledError:
            if self._sockets:
                self._fail(address, "dropped", f"more than {self._limits.at_once} handshakes at once")
        except ssl.SSLError as error:
            self._fail(address, "tls", describe_failure(error))
        except OSError as error:
            self._fail(address, "closed", describe_failure(error))

    def _fail(self, address: Any, kind: str, detail: str) -> None:
        log.warning("handshake failed peer=%s: %s", format_address(address), detail)
        self.failures[kind] += 1


def format_address(address: Any) -> str:
    """Host and port of a socket's address."""
    if not isinstance(address, tuple):
        return "unknown"
    host, port = address[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
