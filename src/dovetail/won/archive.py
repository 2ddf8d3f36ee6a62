"""Where a core reads the bytes of messages it stored earlier."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

from dovetail.model.address import Address


class Archive(Protocol):
    """Bytes by address."""

    def put(self, address: Address, raw: bytes) -> None:
        """Keep the bytes at least until the journal has them."""

    def raw(self, address: Address) -> bytes | None:
        """The bytes, or None if they were never stored or have been deleted."""


class MemoryArchive:
    """Keeps everything: for tests and simulated worlds."""

    def __init__(self) -> None:
        self._raw: dict[Address, bytes] = {}

    def put(self, address: Address, raw: bytes) -> None:
        """Keep the bytes."""
        self._raw[address] = raw

    def raw(self, address: Address) -> bytes | None:
        """The bytes, if they were put."""
        return self._raw.get(address)


class RecentArchive:
    """Keeps the newest messages in memory; reads older ones through `read`, which is the journal."""

    def __init__(self, read: Callable[[Address], bytes | None], capacity: int, capacity_bytes: int) -> None:
        self._read = read
        self._capacity = capacity
        self._capacity_bytes = capacity_bytes
        self._bytes = 0
        # A plain dict would have to skip the entries deleted at its front.
        self._recent: OrderedDict[Address, bytes] = OrderedDict()

    def put(self, address: Address, raw: bytes) -> None:
        """Keep the bytes until newer ones exceed the limit on messages or bytes."""
        self._bytes += len(raw) - len(self._recent.get(address, b""))
        self._recent[address] = raw
        while len(self._recent) > self._capacity or (self._bytes > self._capacity_bytes and len(self._recent) > 1):
            self._bytes -= len(self._recent.popitem(last=False)[1])

    def raw(self, address: Address) -> bytes | None:
        """The bytes, from memory or the journal."""
        return self._recent.get(address) or self._read(address)
