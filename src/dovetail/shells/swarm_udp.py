"""The swarm on UDP sockets: feeds the peer, journals what it saw, sends, and sets the timer again.

Theory of operation. Everything that a socket holds, up to `MAX_BATCH` datagrams, is one turn: it is fed to the core,
and what comes of it is kept as a turn until its observations are journaled; only then are the application told and
the datagrams sent. While a commit is under way, further turns gather and share the next one, so the disk's waiting
costs latency and not throughput. What goes to one receiver goes in as few system calls as can be
(`swarm_batches`). At `MAX_KEPT` turns the sockets are no longer read: the kernel's buffer fills, then
UDP loses, and the swarm repairs it. With `relaxed` durability there is no waiting, except when the journal's queue is
at its bound.

Endpoints are numeric, `192.0.2.7:4711` or `[2001:db8::7]:4711`: names that peers pass on are never looked up.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from dovetail.errors import ConfigError, JournalBusy, JournalError
from dovetail.hop import Observation
from dovetail.shells.swarm_batches import BatchSender, SocketAddress
from dovetail.swarm.events import Event
from dovetail.swarm.exchange import Endpoint
from dovetail.swarm.peer import Peer

MAX_BATCH: Final = 512
MAX_KEPT: Final = 8
MAX_DATAGRAM_BYTES: Final = 2_048
SOCKET_BUFFER_BYTES: Final = 4 << 20
MAX_NAMES: Final = 8_192
RETRY_S: Final = 0.2

Turn = tuple[list[Event], list[tuple[Endpoint, bytes]]]

log = logging.getLogger("dovetail.swarm")


class Journal(Protocol):
    """What the shell needs of a journal."""

    async def append_async(self, observations: Sequence[Observation]) -> int: ...

    def write(self, observations: Sequence[Observation]) -> None: ...


def now_us() -> int:
    """Microseconds since 1970 UTC."""
    return time.time_ns() // 1000


def format_endpoint(address: SocketAddress) -> Endpoint:
    """The text of a socket address."""
    host, port = address[0], address[1]
    return Endpoint(f"[{host.partition('%')[0]}]:{port}" if ":" in host else f"{host}:{port}")


def parse_endpoint(text: str) -> tuple[str, int]:
    """Host and port of a numeric endpoint; ConfigError says what is wrong."""
    host, _, port = text.rpartition(":")
    try:
        address = ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        raise ConfigError(f"endpoint {text[:80]!r}: expected a numeric address and a port") from None
    if not port.isascii() or not port.isdigit() or not 0 <= int(port) <= 65535:
        raise ConfigError(f"endpoint {text[:80]!r}: port must be 0 to 65535")
    return str(address), int(port)


def is_sendable(text: str) -> bool:
    """Whether a peer may live there: a port, and an address of one machine."""
    try:
        host, port = parse_endpoint(text)
    except ConfigError:
        return False
    address = ipaddress.ip_address(host)
    return port > 0 and not (address.is_multicast or address.is_unspecified or host == "255.255.255.255")


class SwarmUdp:
    """Drives one peer on one or more sockets. `start` it, and `stop` it when done."""

    def __init__(
        self,
        peer: Peer,
        journal: Journal | None,
        *,
        is_full: bool = True,
        listener: Callable[[list[Event]], None] | None = None,
    ) -> None:
        self.peer = peer
        self.dropped = 0
        """Datagrams that the kernel did not take."""
        self._journal = journal
        self._is_full = is_full
        self._listener = listener
        self._sockets: dict[int, socket.socket] = {}
        self._endpoints: dict[SocketAddress, Endpoint] = {}
        self._senders: dict[int, BatchSender] = {}
        self._addresses: dict[Endpoint, tuple[BatchSender, SocketAddress] | None] = {}
        self._kept: list[Turn] = []
        self._committing: asyncio.Task[None] | None = None
        self._is_reading = False
        self._is_stopping = False
        self._timer: asyncio.TimerHandle | None = None

    async def start(self, listen: Sequence[str]) -> list[Endpoint]:
        """Bind and begin; the endpoints that were bound, with the ports that 0 became."""
        self._loop = asyncio.get_running_loop()
        for text in listen:
            host, port = parse_endpoint(text)
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            if family in self._sockets:
                raise ConfigError(f"listen {text!r}: one IPv4 and one IPv6 endpoint at most")
            opened = self._sockets[family] = _open_socket(family, host, port)
            self._senders[family] = BatchSender(opened)
        self._read_on()
        self.turn()
        return [format_endpoint(each.getsockname()) for each in self._sockets.values()]

    async def stop(self) -> None:
        """Commit and send what is kept, then close. Safe to call twice."""
        if self._is_stopping:
            return
        self._read_off()
        if self._timer is not None:
            self._timer.cancel()
        self.turn()
        self._is_stopping = True
        if self._committing is not None:
            await self._committing
        if self._timer is not None:
            self._timer.cancel()
        for each in self._sockets.values():
            each.close()

    async def settle(self) -> None:
        """Wait until everything so far is journaled and sent."""
        while self._committing is not None:
            await asyncio.shield(self._committing)

    def turn(self) -> None:
        """Drain the core after it was fed: journal, tell, send, re-arm."""
        events, datagrams = self.peer.events(), self.peer.to_send()
        if events or datagrams:
            self._kept.append((events, datagrams))
            if self._committing is None:
                self._settle_turns()
            elif len(self._kept) >= MAX_KEPT:
                self._read_off()
        self._arm()

    # -- the turn's parts

    def _read(self, source: socket.socket) -> None:
        now = now_us()
        receive, peer, endpoints = source.recvfrom, self.peer, self._endpoints
        try:
            for _ in range(MAX_BATCH):
                data, address = receive(MAX_DATAGRAM_BYTES)
                peer.receive_datagram(data, endpoints.get(address) or self._name(address), now)
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as error:
            log.debug("receiving failed: %s", error)
        self.turn()

    def _settle_turns(self) -> None:
        """Finish the kept turns at once where nothing has to be waited for, else in a task."""
        if self._journal is None:
            self._finish()
            return
        if not self._is_full:
            try:
                self._journal.write(_observations(self._kept))
            except JournalBusy:
                log.warning("the journal's queue is full: the swarm waits for the disk")
            else:
                self._finish()
                return
        elif not any(events for events, _ in self._kept):
            self._finish()
            return
        self._committing = self._loop.create_task(self._commit(self._journal))

    async def _commit(self, journal: Journal) -> None:
        """Commit what is kept, again and again until nothing is left; a full disk holds everything back."""
        is_told = False
        try:
            while self._kept:
                turns, self._kept = self._kept, []
                observations = _observations(turns)
                while observations:
                    try:
                        await journal.append_async(observations)
                        break
                    except JournalError as error:
                        if not error.retriable or self._is_stopping:
                            raise
                        if not is_told:
                            log.warning("the journal cannot take hops now, the swarm waits: %s", error)
                            is_told = True
                        await asyncio.sleep(RETRY_S)
                self._let_go(turns)
                self._read_on()
        finally:
            self._committing = None

    def _finish(self) -> None:
        turns, self._kept = self._kept, []
        self._let_go(turns)

    def _let_go(self, turns: list[Turn]) -> None:
        """Tell the application and send: what was observed is in the journal now."""
        outgoing: defaultdict[Endpoint, list[bytes]] = defaultdict(list)
        for events, datagrams in turns:
            if self._listener is not None and events:
                self._listener(events)
            for endpoint, datagram in datagrams:
                outgoing[endpoint].append(datagram)
        for endpoint, waiting in outgoing.items():
            found = self._addresses.get(endpoint) or self._locate(endpoint)
            self.dropped += len(waiting) if found is None else found[0].send(found[1], waiting)

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        due = self.peer.next_timer()
        if due is not None and not self._is_stopping:
            self._timer = self._loop.call_later(max(0.001, (due - now_us()) / 1e6), self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self.peer.handle_timer(now_us())
        self.turn()

    # -- sockets

    def _read_on(self) -> None:
        if not self._is_reading and not self._is_stopping:
            self._is_reading = True
            for each in self._sockets.values():
                self._loop.add_reader(each.fileno(), self._read, each)

    def _read_off(self) -> None:
        if self._is_reading:
            self._is_reading = False
            for each in self._sockets.values():
                self._loop.remove_reader(each.fileno())

    def _name(self, address: SocketAddress) -> Endpoint:
        if len(self._endpoints) >= MAX_NAMES:
            self._endpoints.clear()
        endpoint = self._endpoints[address] = format_endpoint(address)
        return endpoint

    def _locate(self, endpoint: Endpoint) -> tuple[BatchSender, SocketAddress] | None:
        if len(self._addresses) >= MAX_NAMES:
            self._addresses.clear()
        found: tuple[BatchSender, SocketAddress] | None = None
        if is_sendable(endpoint):
            host, port = parse_endpoint(endpoint)
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            if family in self._senders:
                found = self._senders[family], (host, port)
        self._addresses[endpoint] = found
        return found


def _observations(turns: list[Turn]) -> list[Observation]:
    return [event for events, _ in turns for event in events if type(event) is Observation]


def _open_socket(family: int, host: str, port: int) -> socket.socket:
    opened = socket.socket(family, socket.SOCK_DGRAM)
    try:
        opened.setblocking(False)
        for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
            opened.setsockopt(socket.SOL_SOCKET, option, SOCKET_BUFFER_BYTES)
        if family == socket.AF_INET6:
            opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        opened.bind((host, port))
    except OSError as error:
        opened.close()
        raise ConfigError(f"cannot listen on {host} port {port}: {error.strerror}") from None
    return opened
