"""Accepts connections so that strangers cannot use more than their share.

A connection is in its handshake from `accept` until it is a link or answered: TLS, then the HTTP request. Each
handshake has a time limit, and their number is limited: over the limit, the oldest of the address that has most of them
is dropped once it is a second old, since an honest one finishes quickly. A waiting connection is cheap. TLS work, which
costs memory and time, starts only when the peer has sent its hello, with its own limits on rate and number. Addresses
take turns in it: one address that sends thousands of hellos only delays itself. All of an IPv6 /64 counts as one
address, since one host may have them all. Connections that cannot be accepted stay in the kernel's queue. A failed
handshake is one line in the log; over 20 per second they are summed up.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import logging
import socket
import ssl
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

from dovetail.runtime.limited_log import LimitedLog
from dovetail.runtime.listening import listening
from dovetail.runtime.tls import describe_failure

BACKLOG = 4_096
ACCEPTS_PER_TURN = 64
BURST_S = 0.03
"""How much of the rate one turn of the loop may use: each handshake takes a millisecond, in which all others wait."""
NO_FILES_S = 1.0
KINDS = ("tls", "closed", "timeout", "dropped")

log = logging.getLogger("dovetail.websocket")


@dataclass(frozen=True, slots=True, kw_only=True)
class HandshakeLimits:
    """Limits on handshakes: `at_once` of all kinds, and of those in TLS. The oldest may be dropped after `grace_s`."""

    timeout_s: float = 10.0
    at_once: int = 4_000
    grace_s: float = 1.0
    tls_at_once: int = 500
    tls_per_s: float = 300.0


class Acceptor:
    """Listening sockets. `greet` does the handshake on an accepted socket; it closes it on failure or cancellation."""

    def __init__(
        self,
        greet: Callable[[socket.socket, str, Acceptor], Awaitable[None]],
        limits: HandshakeLimits,
    ) -> None:
        self._greet = greet
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._sockets: list[socket.socket] = []
        self._handshakes: dict[asyncio.Task[None], tuple[float, str]] = {}
        self._by_host: dict[str, dict[asyncio.Task[None], None]] = {}
        self._hosts_by_count: dict[
            int, dict[str, None]
        ] = {}  # finds the host with most of them, however many there are
        self._tls: dict[asyncio.Task[None], float] = {}
        self._is_accepting = False
        self._last_turn = 0.0
        self._turns: dict[str, deque[asyncio.Future[None]]] = {}  # waiting for the rate limit; the first host is next
        self._granting: asyncio.TimerHandle | None = None
        self._log = LimitedLog(log, "handshakes failed")
        self.port = 0
        self.failures = Counter(dict.fromkeys(KINDS, 0))

    @property
    def handshake_count(self) -> int:
        """How many connections are in their handshake."""
        return len(self._handshakes)

    async def start(self, host: str, port: int) -> None:
        """Listen on every address of `host`; raises ResourceBusy with a hint."""
        with listening("tcp", host, port):
            found = await self._loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            for family, address in dict.fromkeys((family, address) for family, _, _, _, address in found):
                try:
                    self._sockets.append(socket.create_server(address, family=family, backlog=BACKLOG))
                except OSError as error:
                    if error.errno != errno.EADDRNOTAVAIL:
                        self.close()
                        raise
                    unavailable = error
            if not self._sockets:
                raise unavailable
        self.port = self._sockets[0].getsockname()[1]
        for listener in self._sockets:
            listener.setblocking(False)
        self._set_accepting(True)

    def close(self) -> None:
        """Accept no more connections and drop those in their handshake; links stay open."""
        self._set_accepting(False)
        for listener in self._sockets:
            listener.close()
        self._sockets = []
        for task in tuple(self._handshakes):
            task.cancel()

    async def take_turn(self, host: str) -> None:
        """Wait until the rate allows one more TLS handshake; `greet` calls this before starting one."""
        now = self._loop.time()
        if not self._turns and self._turn_at(now) <= now:
            self._last_turn = self._turn_at(now)
        else:
            turn = self._loop.create_future()
            self._turns.setdefault(host, deque()).append(turn)
            self._plan_turn(now)
            await turn
        if len(self._tls) >= self._limits.tls_at_once:
            self._drop_oldest(self._tls)
        task = asyncio.current_task()
        assert task is not None
        self._tls[task] = self._loop.time()

    def _turn_at(self, now: float) -> float:
        """When the next TLS handshake may start; allows a small burst."""
        pause_s = 1 / self._limits.tls_per_s
        return max(self._last_turn, now - max(BURST_S, pause_s)) + pause_s

    def _plan_turn(self, now: float) -> None:
        if self._granting is None and self._turns:
            self._granting = self._loop.call_later(max(0.0, self._turn_at(now) - now), self._grant_turns)

    def _grant_turns(self) -> None:
        """Admit as many waiting handshakes as the rate allows, round-robin by host."""
        self._granting = None
        now = self._loop.time()
        while self._turns and self._turn_at(now) <= now:
            host = next(iter(self._turns))
            waiting = self._turns.pop(host)
            turn = waiting.popleft()
            if waiting:
                self._turns[host] = waiting  # after the others
            if not turn.done():
                turn.set_result(None)
                self._last_turn = self._turn_at(now)
        self._plan_turn(now)

    def _set_accepting(self, wanted: bool) -> None:
        if wanted is self._is_accepting:
            return
        self._is_accepting = wanted
        for listener in self._sockets:
            if wanted:
                self._loop.add_reader(listener, self._accept, listener)
            else:
                self._loop.remove_reader(listener)

    def _pause(self, delay_s: float) -> None:
        self._set_accepting(False)
        self._loop.call_later(delay_s, self._set_accepting, True)

    def _accept(self, listener: socket.socket) -> None:
        now = self._loop.time()
        for _ in range(ACCEPTS_PER_TURN):
            is_full = len(self._handshakes) >= self._limits.at_once
            if is_full:
                grace_s = next(iter(self._handshakes.values()))[0] + self._limits.grace_s - now
                if grace_s > 0:
                    self._pause(grace_s)
                    return
            try:
                accepted, address = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                log.error("no connection can be accepted for %.0f s: %s", NO_FILES_S, error)
                self._pause(NO_FILES_S)
                return
            accepted.setblocking(False)
            if is_full:
                self._make_room()
            host = host_of(address)
            task = self._loop.create_task(self._shake_hands(accepted, address, host))
            self._remember(task, host, now)
            task.add_done_callback(partial(self._finish, accepted, address))

    def _finish(self, accepted: socket.socket, address: Any, task: asyncio.Task[None]) -> None:
        self._forget(task)
        self._set_accepting(True)
        if task.cancelled():  # before it started
            accepted.close()
            self._drop(address)

    async def _shake_hands(self, accepted: socket.socket, address: Any, host: str) -> None:
        try:
            async with asyncio.timeout(self._limits.timeout_s):
                await self._greet(accepted, host, self)
        except TimeoutError:
            self._fail(address, "timeout", f"no handshake within {self._limits.timeout_s:g} s")
        except asyncio.CancelledError:
            self._drop(address)
        except OSError as error:
            error.__traceback__ = None  # otherwise its frames and the transport keep each other alive
            self._fail(address, "tls" if isinstance(error, ssl.SSLError) else "closed", describe_failure(error))

    def _drop_oldest(self, handshakes: Iterable[asyncio.Task[None]]) -> None:
        oldest = next(iter(handshakes))
        self._forget(oldest)
        oldest.cancel()

    def _make_room(self) -> None:
        """Drop the oldest handshake of the host that has most of them."""
        host = next(iter(self._hosts_by_count[max(self._hosts_by_count)]))
        self._drop_oldest(self._by_host[host])

    def _remember(self, task: asyncio.Task[None], host: str, now: float) -> None:
        self._handshakes[task] = now, host
        tasks = self._by_host.setdefault(host, {})
        tasks[task] = None
        self._recount(host, len(tasks) - 1, len(tasks))

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._tls.pop(task, None)
        if task in self._handshakes:
            _, host = self._handshakes.pop(task)
            tasks = self._by_host[host]
            del tasks[task]
            self._recount(host, len(tasks) + 1, len(tasks))
            if not tasks:
                del self._by_host[host]

    def _recount(self, host: str, before: int, after: int) -> None:
        if before:
            del self._hosts_by_count[before][host]
            if not self._hosts_by_count[before]:
                del self._hosts_by_count[before]
        if after:
            self._hosts_by_count.setdefault(after, {})[host] = None

    def _drop(self, address: Any) -> None:
        if self._sockets:
            self._fail(address, "dropped", "too many handshakes at once")

    def _fail(self, address: Any, kind: str, detail: str) -> None:
        self.failures[kind] += 1
        self._log.warning("handshake failed peer=%s: %s", format_address(address), detail)


def format_address(address: Any) -> str:
    """Host and port of a socket's address."""
    if not isinstance(address, tuple):
        return "unknown"
    host, port = address[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def host_of(address: Any) -> str:
    """Whose connection it is, for limits: the host of a socket's address; for IPv6 the /64 that a host may have."""
    if not isinstance(address, tuple):
        return "unknown"
    host = str(address[0]).partition("%")[0]
    if ":" not in host:
        return host
    ip = ipaddress.IPv6Address(host)
    return str(ip.ipv4_mapped or ipaddress.IPv6Network((int(ip) >> 64 << 64, 64)))
