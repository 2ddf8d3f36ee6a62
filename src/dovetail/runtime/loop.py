"""A driver on an asyncio event loop: its clock, and its journal's callbacks brought into the loop's thread."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol, TypeVar

from dovetail.model.errors import DovetailError, JournalError
from dovetail.model.hop import Observation
from dovetail.runtime.clock import now_us
from dovetail.runtime.driver import Action, Cancellable, Driver

STALL_CHECK_S: Final = 0.2

T = TypeVar("T")
Done = Callable[[JournalError | None], None]


class CallingJournal(Protocol):
    """A journal that calls back from any thread; `Journal` is one."""

    on_failure: Callable[[JournalError], None] | None

    @property
    def stalled(self) -> JournalError | None: ...

    def commit(self, observations: Sequence[Observation], done: Done) -> None: ...


class LoopClock:
    """The wall clock, and calls by the event loop that runs."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.now = now_us

    def call_soon(self, action: Callable[[], None]) -> None:
        """At the end of this turn of the event loop."""
        self._loop.call_soon(action)

    def call_at(self, when: int, action: Callable[[], None]) -> Cancellable:
        """Once the wall clock shows so much; a clock that is set meanwhile does not change it."""
        return self._loop.call_later(max(0, when - now_us()) / 1_000_000, action)


class LoopJournal:
    """A journal whose callbacks come in the thread of the event loop that runs now."""

    def __init__(self, journal: CallingJournal, on_failure: Callable[[JournalError], None]) -> None:
        self._journal = journal
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        journal.on_failure = functools.partial(self._call, on_failure)

    @property
    def stalled(self) -> JournalError | None:
        """Why the journal cannot write at present."""
        return self._journal.stalled

    def commit(self, observations: Sequence[Observation], done: Done) -> None:
        """Make them durable; `done` is called in the loop's thread."""
        self._journal.commit(observations, functools.partial(self._call, done))

    def _call(self, action: Callable[[Any], None], error: JournalError | None) -> None:
        if threading.get_ident() == self._thread:
            action(error)
            return
        # the loop may be gone by now; nobody is left to be told then
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(action, error)


async def settled(driver: Driver[Any]) -> None:
    """Wait until all that was fed so far is committed and sent; raises what stopped the driver."""
    waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def done(error: Exception | None) -> None:
        if not waiter.done():
            waiter.set_result(None) if error is None else waiter.set_exception(error)

    driver.when_settled(done)
    await waiter


async def come_to_rest(driver: Driver[Any]) -> None:
    """Wait until all that came so far is committed and sent, unless the journal has no room or the driver failed."""
    waiting = asyncio.ensure_future(_settle(driver))
    while not (waiting.done() or driver.is_stalled):
        await asyncio.wait([waiting], timeout=STALL_CHECK_S)  # a disk may get full meanwhile
    waiting.cancel()


async def _settle(driver: Driver[Any]) -> None:
    with contextlib.suppress(DovetailError):
        await settled(driver)


async def stopped_or_failed(stopped: asyncio.Event, failed: asyncio.Future[None]) -> None:
    """Wait until a server is told to stop; raises why it failed if that comes first."""
    waiting: asyncio.Future[Any] = asyncio.ensure_future(stopped.wait())
    await asyncio.wait([waiting, failed], return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if failed.done():
        failed.result()


async def ask(driver: Driver[Any], action: Callable[[int], T]) -> T:
    """Call `action` in order with all input; what it returns or raises, once it is committed and sent."""
    results: list[T] = []
    errors: list[Exception] = []

    def act(now: int) -> None:
        try:
            results.append(action(now))
        except Exception as error:
            errors.append(error)

    fed: Action = act
    driver.call(fed)
    await settled(driver)
    if errors:
        raise errors[0]
    return results[0]
