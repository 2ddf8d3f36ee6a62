"""The swarm on UDP sockets: the transport of a peer's driver.

Everything that a socket holds, up to about `MAX_BATCH` datagrams, is fed in one turn; the output leaves once its
observations are journaled (`driver`). Datagrams are received and sent in as few system calls as possible
(`swarm_batches`). While the driver's inbox is over its limit nothing is read: the kernel's buffer fills, then UDP drops
datagrams, and the swarm repairs the loss. Datagrams created more than `MAX_HELD_US` ago are not sent: the swarm's
signature has rotated since.

Endpoints are numeric, `192.0.2.7:4711` or `[2001:db8::7]:4711`: host names from peers are never resolved.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Callable, Sequence
from typing import Final

from dovetail.model.errors import ConfigError
from dovetail.model.wire import Datagrams, Outgoing
from dovetail.runtime.clock import now_us
from dovetail.runtime.driver import Durability
from dovetail.runtime.listening import listening
from dovetail.runtime.loop import CallingJournal, come_to_rest, drive
from dovetail.runtime.swarm_batches import BatchReceiver, BatchSender, SocketAddress
from dovetail.swarm.events import Event
from dovetail.swarm.peer import Peer
from dovetail.swarm.peer_exchange import Endpoint

MAX_BATCH: Final = 512
MAX_DATAGRAM_BYTES: Final = 2_048
MAX_INBOX_BYTES: Final = 4 << 20
MAX_HELD_US: Final = 10_000_000
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
    """True if a peer can be at this endpoint: a port, and the address of one machine."""
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
        journal: CallingJournal | None,
        *,
        durability: Durability = "full",
        listener: Callable[[list[Event]], None] = lambda _: None,
    ) -> None:
        self.peer = peer
        self.dropped = 0
        """Datagrams that the kernel did not take."""
        self._journal = journal
        self._durability: Durability = durability
        self._listener = listener
        self._sockets: dict[int, socket.socket] = {}
        self._endpoints: dict[SocketAddress, Endpoint] = {}
        self._receivers: dict[int, BatchReceiver] = {}
        self._senders: dict[int, BatchSender] = {}
        self._addresses: dict[str, tuple[BatchSender, SocketAddress] | None] = {}
        self._is_reading = False
        self._is_stopping = False

    async def start(self, listen: Sequence[str]) -> list[Endpoint]:
        """Bind and start; returns the bound endpoints, with the assigned ports for 0."""
        self._loop = asyncio.get_running_loop()
        try:
            self._bind(listen)
        except BaseException:
            while self._sockets:
                self._sockets.popitem()[1].close()
            raise
        self.driver, self.failed = drive(
            self.peer,
            self._journal,
            self,
            durability=self._durability,
            on_events=self._listener,
            max_inbox_bytes=MAX_INBOX_BYTES,
        )
        self.set_reading(True)
        self.driver.wake()
        return [format_endpoint(each.getsockname()) for each in self._sockets.values()]

    def _bind(self, listen: Sequence[str]) -> None:
        for text in listen:
            host, port = parse_endpoint(text)
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            if family in self._sockets:
                raise ConfigError(f"listen {text!r}: one IPv4 and one IPv6 endpoint at most")
            opened = self._sockets[family] = _open_socket(family, host, port)
            self._receivers[family] = BatchReceiver(opened, MAX_DATAGRAM_BYTES)
            self._senders[family] = BatchSender(opened)

    async def stop(self) -> None:
        """Commit and send what arrived, then close; what the full journal cannot take is dropped. Idempotent."""
        self._is_stopping = True
        self.set_reading(False)
        if self._sockets:
            self.driver.drain()
            await come_to_rest(self.driver)
            self.driver.stop()
        for each in self._sockets.values():
            each.close()

    # -- called by the driver

    def send(self, outgoing: Sequence[Outgoing], made_at: int) -> None:
        """Send datagrams; those that are too old, or that the kernel does not take, are lost."""
        is_old = now_us() - made_at > MAX_HELD_US
        for item in outgoing:
            if isinstance(item, Datagrams):
                found = None if is_old else self._addresses.get(item.endpoint) or self._locate(item.endpoint)
                self.dropped += len(item.datagrams) if found is None else found[0].send(found[1], item.datagrams)

    def set_reading(self, wanted: bool) -> None:
        """Stop or resume reading from the sockets."""
        wanted = wanted and not self._is_stopping
        if wanted is self._is_reading:
            return
        self._is_reading = wanted
        for family, each in self._sockets.items():
            if wanted:
                self._loop.add_reader(each.fileno(), self._read, self._receivers[family])
            else:
                self._loop.remove_reader(each.fileno())

    # -- sockets

    def _read(self, receiver: BatchReceiver) -> None:
        endpoints = self._endpoints
        for address, datagrams in receiver.receive(MAX_BATCH):
            self.driver.receive_all(datagrams, endpoints.get(address) or self._name(address))

    def _name(self, address: SocketAddress) -> Endpoint:
        if len(self._endpoints) >= MAX_NAMES:
            self._endpoints.clear()
        endpoint = self._endpoints[address] = format_endpoint(address)
        return endpoint

    def _locate(self, endpoint: str) -> tuple[BatchSender, SocketAddress] | None:
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
