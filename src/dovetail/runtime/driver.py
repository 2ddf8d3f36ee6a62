"""Drives one core: feeds it, journals what it observed, and sends only what the journal holds.

Theory of operation. Whatever arrives during one iteration of the event loop gathers in the inbox; the first input plans
a turn at its end. A turn feeds it, commits the observations among its `events()`, passes `to_send()` to the transport,
reports the other events, and sets the timer. If much is waiting, a turn feeds only part of it, so that no turn is long.

The gate. While a commit is in flight nothing is fed: the inbox waits, and its next turn is the next group commit. So
the core is never ahead of the disk by more than one turn, and what `to_send()` returns after the commit is covered by
it. While the inbox is over its limit, the transport stops reading from all peers until the inbox has been fed.

    durability  order of a turn                        what a crash can lose
    full        feed, events, commit, to_send, send    nothing that left
    relaxed     feed, to_send, send, events, commit    what the journal had only queued

A core may observe the hand-over (pcp does: `delivered`), once a frame has been sent and the transport has not reported
that it took less. With `full` those observations belong to the next turn, so the journal never says `delivered` of a
frame that did not leave. `relaxed` promises nothing about a crash, so intake and hand-over share one write; the gate
closes only while the journal is full.

There is no asyncio here: clock, journal and transport are small interfaces that call back, all in one thread. So the
simulator and the unit tests run exactly this class.
"""

from __future__ import annotations

import bisect
import enum
import functools
import logging
import operator
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Generic, Literal, Protocol, TypeVar, runtime_checkable

from dovetail.model.durations import Durations
from dovetail.model.errors import DovetailError, JournalError
from dovetail.model.hop import Observation
from dovetail.model.wire import CLOSE_INTERNAL_ERROR, CloseLink, Frame, LinkId, Outgoing

MAX_INBOX_BYTES: Final = 64 << 20
MAX_TURN_BYTES: Final = 1 << 20
"""How much a turn feeds; one frame more may be fed."""
FRAME_BYTES: Final = 160
"""The overhead of a frame in the inbox, beyond its bytes."""
CALL_BYTES: Final = 512
"""The cost of a call in the inbox."""
TURN_BOUNDS_S: Final = (0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)

log = logging.getLogger("dovetail.driver")

Durability = Literal["full", "relaxed"]
Action = Callable[[int], object]
"""An input other than a frame; called with the time."""

E = TypeVar("E")
E_co = TypeVar("E_co", covariant=True)


class Core(Protocol[E_co]):
    """The methods of every core; times are microseconds since 1970."""

    def receive_frames(self, frames: Iterable[Frame], now: int) -> None:
        """Receive frames or datagrams, in order. If one raises, its link is closed and the rest is fed."""

    def handle_timer(self, now: int) -> None:
        """Do what is due; an early call does nothing."""

    def next_timer(self) -> int | None: ...

    def events(self) -> Sequence[E_co]:
        """Drain what happened, including the observations for the journal."""

    def to_send(self) -> Sequence[Outgoing]:
        """Drain what may leave; may observe the hand-over, which the next `events` returns."""


class LinkCore(Core[E_co], Protocol[E_co]):
    """A core whose frames arrive over links."""

    def receive_opened(self, link: LinkId, now: int) -> None:
        """A link that the core requested is open."""

    def receive_closed(self, link: LinkId, now: int) -> None:
        """A link ended, broke, or could not be opened."""


@runtime_checkable
class HandOverCore(Protocol):
    """A core that observes the hand-over of frames, and so must know at once what a link does not take."""

    def receive_broken(self, link: LinkId, now: int) -> None:
        """Hand over nothing more to this link; frames from it may still be fed before `receive_closed`."""

    def receive_paused(self, link: LinkId, unsent_bytes: int, now: int) -> None:
        """The link takes no more, and has not taken `unsent_bytes` of what was sent: those are not handed over."""

    def receive_resumed(self, link: LinkId, now: int) -> None:
        """The link has taken everything; `handle_timer` is due."""


class Journal(Protocol):
    """Where observations become durable."""

    @property
    def stalled(self) -> JournalError | None:
        """Why the journal cannot write now, if so; it retries by itself."""

    def commit(self, observations: Sequence[Observation], done: Callable[[JournalError | None], None]) -> None:
        """Call `done` once they are durable (full) or queued (relaxed: before this returns, if there is room).

        An error is final: it is unknown what is durable, and nothing more will be written.
        """


class Cancellable(Protocol):
    """A scheduled call."""

    def cancel(self) -> None: ...


class Clock(Protocol):
    """Time, and scheduled calls; calls never overlap."""

    def now(self) -> int: ...

    def call_soon(self, action: Callable[[], None]) -> None:
        """Call at the end of this event loop iteration."""

    def call_at(self, when: int, action: Callable[[], None]) -> Cancellable: ...


class Transport(Protocol):
    """Carries frames and datagrams; passes input to `receive`, `receive_opened` and `receive_closed`."""

    def send(self, outgoing: Sequence[Outgoing], made_at: int) -> None:
        """Write; drops what is for a closed link. `made_at` is when the core was fed."""

    def set_reading(self, wanted: bool) -> None:
        """Stop or resume reading from all peers."""


class TurnStats:
    """How long turns took, and how many waited for the journal (relaxed)."""

    def __init__(self) -> None:
        self.times = Durations(TURN_BOUNDS_S)
        self.delayed = 0


class Health(enum.StrEnum):
    """What `/healthz` of every server says."""

    OK = "ok"
    WAITING = "waiting for the disk"
    DRAINING = "draining"
    FAILED = "failed"


class Driver(Generic[E]):
    """Feeds a core, and releases nothing that the journal does not hold.

    `on_events` gets the events that are not observations, once these are committed and the turn is sent. `on_failure`
    is called once with the error that stopped the driver. Without a journal it waits for nothing.
    """

    def __init__(
        self,
        core: Core[E],
        journal: Journal | None,
        transport: Transport,
        clock: Clock,
        *,
        durability: Durability,
        on_events: Callable[[list[E]], None],
        on_failure: Callable[[Exception], None],
        max_inbox_bytes: int = MAX_INBOX_BYTES,
        stats: TurnStats | None = None,
    ) -> None:
        self._core = core
        self._journal = journal
        self._transport = transport
        self._clock = clock
        self._is_full = journal is not None and durability == "full"
        self._on_events = on_events
        self._on_failure = on_failure
        self._max_inbox_bytes = max_inbox_bytes
        self._hand_over = core if isinstance(core, HandOverCore) else None
        self._stats = stats or TurnStats()
        self._inbox: list[Frame] = []
        self._inbox_bytes = 0
        self._calls: list[tuple[int, Action]] = []  # each with its position among the frames of the inbox
        self._waiters: deque[Callable[[Exception | None], None]] = deque()  # one call of `_settle_next` each
        self._settling: list[Callable[[Exception | None], None]] = []
        self._is_awaited = False  # a turn is planned or running
        self._is_gated = False
        self._is_crowded = False
        self._is_draining = False
        self._is_stopped = False
        self._is_due = False
        self._is_handing_over = False  # the next turn observes what was sent
        self._timer: Cancellable | None = None
        self._timer_due: int | None = None
        self.failure: Exception | None = None
        """The error that stopped the driver."""

    def wake(self) -> None:
        """Run a turn soon, as at the start: sends what the core already has to send, and sets its timer."""
        if not self._is_awaited:
            self._plan()

    # Input

    def receive(self, data: bytes, link: LinkId, is_text: bool = False) -> None:
        """Receive a frame or datagram; the hot path."""
        self._inbox.append((data, link, is_text))
        self._inbox_bytes += len(data) + FRAME_BYTES
        if not self._is_awaited:
            self._plan()
        if self._inbox_bytes > self._max_inbox_bytes:
            self._hold_back()

    def receive_all(self, datagrams: Sequence[bytes], link: LinkId) -> None:
        """Receive datagrams of one sender, in order."""
        self._inbox += [(data, link, False) for data in datagrams]
        self._inbox_bytes += sum(map(len, datagrams)) + FRAME_BYTES * len(datagrams)
        if not self._is_awaited:
            self._plan()
        if self._inbox_bytes > self._max_inbox_bytes:
            self._hold_back()

    def call(self, action: Action) -> None:
        """Any other input, in order with the frames; an exception is logged and not propagated."""
        self._calls.append((len(self._inbox), action))
        self._inbox_bytes += CALL_BYTES
        if not self._is_awaited:
            self._plan()
        if self._inbox_bytes > self._max_inbox_bytes:
            self._hold_back()

    def receive_closed(self, link: LinkId, tell: Action) -> None:
        """A link was closed: `tell` reports it to the core, after all frames from this link have been fed.

        While a commit is in flight the core is also told at once that nothing more can be handed over.
        """
        if self._is_gated and self._hand_over is not None:
            self._hand_over.receive_broken(link, self._clock.now())
        self.call(tell)

    def receive_paused(self, link: LinkId, unsent_bytes: int) -> None:
        """The link takes no more: reported to the core at once, even from inside the transport's `send`."""
        if self._hand_over is not None:
            self._hand_over.receive_paused(link, unsent_bytes, self._clock.now())

    def receive_resumed(self, link: LinkId) -> None:
        """The link has taken everything: reported to the core at once, and the timer is due."""
        if self._hand_over is not None:
            self._hand_over.receive_resumed(link, self._clock.now())
            self._is_due = True
            if not self._is_awaited:
                self._plan()

    def when_settled(self, done: Callable[[Exception | None], None]) -> None:
        """Call `done` once everything fed so far is committed and sent, or with the error that stopped the driver."""
        self._waiters.append(done)
        if self._is_stopped:
            self.stop()
        else:
            self.call(self._settle_next)

    def _settle_next(self, _: int) -> None:
        self._settling.append(self._waiters.popleft())

    # State

    @property
    def health(self) -> Health:
        """Whether the driver accepts input and makes it durable."""
        if self.failure is not None:
            return Health.FAILED
        if self._is_draining:
            return Health.DRAINING
        return Health.OK if self.stalled is None else Health.WAITING

    @property
    def stalled(self) -> JournalError | None:
        """Why the journal cannot write now, if so: nothing proceeds until it can."""
        return None if self._journal is None else self._journal.stalled

    @property
    def is_idle(self) -> bool:
        """True if nothing is pending: no input, no commit, nothing to send."""
        return not self._is_awaited

    @property
    def is_crowded(self) -> bool:
        """True if the inbox is over its limit."""
        return self._is_crowded

    @property
    def inbox_bytes(self) -> int:
        """How much input waits to be fed."""
        return self._inbox_bytes

    def drain(self) -> None:
        """Set the health to `draining`; turns continue as before."""
        self._is_draining = True

    def stop(self) -> None:
        """Run no more turns. Pending input is dropped: to keep it, wait until it is settled."""
        self._is_stopped = True
        self._is_gated = True
        self._drop_input()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        waiters = [*self._settling, *self._waiters]
        self._settling = []
        self._waiters.clear()
        for done in waiters:
            done(self.failure or DovetailError("stopped before it was settled"))

    def fail(self, error: Exception) -> None:
        """Stop permanently: nothing more is released, and `on_failure` is called. Only the first failure counts."""
        if self.failure is not None or self._is_stopped:
            return
        if not isinstance(error, DovetailError):  # the caller logs these
            log.critical("the driver stops", exc_info=error)
        self.failure = error
        self.stop()
        self._transport.set_reading(False)
        self._on_failure(error)

    # A turn

    def _plan(self) -> None:
        self._is_awaited = True
        if not self._is_stopped:
            self._clock.call_soon(self._turn)

    def _turn(self) -> None:
        if self._is_stopped:
            return
        try:
            now = self._clock.now()
            self._feed(now)
            self._is_handing_over = False
            if not self._is_full and (outgoing := self._core.to_send()):
                self._transport.send(outgoing, now)
            events = self._core.events()
            observations = [event for event in events if isinstance(event, Observation)]
            if observations and self._journal is not None:
                self._is_gated = True
                self._journal.commit(observations, functools.partial(self._committed, events, len(observations), now))
                if self._is_gated and not (self._is_full or self._is_stopped):
                    self._stats.delayed += 1
            else:
                self._release(events, len(observations), now)
        except Exception as error:
            self.fail(error)

    def _committed(self, events: Sequence[E], observed: int, now: int, error: JournalError | None) -> None:
        if self._is_stopped:
            return
        if error is not None:
            self.fail(error)
            return
        try:
            self._release(events, observed, now)
        except Exception as failure:
            self.fail(failure)

    def _release(self, events: Sequence[E], observed: int, now: int) -> None:
        """Everything observed is in the journal: send, report, set the timer, and allow the next turn."""
        if self._is_full and (outgoing := self._core.to_send()):
            self._transport.send(outgoing, now)
            self._is_handing_over = self._hand_over is not None
        if observed != len(events):
            self._on_events([event for event in events if not isinstance(event, Observation)])
        settled, self._settling = self._settling, []
        for done in settled:
            done(None)
        if self._is_stopped:
            return
        self._arm()
        self._is_gated = False
        self._stats.times.observe((self._clock.now() - now) / 1_000_000)
        if self._inbox or self._calls or self._is_due or self._is_handing_over:
            self._clock.call_soon(self._turn)
        else:
            self._is_awaited = False

    def _feed(self, now: int) -> None:
        frames, calls = self._take_input()
        if self._is_crowded and self._inbox_bytes <= self._max_inbox_bytes // 2:
            self._is_crowded = False
            self._transport.set_reading(True)
        if calls:
            start = 0
            for position, action in calls:
                self._feed_frames(frames[start:position], now)
                start = position
                try:
                    action(now)
                except Exception:
                    log.exception("an input could not be handled")
            frames = frames[start:]
        self._feed_frames(frames, now)
        if self._is_due:
            self._is_due = False
            self._core.handle_timer(now)

    def _take_input(self) -> tuple[list[Frame], list[tuple[int, Action]]]:
        """The oldest input, up to the limit of a turn."""
        frames, calls = self._inbox, self._calls
        if self._inbox_bytes <= MAX_TURN_BYTES:
            self._drop_input()
            return frames, calls
        size = count = 0
        for data, _, _ in frames:
            if size >= MAX_TURN_BYTES:
                break
            size += len(data) + FRAME_BYTES
            count += 1
        last = bisect.bisect_right(calls, count, key=operator.itemgetter(0))
        self._inbox = frames[count:]
        self._calls = [(position - count, action) for position, action in calls[last:]]
        self._inbox_bytes -= size + last * CALL_BYTES
        return frames[:count], calls[:last]

    def _feed_frames(self, frames: list[Frame], now: int) -> None:
        left = iter(frames)
        while frames:
            try:
                self._core.receive_frames(left, now)
                return
            except Exception:
                rest = list(left)
                link = frames[len(frames) - len(rest) - 1][1]
                log.exception("link %s is closed: its frame could not be handled", link)
                self._transport.send([CloseLink(link, CLOSE_INTERNAL_ERROR, "internal error")], now)
                frames = [frame for frame in rest if frame[1] != link]
                left = iter(frames)

    # Limits

    def _hold_back(self) -> None:
        if self._is_stopped:
            self._drop_input()
        elif not self._is_crowded:
            self._is_crowded = True
            self._transport.set_reading(False)

    def _drop_input(self) -> None:
        self._inbox, self._calls, self._inbox_bytes = [], [], 0

    # Time

    def _arm(self) -> None:
        due = self._core.next_timer()
        if due is None or (self._timer_due is not None and self._timer_due <= due):
            return  # an early timer is harmless: it is set again
        if self._timer is not None:
            self._timer.cancel()
        self._timer_due = due
        self._timer = self._clock.call_at(due, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = self._timer_due = None
        self._is_due = True
        if not self._is_awaited:
            self._plan()
