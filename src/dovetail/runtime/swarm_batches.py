"""Many datagrams in few system calls: to one receiver by UDP segmentation, from one sender by receive offload (Linux).

A datagram can carry only one message, since the payload extends to the end (UEP-12). But one call may carry many
datagrams: the kernel takes a buffer and a size and splits it into datagrams of that size, the last one being what is
left. So a run of datagrams of one size, and one smaller one after it, is sent by one call that costs little more than a
single datagram. The order is kept: messages come after what they refer to.

Receiving is the reverse: the kernel may return datagrams of one sender and size, with a smaller one at the end, as one
buffer with the size. This happens if the network card or the kernel has coalesced them, or if a sender on the same
machine sent them as a run.

If the kernel or the path to a receiver does not support it, datagrams are sent and received one by one, and that is
remembered.
"""

from __future__ import annotations

import errno
import logging
import socket
import struct
import sys
from collections.abc import Iterator, Sequence
from typing import Any, Final

SocketAddress = tuple[Any, ...]

UDP_SEGMENT: Final = 103
UDP_GRO: Final = 104
"""From linux/udp.h; the socket module does not define them."""
MAX_SEGMENTS: Final = 64
"""What every kernel with this option accepts at once."""
MAX_RUN_BYTES: Final = 65_000
"""Below the largest UDP payload, 65,507 bytes."""
MAX_PLAIN: Final = 1_024
"""How many receivers that cannot be reached by runs are remembered; then all are tried again."""

log = logging.getLogger("dovetail.swarm")

_FULL: Final = frozenset((errno.EAGAIN, errno.ENOBUFS))
_SIZE: Final = struct.Struct("=H")
_GATHERED_SIZE: Final = struct.Struct("=i")
_GATHERED_SPACE: Final = socket.CMSG_SPACE(_GATHERED_SIZE.size)
_MAX_GATHERED_BYTES: Final = 65_535


def split_runs(datagrams: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    """Split datagrams, in order, into runs that one call can carry: all of one size, except a smaller last one."""
    start, count = 0, len(datagrams)
    sizes = list(map(len, datagrams))
    while start < count:
        size = sizes[start]
        # an empty datagram cannot be part of a run
        limit = min(count, start + min(MAX_SEGMENTS, MAX_RUN_BYTES // size)) if size else start + 1
        end = limit
        if sizes[start:limit].count(size) < limit - start:
            end = next(place for place in range(start, limit) if sizes[place] != size)
            if 0 < sizes[end] < size:
                end += 1
        yield datagrams[start:end]
        start = end


class BatchSender:
    """Sends from one non-blocking socket."""

    def __init__(self, opened: socket.socket) -> None:
        self._socket = opened
        self._is_able = sys.platform == "linux"
        self._plain: set[SocketAddress] = set()

    def send(self, address: SocketAddress, datagrams: Sequence[bytes]) -> int:
        """Send to one receiver; returns how many the kernel did not take: UDP loss, which the swarm repairs."""
        if len(datagrams) == 1 or not self._is_able or address in self._plain:
            return self._send_each(address, datagrams)
        lost = 0
        for run in split_runs(datagrams):
            lost += self._send_each(address, run) if len(run) == 1 else self._send_run(address, run)
        return lost

    def _send_run(self, address: SocketAddress, run: Sequence[bytes]) -> int:
        ancillary = [(socket.IPPROTO_UDP, UDP_SEGMENT, _SIZE.pack(len(run[0])))]
        try:
            self._socket.sendmsg(run, ancillary, 0, address)
        except OSError as error:
            if error.errno in _FULL:
                return len(run)
            # an interface without checksums, a smaller MTU, an old kernel: sending one by one may still work
            if len(self._plain) >= MAX_PLAIN:
                self._plain.clear()
            self._plain.add(address)
            return self._send_each(address, run)
        return 0

    def _send_each(self, address: SocketAddress, datagrams: Sequence[bytes]) -> int:
        lost = 0
        send = self._socket.sendto
        for datagram in datagrams:
            try:
                send(datagram, address)
            except OSError:
                lost += 1
        return lost


class BatchReceiver:
    """Receives on one non-blocking socket; datagrams are truncated at `max_bytes`."""

    def __init__(self, opened: socket.socket, max_bytes: int) -> None:
        self._socket = opened
        self._max_bytes = max_bytes
        self._is_able = sys.platform == "linux" and _gathers(opened)

    def receive(self, at_most: int) -> list[tuple[SocketAddress, list[bytes]]]:
        """Read what the socket holds: senders in order with their datagrams, in order.

        Stops at `at_most` datagrams plus those that arrived together with the last of them.
        """
        receive = self._receive_gathered if self._is_able else self._receive_one
        runs: list[tuple[SocketAddress, list[bytes]]] = []
        sender: SocketAddress | None = None
        gathered: list[bytes] = []
        try:
            while at_most > 0:
                datagrams, address = receive()
                at_most -= len(datagrams)
                if address == sender:
                    gathered += datagrams
                else:
                    sender, gathered = address, datagrams
                    runs.append((address, datagrams))
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as error:
            log.debug("receiving failed: %s", error)
        return runs

    def _receive_one(self) -> tuple[list[bytes], SocketAddress]:
        data, address = self._socket.recvfrom(self._max_bytes)
        return [data], address

    def _receive_gathered(self) -> tuple[list[bytes], SocketAddress]:
        data, ancillary, _, address = self._socket.recvmsg(_MAX_GATHERED_BYTES, _GATHERED_SPACE)
        if ancillary:
            (size,) = _GATHERED_SIZE.unpack(ancillary[0][2])
            if 0 < size < len(data):
                cut = min(size, self._max_bytes)
                return [data[at : at + cut] for at in range(0, len(data), size)], address
        return [data[: self._max_bytes]], address


def _gathers(opened: socket.socket) -> bool:
    """Ask the kernel to return coalesced datagrams; True if it can."""
    try:
        opened.setsockopt(socket.IPPROTO_UDP, UDP_GRO, 1)
    except OSError:
        return False
    return True
