"""How many messages a peer holds: bounded in number and bytes, and shared fairly among the sources they came from.

Nothing unexpired is dropped, so a message that does not fit is refused instead, before it is accepted or relayed; later
questions find it again. A source may hold as much as is still free (dynamic thresholds, as switches share their
buffers): one source alone takes at most half of the room, n of them together n/(n+1), or, if each comes when the last
has taken all it can, half of the rest each. All endpoints that have not proved their address are one source, so spoofed
addresses gain nothing by being many. What this peer composes, or restores from its journal, is counted and never
refused.
"""

from __future__ import annotations

from typing import Final

from dovetail.swarm.peer_exchange import Endpoint

OVERHEAD_BYTES: Final = 1_024
"""Counted for each message besides its bytes: what its entry, indexes and references take."""
DEFAULT_MESSAGES: Final = 500_000
DEFAULT_BYTES: Final = 1 << 29
OWN: Final = Endpoint("")
"""The source of what this peer composed or restored."""


class Room:
    """The room for messages, and what each source holds of it."""

    __slots__ = ("_max_bytes", "_max_messages", "_shares", "bytes", "messages")

    def __init__(self, max_messages: int = DEFAULT_MESSAGES, max_bytes: int = DEFAULT_BYTES) -> None:
        self._max_messages = max_messages
        self._max_bytes = max_bytes
        self._shares: dict[Endpoint, list[int]] = {}
        """Messages and bytes of each source."""
        self.messages = 0
        self.bytes = 0

    def admits(self, source: Endpoint, size: int) -> bool:
        """Whether a source may add a message of this size."""
        messages, held_bytes = self._shares.get(source, (0, 0))
        return (
            messages < self._max_messages - self.messages
            and held_bytes + size + OVERHEAD_BYTES <= self._max_bytes - self.bytes
        )

    def take(self, source: Endpoint, size: int) -> None:
        """Count a message."""
        size += OVERHEAD_BYTES
        share = self._shares.get(source)
        if share is None:
            share = self._shares[source] = [0, 0]
        share[0] += 1
        share[1] += size
        self.messages += 1
        self.bytes += size

    def release(self, source: Endpoint, size: int) -> None:
        """A message has expired."""
        size += OVERHEAD_BYTES
        share = self._shares[source]
        share[0] -= 1
        share[1] -= size
        if not share[0]:
            del self._shares[source]
        self.messages -= 1
        self.bytes -= size
