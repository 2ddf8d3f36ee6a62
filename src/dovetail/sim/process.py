"""A simulated process: a core, its journal, its clock and its links, run by the same driver as every server.

- Paused: nothing runs, timers are late; input waits, datagrams up to a limit, as in a socket buffer. On resuming, all
  of it is fed in one turn, which is one commit.
- Disk full: the journal stalls, so the driver's gate stays closed.
- A failing disk ends the process, which is restarted.
- Crash: the core, its input and everything not durable are lost, and all links break. A crash can be planned for the
  n-th commit: before it, between it and the sends, amid the sends, or after them.
- Start: the journal is opened again and the factory rebuilds the core from it.
- A full link accepts nothing: what is written to it waits here, and is lost if the link ends.

All output is checked: with durability `full` nothing may leave while the core holds an input whose observations are not
durable.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from dovetail.model.errors import JournalError
from dovetail.model.hop import Hop, Reason
from dovetail.model.wire import CLOSE_ABNORMAL, CloseLink, Datagrams, LinkId, OpenLink, Outgoing, SendFrames
from dovetail.runtime.driver import Driver, Durability, HandOverCore
from dovetail.runtime.frames import encode_frames
from dovetail.sim.clock import Clock, ProcessClock
from dovetail.sim.core import (
    Boot,
    CoreFactory,
    Crashed,
    CrashPoint,
    Journal,
    JournalFactory,
    Observer,
    OnAccepted,
    OnClosed,
    WatchedCore,
)
from dovetail.sim.invariants import Finding
from dovetail.sim.journal import Disk, SimJournal
from dovetail.sim.links import End, EndState, Links
from dovetail.sim.network import Network
from dovetail.sim.randomness import Randomness
from dovetail.sim.timeline import Timeline

MAX_WAITING_DATAGRAMS = 4096
MAX_FINDINGS = 20
COMMIT_US = (0, 30_000)


class ProcessCounts(msgspec.Struct):
    """Counts of what a process did and missed."""

    crashes: int = 0
    missed: int = 0
    """Inputs that arrived while the process was down, or that its core does not accept."""
    overflowed: int = 0


class ProcessOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a process is run."""

    durability: Durability = "full"
    commit_us: tuple[int, int] = COMMIT_US
    max_inbox_bytes: int = 64 << 20
    on_accepted: OnAccepted | None = None
    on_closed: OnClosed = lambda core, link, _code, _unsent, now: core.receive_closed(link, now)
    observer: Observer | None = None
    name_frame: Callable[[bytes], str] | None = None
    """The message that a frame carries, in whatever version; if given, each outgoing one must be durable."""
    is_text: Callable[[bytes], bool] = lambda _: False
    """Whether a received frame is a text frame."""


class SimProcess:
    """One named process; the world owns it and plans its crashes, starts and pauses."""

    def __init__(
        self,
        name: str,
        factory: CoreFactory,
        *,
        server: str,
        clock: Clock,
        options: ProcessOptions,
        timeline: Timeline,
        network: Network,
        links: Links,
        randomness: Randomness,
        journal_factory: JournalFactory,
        fail: Callable[[], None],
        driver_class: type[Driver[Any]] = Driver,
    ) -> None:
        self.name = name
        self.server = server
        self.clock = clock
        self.options = options
        self.counts = ProcessCounts()
        self.disk = Disk(randomness.stream(f"disk\0{name}"), options.commit_us, options.name_frame)
        self.journal: Journal = journal_factory(name, server)
        self.ends: dict[LinkId, End] = {}
        self.life = -1
        self.fail = fail
        """Ends the process because its journal failed, and has it restarted."""
        self._kept: list[Hop] = []
        self.findings: list[Finding] = []
        self.driver_class = driver_class
        self.left: set[tuple[str, str]] = set()
        """Named frames that were sent, each with the label of its link."""
        self.doubtful: set[tuple[str, str]] = set()
        """Those that were sent but not journaled as handed over because of a crash: they may be sent again."""
        self._factory = factory
        self._timeline = timeline
        self._network = network
        self._links = links
        self._randomness = randomness
        self._journal_factory = journal_factory
        self._running: _Life | None = None

    # -- life

    @property
    def is_up(self) -> bool:
        """True if the process runs, paused or not."""
        return self._running is not None

    @property
    def core(self) -> Any:
        """The core; None while the process is down."""
        return None if self._running is None else self._running.core

    @property
    def is_durable(self) -> bool:
        """True if everything the core observed is in the journal."""
        return self._running is not None and not (self._running.journal.is_busy or self._running.watched.is_ahead)

    @property
    def takes_links(self) -> bool:
        """True if the process accepts new links."""
        return self._running is not None and self.options.on_accepted is not None

    @property
    def now(self) -> int:
        """The reading of the process's own clock."""
        return self.clock.read(self._timeline.now)

    def hops(self) -> list[Hop]:
        """All journaled hops, even while the process is down; flushes the journal first."""
        if self._running is not None:
            self._running.journal.flush()
            return list(self.journal.hops())
        journal = self._journal_factory(self.name, self.server)
        try:
            return list(journal.hops())
        finally:
            journal.close()

    def start(self) -> None:
        """Begin a life: build the core from the journal; its first turn comes with the next event."""
        if self._running is not None:
            return
        self.life += 1
        if self.life:
            self.journal = self._journal_factory(self.name, self.server)
            self._check_kept()
        chance = self._randomness.stream(f"process\0{self.name}\0{self.life}")
        core = self._factory(Boot(self.name, self.server, self.journal, self.now, self.life, chance))
        self._running = _Life(self, core, self._timeline, self._network, self._links)
        self._running.driver.wake()

    def crash(self) -> None:
        """End a life: everything in memory is lost."""
        if self._running is None:
            return
        running, self._running = self._running, None
        self.counts.crashes += 1
        running.end()
        self.doubtful |= self.left - self.disk.handed
        self._kept = list(self.journal.hops())
        self.journal.close()
        self._links.break_all_of(self)

    def _check_kept(self) -> None:
        """Check that everything the last life made durable is still there, or that a hop records the loss."""
        found = list(self.journal.hops())
        if found != self._kept and (
            not found or found[-1].reason is not Reason.HOPS_LOST or found[:-1] != self._kept[: len(found) - 1]
        ):
            self.report("disk", f"had {len(self._kept)} hops, was opened with {len(found)}, other ones or not named")

    def pause(self, until_us: int) -> None:
        """Take no input and fire no timer until then."""
        if self._running is not None:
            self._running.pause(until_us)

    def jump_clock(self, by_us: int) -> None:
        """Set the clock forwards or backwards."""
        self.clock.skew_us += by_us

    def fill_link(self, label: str, *, is_full: bool) -> None:
        """Make the links with this label accept nothing, or everything again."""
        if self._running is not None:
            self._running.fill_link(label, is_full=is_full)

    # -- input

    def take_datagram(self, data: bytes, sender: str) -> None:
        """A datagram arrived."""
        if self._running is None:
            self.counts.missed += 1
        else:
            self._running.take_datagram(data, sender)

    def command(self, action: Callable[[Any, int], object]) -> None:
        """Call the core as an application, owner or client of the scenario."""
        self._take(lambda life: life.call(lambda now: action(life.core, now)))

    def link_accepted(self, link: LinkId, label: str) -> None:
        """A link was opened to this process."""
        accept = self.options.on_accepted
        assert accept is not None, "the process takes links"
        self._take(lambda life: life.call(lambda now: accept(life.core, link, label, now)))

    def link_opened(self, link: LinkId) -> None:
        """A link that this process requested is open."""
        self._take(lambda life: life.call(lambda now: life.core.receive_opened(link, now)))

    def link_frame(self, data: bytes, link: LinkId) -> None:
        """A frame arrived, unless this process has since closed the link."""
        is_text = self.options.is_text(data)
        self._take(lambda life: life.driver.receive(data, link, is_text) if link in self.ends else None)

    def link_closed(self, link: LinkId, code: int) -> None:
        """A link ended, unless this process closed it first. Writing reveals a broken one too."""
        self._take(
            lambda life: life.report_closed(link, code, end.label) if (end := self.ends.pop(link, None)) else None,
            is_read=code != CLOSE_ABNORMAL,
        )

    def _take(self, feed: Callable[[_Life], None], *, is_read: bool = True) -> None:
        if self._running is None:
            self.counts.missed += 1
        else:
            self._running.take(functools.partial(feed, self._running), is_read=is_read)

    def report(self, rule: str, detail: str) -> None:
        """Record a broken rule, up to a limit."""
        if len(self.findings) < MAX_FINDINGS:
            self.findings.append(Finding(rule=rule, server=self.server, seq=None, detail=detail))


class _Life:
    """One life of a process: the core with its driver, and the transport between it and the network."""

    def __init__(self, process: SimProcess, core: Any, timeline: Timeline, network: Network, links: Links) -> None:
        options = process.options
        self.core = core
        self.watched = WatchedCore(core)
        self._process = process
        self._timeline = timeline
        self._network = network
        self._links = links
        self._is_alive = True
        self._is_reading = True
        self._paused_until_us = 0
        self._waiting: deque[tuple[Callable[[], None], bool]] = deque()
        self._waiting_datagrams = 0
        self._late: list[Callable[[], None]] = []
        self._full: dict[str, list[tuple[LinkId, bytes]]] = {}
        self._unsent: list[tuple[LinkId, bytes]] = []
        self._crash_at: tuple[CrashPoint, Callable[[], None]] | None = None
        self._is_full = options.durability == "full"
        self.journal = SimJournal(
            process.journal, process.disk, options.durability, timeline, self.run, self._crash, self._fail_journal
        )
        self.driver: Driver[Any] = process.driver_class(
            self.watched,
            self.journal,
            self,
            ProcessClock(process.name, process.clock, timeline, self.run),
            durability=options.durability,
            on_events=self._observe,
            on_failure=self._fail,
            max_inbox_bytes=options.max_inbox_bytes,
        )

    def end(self) -> None:
        """Stop everything of this life."""
        self._is_alive = False
        self.driver.stop()
        self.journal.give_up()

    def run(self, action: Callable[[], None], _: Any = None) -> None:
        """Run an action in this life: now, or when it is no longer paused; never after its end."""
        if not self._is_alive:
            return
        if self._timeline.now < self._paused_until_us:
            self._late.append(action)
            return
        try:
            action()
        except Crashed:
            return
        if self.watched.error is not None and self._is_alive:
            raise self.watched.error

    def pause(self, until_us: int) -> None:
        """Suspend this life until then."""
        if until_us > self._paused_until_us:
            self._paused_until_us = until_us
            self._timeline.push(until_us, self._go_on, None, None)

    def _go_on(self, _a: object, _b: object) -> None:
        if self._is_alive and self._timeline.now >= self._paused_until_us:
            self._take_waiting()
            late, self._late = self._late, []
            for action in late:
                self.run(action)

    # -- input

    def take(self, action: Callable[[], None], *, is_read: bool = True) -> None:
        """Feed an input now, or once the process runs and, if the input must be read, reads."""
        if self._timeline.now < self._paused_until_us or (is_read and not self._is_reading):
            self._waiting.append((action, is_read))
        else:
            self.run(action)

    def take_datagram(self, data: bytes, sender: str) -> None:
        """Like `take`, with a bounded buffer."""
        if self._timeline.now < self._paused_until_us or not self._is_reading:
            if self._waiting_datagrams >= MAX_WAITING_DATAGRAMS:
                self._process.counts.overflowed += 1
                return
            self._waiting_datagrams += 1
        self.take(lambda: self.driver.receive(data, sender))

    def call(self, action: Callable[[int], object]) -> None:
        """Feed any input except a frame."""
        self.driver.call(lambda now: self.watched.feed(action, now))

    def report_closed(self, link: LinkId, code: int, label: str) -> None:
        """Report the end of a link; what waited for room in it is lost."""
        unsent = []
        for waiting in (self._unsent, self._full.get(label, [])):
            unsent += [data for name, data in waiting if name == link]
            waiting[:] = [entry for entry in waiting if entry[0] != link]
        size, told = len(encode_frames(unsent, False)), self._process.options.on_closed
        self.driver.receive_closed(
            link, lambda now: self.watched.feed(lambda now: told(self.core, link, code, size, now), now)
        )

    def _label(self, link: LinkId) -> str:
        end = self._process.ends.get(link)
        return "" if end is None else end.label

    def _take_waiting(self) -> None:
        waiting, self._waiting, self._waiting_datagrams = self._waiting, deque(), 0
        for action, is_read in waiting:
            self.take(action, is_read=is_read)

    # -- what the driver calls

    def set_reading(self, wanted: bool) -> None:
        """Stop or resume taking input from the network."""
        self._is_reading = wanted
        if wanted and self._is_alive:
            self._timeline.push(self._timeline.now, self.run, self._take_waiting, None)

    def send(self, outgoing: Sequence[Outgoing], made_at: int) -> None:  # noqa: ARG002
        """Send everything, up to the point where a crash is planned."""
        if self._crash_at is None:
            self._send(outgoing)
            return
        (point, crash), self._crash_at = self._crash_at, None
        self._send(outgoing[: len(outgoing) // 2] if point is CrashPoint.MID_SEND else outgoing)
        crash()
        raise Crashed

    def _send(self, outgoing: Sequence[Outgoing]) -> None:
        process = self._process
        is_early = self._is_full and (self.watched.is_ahead or self.journal.is_busy)
        for item in outgoing:
            if is_early and not isinstance(item, CloseLink):
                process.report("commit_first", f"{type(item).__name__} left before a commit")
            match item:
                case Datagrams(endpoint, datagrams):
                    for data in datagrams:
                        self._network.send_datagram(process.name, endpoint, data)
                case SendFrames(links, frames):
                    for link in links:
                        self._write(link, frames)
                case OpenLink():
                    self._links.open(process, item)
                case CloseLink():
                    if isinstance(self.core, HandOverCore) and item.link in process.ends:  # told when it is gone
                        tell = functools.partial(self.report_closed, item.link, CLOSE_ABNORMAL, self._label(item.link))
                        self._timeline.push(self._timeline.now, self.run, tell, None)
                    self._links.close(process, item)

    def _write(self, link: LinkId, frames: Sequence[bytes]) -> None:
        label = self._label(link)
        if label in self._full and link in self._process.ends:
            self._full[label] += [(link, data) for data in frames]
            self.driver.receive_paused(link, len(encode_frames(frames, False)))
            return
        for data in frames:
            self._leave(link, label, data)

    def _leave(self, link: LinkId, label: str, data: bytes) -> None:
        process, name_frame = self._process, self._process.options.name_frame
        # a kernel accepts writes to a link that the other end has closed, until the close is read
        is_taken = self._links.send(process, link, data) or link in process.ends
        if is_taken and name_frame is not None:
            name = name_frame(data)
            process.left.add((name, label))
            if self._is_full and name not in process.disk.durable:
                process.report("commit_first", f"{name} left, and the journal does not have it")

    def fill_link(self, label: str, *, is_full: bool) -> None:
        """Make links with this label accept nothing, or everything held and new."""
        self.run(functools.partial(self._fill_link, label, is_full))

    def _fill_link(self, label: str, is_full: bool) -> None:
        ends = self._process.ends
        links = [name for name, end in ends.items() if end.label == label and end.state is not EndState.CLOSED]
        if is_full and label not in self._full:
            self._full[label] = []
            for link in links:
                self.driver.receive_paused(link, 0)
        elif not is_full and label in self._full:
            for link, data in self._full.pop(label):
                if link in links:
                    self._leave(link, label, data)
                else:  # it is broken, and the core is about to be notified
                    self._unsent.append((link, data))
            for link in links:
                self.driver.receive_resumed(link)

    def _observe(self, events: list[Any]) -> None:
        observer, process = self._process.options.observer, self._process
        for event in events:
            if observer is not None and self._is_alive:
                observer(process.name, event, process.now)

    def _fail(self, error: Exception) -> None:
        if isinstance(error, JournalError):  # as a supervisor does when a server ends
            self._process.fail()
            raise Crashed
        self.watched.error = self.watched.error or error

    def _fail_journal(self, error: JournalError) -> None:
        self.driver.fail(error)

    def _crash(self, point: CrashPoint, crash: Callable[[], None]) -> None:
        """Called by the journal at the point where a crash is planned."""
        if point in (CrashPoint.MID_SEND, CrashPoint.AFTER_SEND) and self._is_full:
            self._crash_at = (point, crash)
            self._timeline.push(self._timeline.now, self.run, self._crash_anyway, None)
            return
        crash()
        raise Crashed

    def _crash_anyway(self) -> None:
        if self._crash_at is not None:  # there was nothing to send
            (_, crash), self._crash_at = self._crash_at, None
            crash()
            raise Crashed
