"""A place: one core, its journal and its clock, driven as a shell would drive it.

A turn is: feed one input -> journal the observations -> tell the observer -> send -> re-arm the timer. A place is
ready, or it is up but not ready (paused, or its disk is full), or it is down.

- Not ready: inputs wait in the inbox, timers are late. When it is ready again all inputs are fed in one turn, which is
  one append: the group commit of a busy shell. Datagrams beyond a bound are dropped, as by a socket's buffer.
- Disk full: the append was refused, so nothing of this turn may be told or sent. The place keeps what it could not
  journal, takes no input, and tries again until there is room; then it tells, sends and goes on.
- Crash: the core, the inbox and whatever was not journaled are gone, and all streams break. A crash can be planned for
  the n-th append: before its commit, between commit and send, in the middle of the sends, or after them.
- Start: the journal is opened anew and the factory rebuilds the core from it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from dovetail.model.errors import JournalFull, LocalProtocolError
from dovetail.model.hop import Hop, Observation
from dovetail.model.wire import Datagrams
from dovetail.sim.clock import Clock
from dovetail.sim.core import (
    Boot,
    CoreFactory,
    CrashPoint,
    DatagramCore,
    Journal,
    JournalFactory,
    Observer,
    StreamCore,
)
from dovetail.sim.network import Network
from dovetail.sim.randomness import Randomness
from dovetail.sim.timeline import Act, Timeline

if TYPE_CHECKING:
    from collections.abc import Callable

    from dovetail.sim.streams import End, Streams

MAX_WAITING_DATAGRAMS = 4096
DISK_RETRY_US = 100_000
_MAX_TIMER_SPINS = 1000


class PlaceCounts(msgspec.Struct):
    """What a place did and what it missed."""

    received: int = 0
    appends: int = 0
    crashes: int = 0
    missed: int = 0
    """Inputs that came while the place was down, or that its core cannot take."""
    overflowed: int = 0
    refused_appends: int = 0


class Place:
    """One named place; the world owns it and plans its crashes, starts and pauses."""

    def __init__(
        self,
        name: str,
        factory: CoreFactory,
        *,
        server: str,
        clock: Clock,
        observer: Observer | None,
        timeline: Timeline,
        network: Network,
        exchange: Streams,
        randomness: Randomness,
        journal_factory: JournalFactory,
    ) -> None:
        self.name = name
        self.server = server
        self.clock = clock
        self.counts = PlaceCounts()
        self.core: DatagramCore | StreamCore | None = None
        self.journal: Journal = journal_factory(name, server)
        self.streams: dict[str, End] = {}
        self.life = -1
        self._disk_full_until_us = 0
        self.crash_plan: dict[int, tuple[CrashPoint, Callable[[], None]]] = {}
        self._factory = factory
        self._observer = observer
        self._timeline = timeline
        self._network = network
        self._randomness = randomness
        self._journal_factory = journal_factory
        self._exchange = exchange
        self._datagram_core: DatagramCore | None = None
        self._stream_core: StreamCore | None = None
        self._is_ready = False
        self._paused_until_us = 0
        self._unsaved: Sequence[object] = ()
        self._inbox: deque[tuple[Act, Any, Any]] = deque()
        self._waiting_datagrams = 0
        self._wake_us: int | None = None
        self._fired_us = 0
        self._spins = 0

    # -- life

    @property
    def is_up(self) -> bool:
        """Whether the place runs, ready or not."""
        return self.core is not None

    @property
    def takes_streams(self) -> bool:
        """Whether somebody who knocks here is let in."""
        return self._stream_core is not None

    @property
    def now(self) -> int:
        """What the place's own clock shows."""
        return self.clock.read(self._timeline.now)

    def hops(self) -> list[Hop]:
        """All that is journaled, also while the place is down."""
        if self.core is not None:
            return list(self.journal.hops())
        journal = self._journal_factory(self.name, self.server)
        try:
            return list(journal.hops())
        finally:
            journal.close()

    def start(self) -> None:
        """Begin a life: build the core from the journal; its first turn comes with the next event."""
        if self.core is not None:
            return
        self.life += 1
        if self.life:
            self.journal = self._journal_factory(self.name, self.server)
        chance = self._randomness.stream(f"place\0{self.name}\0{self.life}")
        core = self._factory(Boot(self.name, self.server, self.journal, self.now, self.life, chance))
        self.core = core
        self._datagram_core = core if isinstance(core, DatagramCore) else None
        self._stream_core = core if isinstance(core, StreamCore) else None
        self._is_ready = True
        self._timeline.push(self._timeline.now, self._first_turn, self.life, None)

    def crash(self) -> None:
        """End a life: everything in memory is gone."""
        if self.core is None:
            return
        self.counts.crashes += 1
        self.core = self._datagram_core = self._stream_core = None
        self._is_ready = False
        self._paused_until_us = 0
        self._unsaved = ()
        self._inbox.clear()
        self._waiting_datagrams = 0
        self._wake_us = None
        self.journal.close()
        self._exchange.break_all_of(self)

    def pause(self, until_us: int) -> None:
        """Take no input and fire no timer until then."""
        if self.core is not None and until_us > self._paused_until_us:
            self._paused_until_us = until_us
            self._is_ready = False
            self._timeline.push(until_us, self._resume, self.life, None)

    def jump_clock(self, by_us: int) -> None:
        """Set the clock forwards or backwards."""
        self.clock.skew_us += by_us
        if self._is_ready:
            self._wake_us = None
            self._arm()

    def fill_disk(self, until_us: int) -> None:
        """Leave the journal no room until then."""
        self._disk_full_until_us = max(self._disk_full_until_us, until_us)

    # -- input

    def take_datagram(self, data: bytes, sender: str) -> None:
        """A datagram arrived."""
        core = self._datagram_core
        if core is None:
            self.counts.missed += 1
        elif self._is_ready:
            self.counts.received += 1
            core.receive_datagram(data, sender, self.clock.read(self._timeline.now))
            self._settle()
        elif self._waiting_datagrams < MAX_WAITING_DATAGRAMS:
            self._waiting_datagrams += 1
            self._inbox.append((self._feed_datagram, data, sender))
        else:
            self.counts.overflowed += 1

    def take(self, feed: Act, a: object, b: object) -> None:
        """Anything else arrived: feed it now, or when the place is ready."""
        if self._is_ready:
            self.counts.received += 1
            feed(a, b)
            self._settle()
        elif self.core is not None:
            self._inbox.append((feed, a, b))
        else:
            self.counts.missed += 1

    def _feed_datagram(self, data: bytes, sender: str) -> None:
        assert self._datagram_core is not None, "only a datagram core's inbox has datagrams"
        self._datagram_core.receive_datagram(data, sender, self.now)

    def feed_command(self, action: Callable[[Any, int], object], _: object) -> None:
        """An application, owner or client of the scenario calls the core."""
        action(self.core, self.now)

    def feed_accepted(self, stream: str, end: End) -> None:
        """A stream was opened to this place."""
        if self._stream_core is not None:
            self._stream_core.receive_accepted(stream, end.peer.place.name, end.label, self.now)

    def feed_opened(self, stream: str, peer: str) -> None:
        """A stream that this place asked for is open."""
        if self._stream_core is not None:
            self._stream_core.receive_opened(stream, peer, self.now)

    def feed_frame(self, data: bytes, stream: str) -> None:
        """A frame arrived, unless this place closed the stream in the meantime."""
        if self._stream_core is not None and stream in self.streams:
            self._stream_core.receive_frame(data, stream, self.now)

    def feed_closed(self, stream: str, code: int) -> None:
        """A stream ended, unless this place closed it first."""
        if self._stream_core is not None and self.streams.pop(stream, None) is not None:
            self._stream_core.receive_closed(stream, code, self.now)

    # -- the turn

    def _settle(self) -> None:
        """Journal, tell, send, re-arm: what follows every feeding."""
        core = self.core
        if core is None:
            return
        events = core.events()
        if events and not self._save(events):
            return
        outgoing = core.to_send()
        if outgoing:
            self._send(outgoing)
        self._arm()

    def _save(self, events: Sequence[object]) -> bool:
        """Journal the observations and tell the rest; False if the turn ends here."""
        core = self.core
        assert core is not None, "a place that saves is up"
        observations = [event for event in events if isinstance(event, Observation)]
        point, crash = None, None
        if observations:
            if self._timeline.now < self._disk_full_until_us:
                return self._stall(events)
            point, crash = self.crash_plan.get(self.counts.appends + 1, (None, None))
            if point is not CrashPoint.BEFORE_COMMIT:
                try:
                    self.journal.append(observations)
                except JournalFull:
                    return self._stall(events)
            self.counts.appends += 1
            if crash is not None and point in (CrashPoint.BEFORE_COMMIT, CrashPoint.AFTER_COMMIT):
                crash()
                return False
        if self._observer is not None and len(observations) < len(events):
            now = self.now
            for event in events:
                if not isinstance(event, Observation):
                    self._observer(self.name, event, now)
                if core is not self.core:
                    return False  # the observer crashed this place
        if crash is None:
            return True
        outgoing = core.to_send()
        self._send(outgoing[: len(outgoing) // 2] if point is CrashPoint.MID_SEND else outgoing)
        crash()
        return False

    def _send(self, outgoing: Sequence[Any]) -> None:
        name = self.name
        send_datagram = self._network.send_datagram
        for item in outgoing:
            if isinstance(item, tuple):
                send_datagram(name, item[0], item[1])
            elif isinstance(item, Datagrams):
                for data in item.datagrams:
                    send_datagram(name, item.endpoint, data)
            else:
                self._exchange.send(self, item)

    def _arm(self) -> None:
        """Plan a wake-up for the core's next timer, unless one is planned that comes early enough."""
        assert self.core is not None, "a place that arms its timer is up"
        due = self.core.next_timer()
        if due is None:
            return
        now = self._timeline.now
        due_us = max(self.clock.when(due), now)
        if self._wake_us is None or due_us < self._wake_us:
            self._wake_us = due_us
            self._timeline.push(due_us, self._wake, due_us, None)

    def _wake(self, planned_us: int, _: object) -> None:
        if planned_us != self._wake_us or self.core is None:
            return
        self._wake_us = None
        if not self._is_ready:
            return
        due = self.core.next_timer()
        now = self.now
        if due is None or due > now:
            self._arm()
            return
        self._spins = self._spins + 1 if planned_us == self._fired_us else 0
        self._fired_us = planned_us
        if self._spins > _MAX_TIMER_SPINS:
            raise LocalProtocolError(f"{self.name} wants its timer more than {_MAX_TIMER_SPINS} times in a microsecond")
        self.core.handle_timer(now)
        self._settle()

    # -- not ready, and ready again

    def _first_turn(self, life: int, _: object) -> None:
        if life == self.life and self._is_ready:
            self._settle()

    def _stall(self, events: Sequence[object]) -> bool:
        self.counts.refused_appends += 1
        self._unsaved = events
        self._is_ready = False
        self._timeline.push(self._timeline.now + DISK_RETRY_US, self._retry, self.life, None)
        return False

    def _retry(self, life: int, _: object) -> None:
        if life != self.life or not self._unsaved or self._paused_until_us > self._timeline.now:
            return
        events, self._unsaved = self._unsaved, ()
        if self._save(events):
            assert self.core is not None, "a place that saves is up"
            self._send(self.core.to_send())
            self._become_ready()

    def _resume(self, life: int, _: object) -> None:
        if life != self.life or self.core is None or self._timeline.now < self._paused_until_us:
            return
        if self._unsaved:
            self._retry(life, None)
        else:
            self._become_ready()

    def _become_ready(self) -> None:
        """Feed all that waited and settle it in one turn; a late timer fires right after."""
        self._is_ready = True
        inbox, self._inbox = self._inbox, deque()
        self._waiting_datagrams = 0
        life = self.life
        for feed, a, b in inbox:
            if self.core is None or self.life != life:
                return  # a command crashed this place
            self.counts.received += 1
            feed(a, b)
        self._settle()
