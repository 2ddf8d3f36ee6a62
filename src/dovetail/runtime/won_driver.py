"""Drives a won core, node or owner, with real links, documents, timers and a journal; holds no protocol rule.

Every input is fed at once; what comes of it goes through one queue: observations are journaled, one group commit for
all turns that waited, and only then are their frames sent, in order. While the disk is full nothing is sent and, over
a bound, nothing more is read; the core's promises stay unmade until they are durable.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Callable, Iterable
from typing import Any, Protocol, assert_never

import picows

from dovetail.journal.journal import Journal
from dovetail.model.errors import JournalError
from dovetail.model.hop import Observation
from dovetail.runtime.clock import now_us
from dovetail.runtime.won_socket import Wire, connect, fetch
from dovetail.won.events import CloseLink, Event, KeyWanted, OpenLink, Outgoing, SendFrame

RETRY_JOURNAL_S = 0.2
MAX_WAITING_TURNS = 20_000
log = logging.getLogger("dovetail.won")


class Core(Protocol):
    """What a driver needs of a core."""

    def receive_opened(self, link: str, now: int) -> None: ...
    def receive_frame(self, data: bytes, link: str, now: int) -> None: ...
    def receive_closed(self, link: str, now: int) -> None: ...
    def receive_document(self, uri: str, data: bytes | None, now: int) -> None: ...
    def handle_timer(self, now: int) -> None: ...
    def next_timer(self) -> int | None: ...
    def events(self) -> list[Event]: ...
    def to_send(self) -> list[Outgoing]: ...


class _Turn:
    __slots__ = ("events", "outgoing")

    def __init__(self, events: list[Event], outgoing: list[Outgoing]) -> None:
        self.events = events
        self.outgoing = outgoing


class Driver:
    """One core on the event loop. `start` it, `feed` it, `stop` it."""

    def __init__(
        self,
        core: Core,
        journal: Journal,
        *,
        label: str,
        context: ssl.SSLContext | None,
        observer: Callable[[Event], None] | None = None,
        read_document: Callable[[str], bytes | None] | None = None,
        keep_document: Callable[[str, bytes], None] | None = None,
    ) -> None:
        self.core = core
        self.journal = journal
        self._label = label
        self._context = context
        self._observer = observer
        self._read_document = read_document
        self._keep_document = keep_document
        self._wires: dict[str, Wire] = {}
        self._opening: set[str] = set()
        self._unwanted: set[str] = set()
        self._turns: list[_Turn] = []
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._writer: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_us: int | None = None
        self._is_reading = True

    @property
    def is_alive(self) -> bool:
        """False once the journal can no longer be written; the process should end then."""
        return self._writer is not None and not self._writer.done()

    @property
    def is_reading(self) -> bool:
        """False while the journal has no room, or too much waits for it: nothing is taken in then."""
        return self._is_reading

    @property
    def waiting(self) -> int:
        """How many turns wait for the journal."""
        return len(self._turns)

    def start(self) -> None:
        """Begin to journal and send; whatever the core has to say already goes first."""
        self._writer = asyncio.get_running_loop().create_task(self._write_turns())
        self.settle()

    async def stop(self) -> None:
        """Journal and send what waits, then end all wires."""
        if self._timer is not None:
            self._timer.cancel()
        if self.is_alive:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(10):
                    await self._idle.wait()
        for task in [*self._tasks, self._writer]:
            if task is not None:
                task.cancel()
        await asyncio.gather(*self._tasks, *([self._writer] if self._writer else []), return_exceptions=True)
        for wire in list(self._wires.values()):
            wire.close(1001)
        await asyncio.sleep(0)

    def settle(self) -> None:
        """Take what the core has to say since the last call; call it after every feeding."""
        events, outgoing = self.core.events(), self.core.to_send()
        if events or outgoing:
            self._turns.append(_Turn(events, outgoing))
            self._idle.clear()
            self._wake.set()
            if len(self._turns) > MAX_WAITING_TURNS:
                self._set_reading(False)
        self._arm()

    # -- wires

    def adopt(self, wire: Wire) -> None:
        """A wire that somebody opened to us."""
        self._wires[wire.name] = wire
        wire.set_reading(self._is_reading)

    def receive_opened(self, wire: Wire) -> None:
        """A wire that we opened is ready."""
        if wire.name in self._unwanted:
            self._unwanted.discard(wire.name)
            wire.close(1000)
            return
        self._wires[wire.name] = wire
        self.core.receive_opened(wire.name, now_us())
        self.settle()

    def receive_message(self, data: bytes, wire: Wire) -> None:
        """A message came."""
        self.core.receive_frame(data, wire.name, now_us())
        self.settle()

    def receive_closed(self, wire: Wire) -> None:
        """A wire ended."""
        if self._wires.pop(wire.name, None) is not None:
            self.core.receive_closed(wire.name, now_us())
            self.settle()

    def _set_reading(self, wanted: bool) -> None:
        if wanted is not self._is_reading:
            self._is_reading = wanted
            for wire in self._wires.values():
                wire.set_reading(wanted)

    # -- the queue of turns

    async def _write_turns(self) -> None:
        while True:
            if not self._turns:
                self._idle.set()
            await self._wake.wait()
            self._wake.clear()
            turns, self._turns = self._turns, []
            observations = [e for turn in turns for e in turn.events if isinstance(e, Observation)]
            if observations:
                await self._append(observations)
            for turn in turns:
                self._tell(turn.events)
                self._send(turn.outgoing)
            if len(self._turns) <= MAX_WAITING_TURNS // 2:
                self._set_reading(True)

    async def _append(self, observations: list[Observation]) -> None:
        is_told = False
        while True:
            try:
                await self.journal.append_async(observations)
                return
            except JournalError as error:
                if not error.retriable:
                    log.critical("the journal cannot be written, stopping: %s", error)
                    raise
                if not is_told:
                    log.warning("the journal has no room, waiting: %s", error)
                    is_told = True
                self._set_reading(False)
                await asyncio.sleep(RETRY_JOURNAL_S)

    def _tell(self, events: Iterable[Event]) -> None:
        for event in events:
            if isinstance(event, KeyWanted):
                self._spawn(self._fetch(event.uri))
            if self._observer is not None and not isinstance(event, Observation):
                self._observer(event)

    def _send(self, outgoing: Iterable[Outgoing]) -> None:
        for item in outgoing:
            match item:
                case SendFrame():
                    wire = self._wires.get(item.link)
                    if wire is not None:
                        wire.send(item.data)
                case OpenLink():
                    self._spawn(self._open(item))
                case CloseLink():
                    wire = self._wires.pop(item.link, None)
                    if wire is not None:
                        wire.close(item.code)
                    elif item.link in self._opening:
                        self._unwanted.add(item.link)
                case _:
                    assert_never(item)

    async def _open(self, item: OpenLink) -> None:
        wire = Wire(item.link, self._label, self)
        self._opening.add(item.link)
        try:
            await connect(wire, item.node, self._context)
        except (OSError, picows.WSError, TimeoutError) as error:
            log.debug("%s cannot be reached: %s", item.node, error)
            if item.link not in self._wires:
                self.core.receive_closed(item.link, now_us())
                self.settle()
        finally:
            self._opening.discard(item.link)
            self._unwanted.discard(item.link)

    async def _fetch(self, uri: str) -> None:
        known = self._read_document(uri) if self._read_document else None
        data = known if known is not None else await fetch(uri, self._context)
        if known is None and data is not None and self._keep_document is not None:
            self._keep_document(uri, data)
        self.core.receive_document(uri, data, now_us())
        self.settle()

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # -- the timer

    def _arm(self) -> None:
        due = self.core.next_timer()
        if due == self._timer_us:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_us = None, due
        if due is not None:
            delay = max(0.0, (due - now_us()) / 1_000_000)
            self._timer = asyncio.get_running_loop().call_later(delay, self._fire)

    def _fire(self) -> None:
        self._timer, self._timer_us = None, None
        self.core.handle_timer(now_us())
        self.settle()
