"""Ordered streams of frames between two places, as a shell would have them from TCP.

A stream has two ends. Opening, frames and closing travel in order, each direction with its own delays. While a
partition stands between the ends, what is sent is held back; if it heals in time, all of it goes on, else the stream
breaks and both ends are told 1006, each by its own time-out. A crash breaks all streams of the place at once. Whatever
was under way when a stream broke is lost: an end that is no longer open takes nothing more.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

import msgspec

from dovetail.model.errors import LocalProtocolError
from dovetail.sim.core import CLOSED_ABNORMALLY, CloseStream, Frame, OpenStream
from dovetail.sim.network import Network
from dovetail.sim.timeline import Act, Timeline

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dovetail.sim.process import Place

STREAM_TIMEOUT_US = 30_000_000
"""How long a partition must last before a stream across it breaks."""


class EndState(enum.Enum):
    """What an end of a stream can do."""

    OPENING = enum.auto()
    OPEN = enum.auto()
    CLOSED = enum.auto()


class End:
    """One end of a stream: its place, the name it has there, and what travels towards it."""

    __slots__ = ("flow_us", "held", "label", "name", "number", "peer", "place", "state")

    def __init__(self, place: Place, name: str, number: int, label: str) -> None:
        self.place = place
        self.name = name
        self.number = number
        self.label = label
        self.state = EndState.OPENING
        self.flow_us = 0
        self.held: list[tuple[Act, object]] = []
        self.peer = self


class StreamCounts(msgspec.Struct):
    """What became of the streams and frames."""

    opened: int = 0
    refused: int = 0
    broken: int = 0
    """Ends that broke; the opener's end of a refused stream is one too."""
    frames_sent: int = 0
    frames_lost: int = 0


class Streams:
    """All streams of a world, and the rules by which they open, carry and break."""

    def __init__(self, timeline: Timeline, network: Network, places: Mapping[str, Place]) -> None:
        self.counts = StreamCounts()
        self.timeout_us = STREAM_TIMEOUT_US
        self._timeline = timeline
        self._network = network
        self._places = places
        self._opened = 0
        self._live: dict[int, End] = {}  # by number, the opener's end
        self._cut_since: dict[int, int] = {}

    @property
    def live_count(self) -> int:
        """How many streams are open, opening or not yet known to be dead."""
        return len(self._live)

    def send(self, place: Place, item: OpenStream | Frame | CloseStream) -> None:
        """Do what a core asked for."""
        if isinstance(item, Frame):
            self.counts.frames_sent += 1
            end = place.streams.get(item.stream)
            if end is None or end.state is EndState.CLOSED:
                self.counts.frames_lost += 1
            else:
                self._travel(end, self._arrive_frame, item.data)
        elif isinstance(item, OpenStream):
            self._open(place, item)
        else:
            self._close(place, item)

    def break_all_of(self, place: Place) -> None:
        """The place crashed: its ends are gone, the other ends are told at once, or when a partition lets them know."""
        for end in place.streams.values():
            end.state = EndState.CLOSED
            peer = end.peer
            if peer.state is EndState.CLOSED or peer.name not in peer.place.streams:
                peer.state = EndState.CLOSED
                self._forget(end)
            elif self._network.is_cut(place.name, peer.place.name):
                self._hold_reset(peer)
            else:
                self._tell_broken(peer, self._timeline.now)
        place.streams.clear()

    def notice_cuts(self) -> None:
        """Partitions changed: begin to count the time of the streams they cut, let the others go on."""
        now = self._timeline.now
        for number, near in list(self._live.items()):
            far = near.peer
            if self._network.is_cut(near.place.name, far.place.name):
                if number not in self._cut_since:
                    self._cut_since[number] = now
                    self._timeline.push(now + self.timeout_us, self._time_out, number, now)
            elif self._cut_since.pop(number, None) is not None:
                for end in (near, far):
                    held, end.held = end.held, []
                    for act, data in held:
                        self._travel(end.peer, act, data)

    def _open(self, place: Place, item: OpenStream) -> None:
        if item.stream in place.streams:
            raise LocalProtocolError(f"{place.name} opens stream {item.stream!r}, which it has already")
        self._opened += 1
        near = End(place, item.stream, self._opened, item.label)
        place.streams[item.stream] = near
        target = self._places.get(item.destination)
        if target is None:
            self.counts.refused += 1
            self._tell_broken(near, self._timeline.now)
            return
        far = End(target, f"{place.name}~{self._opened}", self._opened, item.label)
        near.peer, far.peer = far, near
        self._live[near.number] = near
        self._travel(near, self._arrive_open, None)

    def _close(self, place: Place, item: CloseStream) -> None:
        end = place.streams.pop(item.stream, None)
        if end is None or end.state is EndState.CLOSED:
            return
        end.state = EndState.CLOSED
        if not item.abort:
            self._travel(end, self._arrive_close, item.code)
            return
        peer = end.peer
        if self._network.is_cut(place.name, peer.place.name):
            self._hold_reset(peer)
        else:
            self._tell_broken(peer, self._timeline.now + self._latency(end))

    def _travel(self, source: End, act: Act, data: object) -> None:
        """Send something along the stream, behind what was sent before."""
        target = source.peer
        if self._network.is_cut(source.place.name, target.place.name):
            target.held.append((act, data))
            if source.number not in self._cut_since and source.number in self._live:
                self.notice_cuts()
            return
        target.flow_us = max(target.flow_us, self._timeline.now + self._latency(source))
        self._timeline.push(target.flow_us, act, target, data)

    def _latency(self, source: End) -> int:
        path = self._network.path(source.place.name, source.peer.place.name)
        assert path is not None, "both ends are places"
        return path.draw_stream_latency()

    def _arrive_open(self, end: End, _: object) -> None:
        if end.state is not EndState.OPENING:
            return
        if not end.place.takes_streams:
            end.state = EndState.CLOSED
            self.counts.refused += 1
            self._travel(end, self._arrive_reset, None)
            return
        end.state = EndState.OPEN
        self.counts.opened += 1
        end.place.streams[end.name] = end
        end.place.take(end.place.feed_accepted, end.name, end)
        self._travel(end, self._arrive_opened, None)

    def _arrive_opened(self, end: End, _: object) -> None:
        if end.state is EndState.OPENING:
            end.state = EndState.OPEN
            end.place.take(end.place.feed_opened, end.name, end.peer.place.name)

    def _arrive_frame(self, end: End, data: bytes) -> None:
        if end.state is EndState.CLOSED:
            self.counts.frames_lost += 1
        else:
            end.place.take(end.place.feed_frame, data, end.name)

    def _arrive_close(self, end: End, code: int) -> None:
        if end.state is not EndState.CLOSED:
            end.state = EndState.CLOSED
            end.place.take(end.place.feed_closed, end.name, code)
        self._forget(end)

    def _arrive_reset(self, end: End, _: object) -> None:
        if end.state is not EndState.CLOSED:
            self._tell_broken(end, self._timeline.now)
        self._forget(end)

    def _tell_broken(self, end: End, at_us: int) -> None:
        """From now on the end takes nothing more, and at `at_us` its core hears of it."""
        self.counts.broken += 1
        end.state = EndState.CLOSED
        self._timeline.push(at_us, self._report_broken, end, None)
        self._forget(end)

    def _report_broken(self, end: End, _: object) -> None:
        if end.place.streams.get(end.name) is end:
            end.place.take(end.place.feed_closed, end.name, CLOSED_ABNORMALLY)

    def _time_out(self, number: int, since_us: int) -> None:
        near = self._live.get(number)
        if near is None or self._cut_since.get(number) != since_us:
            return
        for end in (near, near.peer):
            self._drop_held(end)
            if end.state is not EndState.CLOSED and end.name in end.place.streams:
                self._tell_broken(end, self._timeline.now)
            end.state = EndState.CLOSED
        self._forget(near)

    def _hold_reset(self, end: End) -> None:
        """Behind a partition nobody hears of a crash or an abort: tell when it heals."""
        self._drop_held(end)
        end.held.append((self._arrive_reset, None))

    def _drop_held(self, end: End) -> None:
        self.counts.frames_lost += sum(act == self._arrive_frame for act, _ in end.held)
        end.held = []

    def _forget(self, end: End) -> None:
        self._live.pop(end.number, None)
        self._cut_since.pop(end.number, None)
