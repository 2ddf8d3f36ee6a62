"""What a simulated process is made of: how its core is built, its journal, and where in a turn it may crash.

The cores are those of the servers and clients, driven by their driver. Processes are known by name; a link is opened to
a process by its name or by the URI of its server. `now` is the process's own clock.
"""

from __future__ import annotations

import enum
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from dovetail.model.hop import Hop, Observation
from dovetail.model.wire import LinkId
from dovetail.runtime.driver import Core


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


class Boot(NamedTuple):
    """What a factory of cores gets at each start; `life` counts from 0, `random` is another stream in each life."""

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
"""Called with (core, link, label, now) for a link that another process opened."""
OnClosed = Callable[[Any, LinkId, int, int, int], None]
"""Called with (core, link, code, bytes that were never sent, now) for a link that ended."""


class CrashPoint(enum.StrEnum):
    """Where in a turn a process crashes."""

    BEFORE_COMMIT = "before_commit"
    AFTER_COMMIT = "after_commit"
    MID_SEND = "mid_send"
    AFTER_SEND = "after_send"


class Crashed(BaseException):
    """Unwinds what a process was doing when it crashed; caught by the process itself."""
