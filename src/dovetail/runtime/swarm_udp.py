"""The swarm on UDP sockets: feeds the peer, journals what it saw, sends, and sets the timer again.

Theory of operation. Everything that a socket holds, up to about `MAX_BATCH` datagrams, is one turn: it is fed to the
core, and what comes of it is kept at the gate until its observations are journaled (`swarm_gate`); only then are the
application told and the datagrams sent. Datagrams come and go in as few system calls as can be (`swarm_batches`). While
the gate is crowded neither sockets nor the timer feed the core: the kernel's buffer fills, then UDP loses, and the
swarm repairs it. After a failure of the journal nothing is read or sent any more.

Endpoints are numeric, `192.0.2.7:4711` or `[2001:db8::7]:4711`: names that peers pass on are never looked up.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Final

from dovetail.model.errors import ConfigError
from dovetail.runtime.clock import now_us
from dovetail.runtime.listening import listening
from dovetail.runtime.swarm_batches import BatchReceiver, BatchSender, SocketAddress
from dovetail.runtime.swarm_gate import Journal, JournalGate, Turn
from dovetail.swarm.events import Event
from dovetail.swarm.peer import Peer
from dovetail.swarm.peer_exchange import Endpoint

MAX_BATCH: Final = 512
MAX_DATAGRAM_BYTES: Final = 2_048
SOCKET_BUFFER_BYTES: Final = 4 << 20
MAX_NAMES: Final = 8_192


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
        on_failure: Callable[[Exception], None] | None = None,
    ) -> None:
        self.peer = peer
        self.dropped = 0
        """Datagrams that the kernel did not take."""
        self.gate = JournalGate(journal, is_full=is_full, let_go=self._let_go, on_failure=self._fail)
        self._listener = listener
        self._on_failure = on_failure
        self._sockets: dict[int, socket.socket] = {}
        self._endpoints: dict[SocketAddress, Endpoint] = {}
        self._receivers: dict[int, BatchReceiver] = {}
        self._senders: dict[int, BatchSender] = {}
        self._addresses: dict[Endpoint, tuple[BatchSender, SocketAddress] | None] = {}
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
            self._receivers[family] = BatchReceiver(opened, MAX_DATAGRAM_BYTES)
            self._senders[family] = BatchSender(opened)
        self._read_on()
        self.turn()
        return [format_endpoint(each.getsockname()) for each in self._sockets.values()]

    async def stop(self) -> None:
        """Commit and send what is kept, then close; what the journal has no room for is dropped. Safe to call twice."""
        is_first, self._is_stopping = not self._is_stopping, True
        self._rest()
        if is_first:
            self.turn()
        await self.gate.close()
        for each in self._sockets.values():
            each.close()

    async def settle(self) -> None:
        """Wait until everything so far is journaled and sent; raises what stopped the journal for good."""
        await self.gate.settle()

    def turn(self) -> None:
        """Drain the core after it was fed: journal, tell, send, re-arm."""
        events = self.peer.events()
        datagrams = [(Endpoint(each.endpoint), data) for each in self.peer.to_send() for data in each.datagrams]
        if events or datagrams:
            self.gate.put(Turn(events, datagrams, self._loop.time()))
        if self.gate.is_crowded:
            self._rest()
        else:
            self._arm()

    # -- the turn's parts

    def _read(self, receiver: BatchReceiver) -> None:
        now = now_us()
        peer, endpoints = self.peer, self._endpoints
        for address, datagrams in receiver.receive(MAX_BATCH):
            peer.receive_datagrams(datagrams, endpoints.get(address) or self._name(address), now)
        self.turn()

    def _let_go(self, turns: list[Turn]) -> None:
        """Tell the application and send: what was observed is in the journal now."""
        outgoing: defaultdict[Endpoint, list[bytes]] = defaultdict(list)
        for turn in turns:
            if self._listener is not None and turn.events:
                self._listener(turn.events)
            for endpoint, datagram in turn.datagrams:
                outgoing[endpoint].append(datagram)
        for endpoint, waiting in outgoing.items():
            found = self._addresses.get(endpoint) or self._locate(endpoint)
            self.dropped += len(waiting) if found is None else found[0].send(found[1], waiting)
        if not self._is_reading and not self._is_stopping:
            self._read_on()
            self._arm()

    def _fail(self, error: Exception) -> None:
        """The journal has failed for good: whatever is seen from now on could not be journaled."""
        self._is_stopping = True
        self._rest()
        if self._on_failure is not None:
            self._on_failure(error)

    def _rest(self) -> None:
        """Feed the core nothing more."""
        self._read_off()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

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
            for family, each in self._sockets.items():
                self._loop.add_reader(each.fileno(), self._read, self._receivers[family])

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


def _open_socket(family: int, host: str, port: int) -> socket.socket:
    opened = socket.socket(family, socket.SOCK_DGRAM)
    try:
        opened.setblocking(False)
        for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
            opened.setsockopt(socket.SOL_SOCKET, option, SOCKET_BUFFER_BYTES)
        if family == socket.AF_INET6:
            opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        with listening("udp", host, port):
            opened.bind((host, port))
    except BaseException:
        opened.close()
        raise
    return opened
