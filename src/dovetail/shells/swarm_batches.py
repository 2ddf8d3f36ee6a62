"""Datagrams to one receiver in few system calls, by UDP segmentation (Linux 4.18 and later).

One message cannot share a datagram with another, since its payload reaches to the end (UEP-12). But one call may carry
many datagrams: the kernel takes a buffer and a size and cuts it into datagrams of that size, the last one being what is
left. So a run of datagrams of one size, and one smaller one after it, go out by one call that costs little more than
a single datagram does. The order is kept: messages come after what they refer to.

Where the kernel or the way to a receiver cannot do it, datagrams go one by one, and that is remembered.
"""

from __future__ import annotations

import errno
import socket
import struct
import sys
from collections.abc import Iterator, Sequence
from typing import Any, Final

SocketAddress = tuple[Any, ...]

UDP_SEGMENT: Final = 103
"""From linux/udp.h; the socket module has no name for it."""
MAX_SEGMENTS: Final = 64
"""What every kernel that has the option takes at once."""
MAX_RUN_BYTES: Final = 65_000
"""Below the largest UDP payload, 65,507 bytes."""
MAX_PLAIN: Final = 1_024
"""Receivers remembered that cannot be reached by runs; then all are tried again."""

_FULL: Final = frozenset((errno.EAGAIN, errno.ENOBUFS))
_SIZE: Final = struct.Struct("=H")


def split_runs(datagrams: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    """The datagrams in order, in runs that one call can carry: all of one size, but a last one that may be smaller."""
    start, count = 0, len(datagrams)
    while start < count:
        size = len(datagrams[start])
        # an empty datagram cannot be a part of a run
        limit = min(count, start + min(MAX_SEGMENTS, MAX_RUN_BYTES // size)) if size else start + 1
        end = start + 1
        while end < limit and len(datagrams[end]) == size:
            end += 1
        if end < limit and 0 < len(datagrams[end]) < size:
            end += 1
        yield datagrams[start:end]
        start = end


class BatchSender:
    """Sends from one socket that does not block."""

    def __init__(self, opened: socket.socket) -> None:
        self._socket = opened
        self._is_able = sys.platform == "linux"
        self._plain: set[SocketAddress] = set()

    def send(self, address: SocketAddress, datagrams: Sequence[bytes]) -> int:
        """Send to one receiver; how many the kernel did not take: for UDP that is loss, and the swarm repairs it."""
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
            # an interface without checksums, a smaller MTU, an old kernel: whatever it is, one by one may do
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
