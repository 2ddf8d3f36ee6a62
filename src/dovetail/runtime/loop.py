"""A driver on an asyncio event loop: its clock, and its journal's callbacks, moved to the loop's thread."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import signal
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, Protocol, TypeVar

from dovetail.model.errors import DovetailError, JournalError, JournalFull, TimedOut
from dovetail.model.hop import Observation
from dovetail.runtime.clock import now_us
from dovetail.runtime.driver import (
    MAX_INBOX_BYTES,
    Action,
    Cancellable,
    Core,
    Driver,
    Durability,
    Transport,
    TurnStats,
)

DRAIN_S: Final = 5.0
"""How long a node or peer that stops works on what it has received."""
STALL_CHECK_S: Final = 0.2

T = TypeVar("T")
E = TypeVar("E")
Done = Callable[[JournalError | None], None]


class CallingJournal(Protocol):
    """A journal that calls back from any thread; `Journal` is one."""

    on_failure: Callable[[JournalError], None] | None

    @property
    def stalled(self) -> JournalError | None: ...

    def commit(self, observations: Sequence[Observation], done: Done) -> None: ...


class LoopClock:
    """The wall clock, and calls by the running event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.now = now_us

    def call_soon(self, action: Callable[[], None]) -> None:
        """Call at the end of this event loop iteration."""
        self._loop.call_soon(action)

    def call_at(self, when: int, action: Callable[[], None]) -> Cancellable:
        """Call when the wall clock shows `when`; setting the clock meanwhile does not change that."""
        return self._loop.call_later(max(0, when - now_us()) / 1_000_000, action)


class LoopJournal:
    """A journal whose callbacks run in the thread of the current event loop."""

    def __init__(self, journal: CallingJournal, on_failure: Callable[[JournalError], None]) -> None:
        self._journal = journal
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        journal.on_failure = functools.partial(self._call, on_failure)

    @property
    def stalled(self) -> JournalError | None:
        """Why the journal cannot write now."""
        return self._journal.stalled

    def commit(self, observations: Sequence[Observation], done: Done) -> None:
        """Make them durable; `done` is called in the loop's thread."""
        self._journal.commit(observations, functools.partial(self._call, done))

    def _call(self, action: Callable[[Any], None], error: JournalError | None) -> None:
        if threading.get_ident() == self._thread:
            action(error)
            return
        # the loop may be closed by now; nobody is left to notify then
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(action, error)


async def completed(work: Coroutine[Any, Any, T]) -> T:
    """Await what must not be left half done, such as closing, to its end; raises a cancellation after that."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        task.exception()  # it need not be logged as never retrieved
        raise cancelled
    return task.result()


async def settled(driver: Driver[Any]) -> None:
    """Wait until everything fed so far is committed and sent; raises the error that stopped the driver."""
    waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def done(error: Exception | None) -> None:
        if not waiter.done():
            waiter.set_result(None) if error is None else waiter.set_exception(error)

    driver.when_settled(done)
    await waiter


async def come_to_rest(driver: Driver[Any], limit_s: float = DRAIN_S) -> None:
    """Wait until all input so far is committed and sent, unless the journal is full or the driver failed.

    After `limit_s` the rest is left: nothing of it was acknowledged.
    """
    waiting = asyncio.ensure_future(_settle(driver))
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(limit_s):
            while not waiting.done() and driver.stalled is None:
                await asyncio.wait([waiting], timeout=STALL_CHECK_S)  # the disk may become full meanwhile
    waiting.cancel()


async def _settle(driver: Driver[Any]) -> None:
    with contextlib.suppress(DovetailError):
        await settled(driver)


def drive(
    core: Core[E],
    journal: CallingJournal | None,
    transport: Transport,
    *,
    durability: Durability,
    on_events: Callable[[list[E]], None],
    max_inbox_bytes: int = MAX_INBOX_BYTES,
    stats: TurnStats | None = None,
) -> tuple[Driver[E], asyncio.Future[None]]:
    """A driver on the running loop, and the future that gets the error if the driver stops permanently."""
    failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def fail(error: Exception) -> None:
        failed.set_exception(error)
        failed.exception()  # a server that nobody awaits reports it through its health

    driver = Driver(
        core,
        None if journal is None else LoopJournal(journal, lambda error: driver.fail(error)),
        transport,
        LoopClock(),
        durability=durability,
        on_events=on_events,
        on_failure=fail,
        max_inbox_bytes=max_inbox_bytes,
        stats=stats,
    )
    return driver, failed


def stop_event() -> asyncio.Event:
    """An event that SIGTERM and SIGINT set from now on."""
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    return stopped


async def wait_unless_failed(event: asyncio.Event, failed: asyncio.Future[None]) -> None:
    """Wait for an event; raises the server's failure if that comes first."""
    waiting: asyncio.Future[Any] = asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait([waiting, failed], return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()
    if failed.done():
        error = failed.exception()
        raise error if isinstance(error, DovetailError) else DovetailError(f"the server failed: {error}")


async def ask(driver: Driver[Any], action: Callable[[int], T], timeout_s: float | None = None) -> T:
    """Call `action` in order with all input; returns or raises its result once it is committed and sent.

    Raises JournalFull, or TimedOut, if it is not when the time is over. What was asked then still waits for the disk.
    """
    results: list[T] = []
    errors: list[Exception] = []

    def act(now: int) -> None:
        try:
            results.append(action(now))
        except Exception as error:
            errors.append(error)

    fed: Action = act
    driver.call(fed)
    try:
        async with asyncio.timeout(timeout_s):
            await settled(driver)
    except TimeoutError:
        stalled = driver.stalled
        text = f"not journaled within {timeout_s:g} s, but it may still be journaled and sent "
        if isinstance(stalled, JournalFull):
            raise JournalFull(f"{text}when there is room: {stalled}") from stalled
        raise TimedOut(f"{text}later" if stalled is None else f"{text}later: {stalled}") from stalled
    if errors:
        raise errors[0]
    return results[0]
