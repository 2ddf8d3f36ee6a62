"""The network between named processes: latency, loss, duplication, reordering and partitions.

Each direction of each pair has its own random stream, created on first use. Datagrams of one direction keep their order
unless the link reorders: then the chosen ones are delayed and later ones overtake them. A partition drops what is sent
while it lasts; what was already in flight arrives. Links (`links.py`) draw their delays here too.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from heapq import heappush

import msgspec

from dovetail.model.errors import LocalProtocolError
from dovetail.sim.randomness import Randomness
from dovetail.sim.timeline import Timeline

MAX_DATAGRAM_BYTES = 65_507
"""The largest UDP payload over IPv4."""
RETRANSMIT_US = 200_000
"""How long a stream waits before it retransmits a lost segment; doubled each time."""
_MAX_RETRANSMITS = 6

Deliver = Callable[[bytes, str], None]


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """How one direction between two processes behaves; probabilities are per datagram."""

    latency_us: tuple[int, int] = (20_000, 80_000)
    loss: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    reorder_us: int = 200_000

    def __post_init__(self) -> None:
        low, high = self.latency_us
        if not 0 <= low <= high:
            raise ValueError(f"latency from {low} to {high} us, expected 0 <= low <= high")
        if self.reorder_us < 0:
            raise ValueError(f"reordered by {self.reorder_us} us, expected 0 or more")
        for name, chance in (("loss", self.loss), ("duplicate", self.duplicate), ("reorder", self.reorder)):
            if not 0.0 <= chance <= 1.0:
                raise ValueError(f"{name} is {chance}, expected 0 to 1")


class Path:
    """One direction of a pair: the parameters of its link, unpacked for the hot loop, and its random stream."""

    __slots__ = ("deliver", "duplicate", "last_us", "loss", "low_us", "random", "reorder", "reorder_us", "span_us")

    def __init__(self, deliver: Deliver, chance: random.Random, link: Link) -> None:
        self.deliver = deliver
        self.random = chance.random
        self.last_us = 0
        self.use(link)

    def use(self, link: Link) -> None:
        """Behave like this link from now on."""
        self.low_us, high_us = link.latency_us
        self.span_us = high_us - self.low_us + 1
        self.loss = link.loss
        self.duplicate = link.duplicate
        self.reorder = link.reorder
        self.reorder_us = link.reorder_us

    def draw_latency(self) -> int:
        """The delay of one datagram."""
        return self.low_us + int(self.random() * self.span_us)

    def draw_stream_latency(self) -> int:
        """The delay of one frame: a stream retransmits what is lost, so loss becomes delay."""
        latency = self.draw_latency()
        wait = RETRANSMIT_US
        for _ in range(_MAX_RETRANSMITS):
            if not self.loss or self.random() >= self.loss:
                break
            latency += wait
            wait *= 2
        return latency


class NetworkCounts(msgspec.Struct):
    """Counts of datagrams by outcome."""

    sent: int = 0
    sent_bytes: int = 0
    lost: int = 0
    cut: int = 0
    duplicated: int = 0
    reordered: int = 0
    unroutable: int = 0


class Network:
    """All paths, their links, and the active partitions."""

    def __init__(self, timeline: Timeline, randomness: Randomness, link: Link) -> None:
        self.counts = NetworkCounts()
        self._timeline = timeline
        self._randomness = randomness
        self._default = link
        self._overrides: dict[tuple[str, str], Link] = {}
        self._weathers: dict[int, Link] = {}
        self._weather_count = 0
        self._delivers: dict[str, Deliver] = {}
        self._paths: dict[str, dict[str, Path]] = {}
        self._partitions: dict[int, dict[str, int]] = {}
        self._partition_count = 0

    def attach(self, name: str, deliver: Deliver) -> None:
        """Make a process reachable by its name."""
        self._delivers[name] = deliver
        self._paths[name] = {}

    def set_link(self, source: str, destination: str, link: Link) -> None:
        """Override one direction of one pair."""
        self._overrides[source, destination] = link
        self._refresh()

    def add_weather(self, link: Link) -> int:
        """Make all links, overridden ones included, behave like this one; the number is for `end_weather`."""
        self._weather_count += 1
        self._weathers[self._weather_count] = link
        self._refresh()
        return self._weather_count

    def end_weather(self, number: int) -> None:
        """End this weather; of several, the one that began last applies."""
        self._weathers.pop(number, None)
        self._refresh()

    def partition(self, groups: Sequence[Sequence[str]]) -> int:
        """Cut the groups from each other, and from the processes in no group; the number is for `heal`."""
        group_of: dict[str, int] = {}
        for number, group in enumerate(groups):
            for name in group:
                if name not in self._delivers:
                    raise LocalProtocolError(f"partition names {name!r}, which is not in this world")
                group_of[name] = number
        self._partition_count += 1
        self._partitions[self._partition_count] = group_of
        return self._partition_count

    def heal(self, number: int | None = None) -> None:
        """End one partition, or all of them."""
        if number is None:
            self._partitions.clear()
        else:
            self._partitions.pop(number, None)

    def is_cut(self, source: str, destination: str) -> bool:
        """True if a partition separates the two."""
        return any(group_of.get(source, -1) != group_of.get(destination, -1) for group_of in self._partitions.values())

    def path(self, source: str, destination: str) -> Path | None:
        """The path from one process to another; None if there is no such process."""
        found = self._paths[source].get(destination)
        if found is None and destination in self._delivers:
            chance = self._randomness.stream(f"link\0{source}\0{destination}")
            found = Path(self._delivers[destination], chance, self._link(source, destination))
            self._paths[source][destination] = found
        return found

    def send_datagram(self, source: str, destination: str, data: bytes) -> None:
        """Send one datagram, or lose it."""
        path = self._paths[source].get(destination) or self.path(source, destination)
        counts = self.counts
        counts.sent += 1
        counts.sent_bytes += len(data)
        if len(data) > MAX_DATAGRAM_BYTES:
            raise LocalProtocolError(f"datagram of {len(data)} bytes, expected at most {MAX_DATAGRAM_BYTES}")
        if path is None:
            counts.unroutable += 1
            return
        if self._partitions and self.is_cut(source, destination):
            counts.cut += 1
            return
        chance = path.random
        if path.loss and chance() < path.loss:
            counts.lost += 1
            return
        timeline = self._timeline
        arrival = timeline.now + path.low_us + int(chance() * path.span_us)
        if path.reorder and chance() < path.reorder:
            arrival += int(chance() * path.reorder_us)
            counts.reordered += 1
        elif arrival < path.last_us:
            arrival = path.last_us
        else:
            path.last_us = arrival
        heappush(timeline.heap, (arrival, next(timeline.numbers), path.deliver, data, source))
        if path.duplicate and chance() < path.duplicate:
            counts.duplicated += 1
            heappush(
                timeline.heap,
                (arrival + path.draw_latency(), next(timeline.numbers), path.deliver, data, source),
            )

    def _link(self, source: str, destination: str) -> Link:
        if self._weathers:
            return self._weathers[max(self._weathers)]
        return self._overrides.get((source, destination), self._default)

    def _refresh(self) -> None:
        for source, paths in self._paths.items():
            for destination, path in paths.items():
                path.use(self._link(source, destination))
