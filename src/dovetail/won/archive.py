"""Where a core finds the bytes of messages it stored earlier."""

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
        """The bytes, or None if they are not, or no longer, kept."""


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
    """Keeps the newest messages and reads the others where `read` finds them, which is the journal."""

    def __init__(self, read: Callable[[Address], bytes | None], capacity: int) -> None:
        self._read = read
        self._capacity = capacity
        # A plain dict would have to step over all that was deleted at its front.
        self._recent: OrderedDict[Address, bytes] = OrderedDict()

    def put(self, address: Address, raw: bytes) -> None:
        """Keep the bytes until `capacity` newer ones came."""
        self._recent[address] = raw
        if len(self._recent) > self._capacity:
            self._recent.popitem(last=False)

    def raw(self, address: Address) -> bytes | None:
        """The bytes, from memory or the journal."""
        return self._recent.get(address) or self._read(address)
