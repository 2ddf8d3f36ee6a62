"""What the world needs from a core, and what a core may ask the world to send.

A fabric joins by a thin adapter: the four common verbs, and `receive_datagram` or the four stream verbs or both.
Places are known by name; an adapter translates names to the fabric's own addresses. `now` is the place's own clock.
"""

from __future__ import annotations

import enum
import random
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import msgspec

from dovetail.model.hop import Hop, Observation
from dovetail.model.wire import Datagrams

CLOSED_NORMALLY = 1000
"""Default code of `CloseStream`, as in WebSocket (RFC 6455, 7.4.1)."""
CLOSED_ABNORMALLY = 1006
"""What an end is told when no close came: refused, broken by a partition, aborted or the other place crashed."""


class Datagram(NamedTuple):
    """Bytes for one place, which may never come, come twice or late. A plain `(destination, data)` will do as well."""

    destination: str
    data: bytes


class OpenStream(msgspec.Struct, frozen=True, gc=False):
    """Ask for a stream to a place; frames may follow at once.

    `stream` is the opener's own name for it, not in use at that place. `label` is shown to the other end: a path, the
    identity in a certificate, whatever the fabric's shell would know of a new connection.
    """

    stream: str
    destination: str
    label: str = ""


class Frame(msgspec.Struct, frozen=True, gc=False):
    """Bytes for the other end of a stream, which get there whole and in order, unless it breaks."""

    stream: str
    data: bytes


class CloseStream(msgspec.Struct, frozen=True, gc=False):
    """End a stream: after the frames sent before, or at once with `abort` (the other end is told 1006).

    The closing core is told nothing more of this stream.
    """

    stream: str
    code: int = CLOSED_NORMALLY
    abort: bool = False


Outgoing = Datagram | tuple[str, bytes] | Datagrams | OpenStream | Frame | CloseStream


class Core(Protocol):
    """The verbs of every core."""

    def handle_timer(self, now: int) -> None: ...
    def next_timer(self) -> int | None: ...
    def events(self) -> Sequence[object]: ...
    def to_send(self) -> Sequence[Outgoing]: ...


@runtime_checkable
class DatagramCore(Core, Protocol):
    """A core that is fed datagrams."""

    def receive_datagram(self, data: bytes, sender: str, now: int) -> None: ...


@runtime_checkable
class StreamCore(Core, Protocol):
    """A core that is fed streams of frames."""

    def receive_accepted(self, stream: str, peer: str, label: str, now: int) -> None:
        """`peer` opened a stream to us; the world has named it `stream`."""

    def receive_opened(self, stream: str, peer: str, now: int) -> None:
        """The stream that we asked for is open."""

    def receive_frame(self, data: bytes, stream: str, now: int) -> None: ...

    def receive_closed(self, stream: str, code: int, now: int) -> None:
        """The other end closed the stream, or it broke, or it was refused (1006)."""


class Journal(Protocol):
    """What the world and the cores need from a journal."""

    @property
    def size(self) -> int: ...
    def append(self, observations: Sequence[Observation], /) -> int: ...
    def hops(self) -> Iterator[Hop]: ...
    def close(self) -> None: ...


class JournalFactory(Protocol):
    """Opens the journal of a place, new or as its last life left it; called at each start of the place."""

    def __call__(self, place: str, server: str) -> Journal: ...


class Boot(NamedTuple):
    """What a place's factory gets at each start; `life` counts from 0, and `random` is another stream in each life."""

    place: str
    server: str
    journal: Journal
    now: int
    life: int
    random: random.Random


CoreFactory = Callable[[Boot], DatagramCore | StreamCore]
Observer = Callable[[str, object, int], None]
"""Called with (place, event, now) for each event that is not an Observation, after the commit and before the sends."""


class CrashPoint(enum.StrEnum):
    """Where in a turn a place crashes."""

    BEFORE_COMMIT = "before_commit"
    AFTER_COMMIT = "after_commit"
    MID_SEND = "mid_send"
    AFTER_SEND = "after_send"
