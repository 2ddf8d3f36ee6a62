"""Links between two processes: ordered links of frames, like TCP.

A link has two ends. Opening, frames and closing travel in order, each direction with its own delays. While a partition
separates the ends, everything sent is held; if it heals in time, all of it is delivered, else the link breaks and both
ends get 1006, each at its own time-out. A crash breaks all links of the host at once. Everything in flight when a link
breaks is lost: an end that is no longer open accepts nothing.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Protocol

import msgspec

from dovetail.model.errors import LocalProtocolError
from dovetail.model.wire import CLOSE_ABNORMAL, CloseLink, LinkId, OpenLink
from dovetail.sim.network import Network
from dovetail.sim.timeline import Act, Timeline

LINK_TIMEOUT_US = 30_000_000
"""How long a partition must last before a link across it breaks."""


class EndState(enum.Enum):
    """The states of an end of a link."""

    OPENING = enum.auto()
    OPEN = enum.auto()
    CLOSED = enum.auto()


class Host(Protocol):
    """A process that has links."""

    name: str
    ends: dict[LinkId, End]

    @property
    def takes_links(self) -> bool:
        """True if the process accepts new links."""

    def link_accepted(self, link: LinkId, label: str) -> None:
        """Another process opened a link, which the world has named."""

    def link_opened(self, link: LinkId) -> None:
        """A link that the process requested is open."""

    def link_frame(self, data: bytes, link: LinkId) -> None:
        """A frame arrived."""

    def link_closed(self, link: LinkId, code: int) -> None:
        """The other end closed the link, or it broke or was refused (1006)."""


class End:
    """One end of a link: its process, its name there, and what is in flight towards it."""

    __slots__ = ("flow_us", "held", "host", "label", "name", "number", "peer", "state")

    def __init__(self, host: Host, name: str, number: int, label: str) -> None:
        self.host = host
        self.name = name
        self.number = number
        self.label = label
        self.state = EndState.OPENING
        self.flow_us = 0
        self.held: list[tuple[Act, object]] = []
        self.peer = self


class LinkCounts(msgspec.Struct):
    """Counts of links and frames by outcome."""

    opened: int = 0
    refused: int = 0
    broken: int = 0
    """Ends that broke, including the opener's end of a refused link."""
    frames_sent: int = 0
    frames_lost: int = 0


class Links:
    """All links of a world, and the rules by which they open, carry frames and break."""

    def __init__(self, timeline: Timeline, network: Network, find: Callable[[str], Host | None]) -> None:
        self.counts = LinkCounts()
        self.timeout_us = LINK_TIMEOUT_US
        self._timeline = timeline
        self._network = network
        self._find = find
        self._opened = 0
        self._live: dict[int, End] = {}  # by number, the opener's end
        self._cut_since: dict[int, int] = {}

    @property
    def live_count(self) -> int:
        """Number of links that are open, opening or not yet known to be dead."""
        return len(self._live)

    def send(self, host: Host, link: LinkId, data: bytes) -> bool:
        """Send a frame; False if the link is gone."""
        self.counts.frames_sent += 1
        end = host.ends.get(link)
        if end is None or end.state is EndState.CLOSED:
            self.counts.frames_lost += 1
            return False
        self._travel(end, self._arrive_frame, data)
        return True

    def break_all_of(self, host: Host) -> None:
        """The host crashed: drop its ends and notify the others now, or when the partition between them heals."""
        for end in host.ends.values():
            end.state = EndState.CLOSED
            peer = end.peer
            if peer.state is EndState.CLOSED or peer.name not in peer.host.ends:
                peer.state = EndState.CLOSED
                self._forget(end)
            elif self._network.is_cut(host.name, peer.host.name):
                self._hold_reset(peer)
            else:
                self._break_end(peer, self._timeline.now)
        host.ends.clear()

    def notice_cuts(self) -> None:
        """Partitions changed: start the time-outs of the links they cut, resume the others."""
        now = self._timeline.now
        for number, near in list(self._live.items()):
            far = near.peer
            if self._network.is_cut(near.host.name, far.host.name):
                if number not in self._cut_since:
                    self._cut_since[number] = now
                    self._timeline.push(now + self.timeout_us, self._time_out, number, now)
            elif self._cut_since.pop(number, None) is not None:
                for end in (near, far):
                    held, end.held = end.held, []
                    for act, data in held:
                        self._travel(end.peer, act, data)

    def open(self, host: Host, item: OpenLink) -> None:
        """Open a link requested by a core."""
        if item.link in host.ends:
            raise LocalProtocolError(f"{host.name} opens link {item.link!r}, which it has already")
        self._opened += 1
        near = End(host, item.link, self._opened, item.label)
        host.ends[item.link] = near
        target = self._find(item.destination)
        if target is None:
            self.counts.refused += 1
            self._break_end(near, self._timeline.now)
            return
        far = End(target, f"{host.name}~{self._opened}", self._opened, item.label)
        near.peer, far.peer = far, near
        self._live[near.number] = near
        self._travel(near, self._arrive_open, None)

    def close(self, host: Host, item: CloseLink) -> None:
        """Close a link from this side."""
        end = host.ends.pop(item.link, None)
        if end is None or end.state is EndState.CLOSED:
            return
        end.state = EndState.CLOSED
        if not item.abort:
            self._travel(end, self._arrive_close, item.code)
            return
        peer = end.peer
        if self._network.is_cut(host.name, peer.host.name):
            self._hold_reset(peer)
        else:
            self._break_end(peer, self._timeline.now + self._latency(end))

    def _travel(self, source: End, act: Act, data: object) -> None:
        """Send something along the link, after everything sent before."""
        target = source.peer
        if self._network.is_cut(source.host.name, target.host.name):
            target.held.append((act, data))
            if source.number not in self._cut_since and source.number in self._live:
                self.notice_cuts()
            return
        target.flow_us = max(target.flow_us, self._timeline.now + self._latency(source))
        self._timeline.push(target.flow_us, act, target, data)

    def _latency(self, source: End) -> int:
        path = self._network.path(source.host.name, source.peer.host.name)
        assert path is not None, "both ends are hosts"
        return path.draw_stream_latency()

    def _arrive_open(self, end: End, _: object) -> None:
        if end.state is not EndState.OPENING:
            return
        if not end.host.takes_links:
            end.state = EndState.CLOSED
            self.counts.refused += 1
            self._travel(end, self._arrive_reset, None)
            return
        end.state = EndState.OPEN
        self.counts.opened += 1
        end.host.ends[end.name] = end
        end.host.link_accepted(end.name, end.label)
        self._travel(end, self._arrive_opened, None)

    def _arrive_opened(self, end: End, _: object) -> None:
        if end.state is EndState.OPENING:
            end.state = EndState.OPEN
            end.host.link_opened(end.name)

    def _arrive_frame(self, end: End, data: bytes) -> None:
        if end.state is EndState.CLOSED:
            self.counts.frames_lost += 1
        else:
            end.host.link_frame(data, end.name)

    def _arrive_close(self, end: End, code: int) -> None:
        if end.state is not EndState.CLOSED:
            end.state = EndState.CLOSED
            end.host.link_closed(end.name, code)
        self._forget(end)

    def _arrive_reset(self, end: End, _: object) -> None:
        if end.state is not EndState.CLOSED:
            self._break_end(end, self._timeline.now)
        self._forget(end)

    def _break_end(self, end: End, at_us: int) -> None:
        """Close the end now; its core is notified at `at_us`."""
        self.counts.broken += 1
        end.state = EndState.CLOSED
        self._timeline.push(at_us, self._report_broken, end, None)
        self._forget(end)

    def _report_broken(self, end: End, _: object) -> None:
        if end.host.ends.get(end.name) is end:
            end.host.link_closed(end.name, CLOSE_ABNORMAL)

    def _time_out(self, number: int, since_us: int) -> None:
        near = self._live.get(number)
        if near is None or self._cut_since.get(number) != since_us:
            return
        for end in (near, near.peer):
            self._drop_held(end)
            if end.state is not EndState.CLOSED and end.name in end.host.ends:
                self._break_end(end, self._timeline.now)
            end.state = EndState.CLOSED
        self._forget(near)

    def _hold_reset(self, end: End) -> None:
        """A crash or an abort goes unnoticed behind a partition: report it when it heals."""
        self._drop_held(end)
        end.held.append((self._arrive_reset, None))

    def _drop_held(self, end: End) -> None:
        self.counts.frames_lost += sum(act == self._arrive_frame for act, _ in end.held)
        end.held = []

    def _forget(self, end: End) -> None:
        self._live.pop(end.number, None)
        self._cut_since.pop(end.number, None)
