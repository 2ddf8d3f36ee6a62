"""How fast one client may send: token buckets by name, and counts of who was slowed down."""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass, field

MAX_NAMED_CLIENTS = 1_000
MAX_GONE_CLIENTS = 10_000
OTHERS = "others"


@dataclass(slots=True)
class _Client:
    links: int = 0
    messages: float = 0.0
    bytes: float = 0.0
    at_s: float = 0.0


@dataclass(slots=True)
class Rates:
    """Messages and bytes per second that one client may send over all its links, with bursts of one second's worth."""

    messages_per_s: float
    bytes_per_s: float
    slowed: Counter[str] = field(default_factory=Counter)
    """How often a client was slowed down, by name, up to a maximum number of names."""
    _clients: dict[str, _Client] = field(default_factory=dict)
    _gone: OrderedDict[str, _Client] = field(default_factory=OrderedDict)
    """Those without links, the last to leave at the end: connecting again does not give them another burst."""

    def open(self, name: str, now_s: float) -> None:
        """A client opened a link."""
        client = self._clients.get(name)
        if client is None:
            new = _Client(0, self.messages_per_s, self.bytes_per_s, now_s)
            client = self._clients[name] = self._gone.pop(name, new)
        client.links += 1

    def close(self, name: str) -> None:
        """A client's link was closed."""
        client = self._clients[name]
        client.links -= 1
        if not client.links:
            self._gone[name] = self._clients.pop(name)
            if len(self._gone) > MAX_GONE_CLIENTS:
                self._gone.popitem(last=False)

    def owe(self, name: str, messages: float) -> None:
        """A message took the work of this many more: the next charge counts them."""
        client = self._clients.get(name)
        if client is not None:
            client.messages -= messages

    def charge(self, name: str, messages: int, size: int, now_s: float) -> float:
        """Charge a client for what it sent; returns for how many seconds it must not be read."""
        client = self._clients[name]
        passed_s = now_s - client.at_s
        client.at_s = now_s
        client.messages = min(self.messages_per_s, client.messages + passed_s * self.messages_per_s) - messages
        client.bytes = min(self.bytes_per_s, client.bytes + passed_s * self.bytes_per_s) - size
        pause_s = max(0.0, -client.messages / self.messages_per_s, -client.bytes / self.bytes_per_s)
        if pause_s:
            self.slowed[name if name in self.slowed or len(self.slowed) < MAX_NAMED_CLIENTS else OTHERS] += 1
        return pause_s
