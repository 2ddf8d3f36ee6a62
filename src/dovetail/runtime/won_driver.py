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
from typing import Any, Protocol

from dovetail.journal.journal import Journal
from dovetail.model.errors import ConnectFailed, JournalError
from dovetail.model.hop import Observation, Reason
from dovetail.model.wire import CLOSE_NORMAL, CloseLink, OpenLink, Outgoing, SendFrames
from dovetail.runtime.clock import now_us
from dovetail.runtime.http import fetch
from dovetail.runtime.websocket import CLOSE_GOING_AWAY, Limits, Link, LinkHandler, dial
from dovetail.won.events import Event, HopUnreadable, KeyWanted

RETRY_JOURNAL_S = 0.2
MAX_WAITING_TURNS = 20_000
# Larger messages than the core takes still reach it, so that their refusal is journaled
LIMITS = Limits(max_message_bytes=16 << 20, max_unsent_bytes=32 << 20, ping_s=20.0)
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


class Driver(LinkHandler[str]):
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
        self._links: dict[str, Link] = {}
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
        """Journal and send what waits, then close all links."""
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
        for link in list(self._links.values()):
            link.close(CLOSE_GOING_AWAY)
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

    # -- links

    def adopt(self, link: Link) -> None:
        """A link that somebody opened to us."""
        self._links[link.id] = link
        link.set_reading(self._is_reading)

    def opened(self, link: Link, label: str) -> None:  # noqa: ARG002
        """A link that we opened is ready."""
        if link.id in self._unwanted:
            self._unwanted.discard(link.id)
            link.close(CLOSE_NORMAL)
            return
        self._links[link.id] = link
        self.core.receive_opened(link.id, now_us())
        self.settle()

    def frame(self, data: bytes, link: str, is_text: bool) -> None:  # noqa: ARG002
        """A message came."""
        self.core.receive_frame(data, link, now_us())
        self.settle()

    def refused(self, data: bytes, link: str, reason: Reason, size: int) -> None:  # noqa: ARG002
        """A message that was not taken in whole."""
        log.warning("link %s is closed: %s, %d bytes or more", link, reason.value, size)

    def closed(self, link: str, code: int) -> None:  # noqa: ARG002
        """A link ended."""
        if self._links.pop(link, None) is not None:
            self.core.receive_closed(link, now_us())
            self.settle()

    def _set_reading(self, wanted: bool) -> None:
        if wanted is not self._is_reading:
            self._is_reading = wanted
            for link in self._links.values():
                link.set_reading(wanted)

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
            elif isinstance(event, HopUnreadable):
                log.warning("hop %d of the journal is left out: %s", event.seq, event.detail)
            if self._observer is not None and not isinstance(event, Observation):
                self._observer(event)

    def _send(self, outgoing: Iterable[Outgoing]) -> None:
        for item in outgoing:
            match item:
                case SendFrames():
                    for name in item.links:
                        link = self._links.get(name)
                        if link is not None:
                            for data in item.frames:
                                link.send(data, is_text=True)
                case OpenLink():
                    self._spawn(self._open(item))
                case CloseLink():
                    link = self._links.pop(item.link, None)
                    if link is not None:
                        link.close(item.code)
                    elif item.link in self._opening:
                        self._unwanted.add(item.link)
                case _:
                    raise AssertionError(f"a won core sends no {type(item).__name__}")

    async def _open(self, item: OpenLink) -> None:
        url = link_url(item.destination, self._label)
        self._opening.add(item.link)
        try:
            await dial(self, url, item.link, tls=self._context, limits=LIMITS)
        except ConnectFailed as error:
            log.debug("%s", error)
            if item.link not in self._links:
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


def link_url(node: str, kind: str) -> str:
    """Where a node takes links of a kind."""
    return f"{node.replace('http', 'ws', 1)}/link/{kind}"
