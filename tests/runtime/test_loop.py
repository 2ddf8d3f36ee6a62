"""A driver on an event loop: callbacks run in the loop's thread, and callers get the results of their requests."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time

import pytest

from dovetail.model.address import address_of
from dovetail.model.errors import JournalError
from dovetail.model.hop import Observation, Stage
from dovetail.runtime.driver import MAX_TURN_BYTES, Driver
from dovetail.runtime.loop import LoopClock, LoopJournal, ask, come_to_rest, completed


class Core:
    """Observes what it is told to."""

    def __init__(self) -> None:
        self._events: list[Observation] = []

    def note(self, text: bytes, now: int) -> int:
        self._events.append(Observation(at_us=now, stage=Stage.CREATED, message=address_of(text), raw=text))
        return len(text)

    def receive_frames(self, frames, now):
        raise AssertionError("nothing is received here")

    def handle_timer(self, now):
        raise AssertionError("no timer was asked for")

    def next_timer(self):
        return None

    def events(self):
        events, self._events = self._events, []
        return events

    def to_send(self):
        return []


class ThreadedJournal:
    """Calls back from its own thread."""

    def __init__(self) -> None:
        self.stalled = None
        self.on_failure = None
        self.error: JournalError | None = None
        self.committed: list[bytes | None] = []

    def commit(self, observations, done) -> None:
        self.committed += [observation.raw for observation in observations]
        threading.Thread(target=done, args=(self.error,)).start()


class Transport:
    def send(self, outgoing, made_at):
        raise AssertionError("nothing is sent here")

    def set_reading(self, wanted):
        pass


def drive(journal: ThreadedJournal, failures: list[Exception], make_core: type[Core] = Core) -> tuple[Core, Driver]:
    core = make_core()
    bridge = LoopJournal(journal, lambda error: driver.fail(error))
    driver = Driver(
        core,
        bridge,
        Transport(),
        LoopClock(),
        durability="full",
        on_events=lambda events: None,
        on_failure=failures.append,
    )
    return core, driver


def test_who_asks_gets_the_answer_once_it_is_committed():
    async def run() -> None:
        journal = ThreadedJournal()
        core, driver = drive(journal, [])
        assert await ask(driver, lambda now: core.note(b"abc", now)) == 3
        assert journal.committed == [b"abc"]
        with pytest.raises(ZeroDivisionError):
            await ask(driver, lambda now: now // 0)

    asyncio.run(run())


def test_who_asks_hears_that_the_journal_failed():
    async def run() -> None:
        failures: list[Exception] = []
        journal = ThreadedJournal()
        core, driver = drive(journal, failures)
        journal.error = JournalError("gone")
        with pytest.raises(JournalError, match="gone"):
            await ask(driver, lambda now: core.note(b"abc", now))
        with pytest.raises(JournalError, match="gone"):
            await ask(driver, lambda now: core.note(b"def", now))
        assert failures == [journal.error]

    asyncio.run(run())


def test_a_disk_that_stands_still_holds_up_the_end_for_a_limited_time():
    class StandingJournal(ThreadedJournal):
        def commit(self, observations, done) -> None:
            """Never calls back."""

    async def run() -> None:
        core, driver = drive(StandingJournal(), [])
        driver.call(lambda now: core.note(b"abc", now))
        await come_to_rest(driver, limit_s=0.01)
        assert not driver.is_idle, "the commit is still under way"
        driver.stop()

    asyncio.run(run())


def test_much_input_holds_up_the_end_for_a_limited_time():
    class SlowCore(Core):
        fed = 0

        def receive_frames(self, frames, now):
            for _ in frames:
                self.fed += 1
                time.sleep(0.01)  # longer than the time limit

    async def run() -> None:
        core, driver = drive(ThreadedJournal(), [], SlowCore)
        data = bytes(MAX_TURN_BYTES)
        for _ in range(50):
            driver.receive(data, "link")
        await come_to_rest(driver, limit_s=0.001)
        driver.stop()
        assert 1 <= core.fed < 50

    asyncio.run(run())


def test_failure_that_nobody_waits_for_is_told_in_the_loops_thread():
    async def run() -> None:
        told: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        journal = ThreadedJournal()
        LoopJournal(journal, lambda error: told.set_result(threading.get_ident()))
        threading.Thread(target=journal.on_failure, args=(JournalError("gone"),)).start()
        assert await told == threading.get_ident()

    asyncio.run(run())


def test_timer_fires():
    async def run() -> None:
        clock = LoopClock()
        fired = asyncio.Event()
        clock.call_at(clock.now() + 1000, fired.set)
        clock.call_at(clock.now() + 3_600_000_000, lambda: pytest.fail("cancelled")).cancel()
        await fired.wait()

    asyncio.run(run())


@pytest.mark.parametrize("fails", [False, True])
def test_what_must_be_completed_is_completed_before_a_cancellation_is_raised(fails):
    done = []

    async def close():
        for _ in range(3):
            await asyncio.sleep(0)
        done.append("closed")
        if fails:
            raise OSError("nobody asks")

    async def work():
        task = asyncio.ensure_future(completed(close()))
        while not task.done():
            await asyncio.sleep(0)
            task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert done == ["closed"]
        with pytest.raises(OSError, match="nobody asks") if fails else contextlib.nullcontext():
            await completed(close())

    asyncio.run(work())
