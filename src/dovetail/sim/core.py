"""The parts of a simulated process: how its core is built, its journal, and where in a turn it may crash.

The cores are the real ones of servers and clients, run by the real driver. Processes are known by name; a link is
opened to a process by its name or by the URI of its server. `now` is the process's own clock.
"""

from __future__ import annotations

import enum
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from dovetail.model.hop import Hop, Observation
from dovetail.model.wire import Frame, LinkId
from dovetail.runtime.driver import Core, HandOverCore
from dovetail.sim.damage import Damage


class Journal(Protocol):
    """What the world and the cores need from a journal."""

    @property
    def size(self) -> int: ...
    def append(self, observations: Sequence[Observation], /) -> int: ...
    def hops(self) -> Iterator[Hop]: ...
    def close(self) -> None: ...


class JournalFactory(Protocol):
    """Opens the journal of a process, new or as its last life left it; called at each start of the process."""

    def __call__(self, place: str, server: str, /) -> Journal: ...


@runtime_checkable
class DamagedDisks(Protocol):
    """A JournalFactory whose disks can be damaged."""

    def damage(self, place: str, damage: Damage, /) -> None: ...


class Boot(NamedTuple):
    """What a core factory gets at each start; `life` counts from 0, `random` is a different stream in each life."""

    name: str
    server: str
    journal: Journal
    now: int
    life: int
    random: random.Random


CoreFactory = Callable[[Boot], Core[Any]]
Observer = Callable[[str, object, int], None]
"""Called with (process, event, now) for each event that is not an Observation, after the commit and the sends."""
OnAccepted = Callable[[Any, LinkId, str, int], None]
"""Called with (core, link, label, now) when another process has opened a link."""
OnClosed = Callable[[Any, LinkId, int, int, int], None]
"""Called with (core, link, code, unsent bytes, now) when a link has ended."""


class CrashPoint(enum.StrEnum):
    """Where in a turn a process crashes."""

    BEFORE_COMMIT = "before_commit"
    AFTER_COMMIT = "after_commit"
    MID_SEND = "mid_send"
    AFTER_SEND = "after_send"


class Crashed(BaseException):
    """Unwinds the call stack of a process when it crashes; caught by the process itself."""


class WatchedCore:
    """The core as the driver sees it; records whether it was fed since its events were drained, and what it raises."""

    def __init__(self, core: Core[Any]) -> None:
        self._core = core
        self.is_ahead = False
        self.error: Exception | None = None
        self.next_timer = core.next_timer
        self.to_send = core.to_send
        if isinstance(core, HandOverCore):
            self.receive_broken = core.receive_broken
            self.receive_paused = core.receive_paused
            self.receive_resumed = core.receive_resumed

    def receive_frames(self, frames: Iterable[Frame], now: int) -> None:
        """Feed frames."""
        self.feed(lambda _: self._core.receive_frames(frames, now), now)

    def handle_timer(self, now: int) -> None:
        """Run due timers."""
        self.feed(self._core.handle_timer, now)

    def feed(self, action: Callable[[int], object], now: int) -> None:
        """Feed any input; an error in the core ends the world, while a server only logs it."""
        self.is_ahead = True
        try:
            action(now)
        except Exception as error:
            self.error = self.error or error
            raise

    def events(self) -> Sequence[Any]:
        """Drain the events."""
        self.is_ahead = False
        return self._core.events()
