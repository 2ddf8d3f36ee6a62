"""A world: named places on one virtual clock and one network, all from one seed.

The world owns the timeline, the network and the places, and is the only hand that crashes, pauses, cuts and heals.
Nothing happens outside `run`; whatever is asked for in the meantime is planned for the present moment and happens in
the order of asking. Two worlds with the same seed and the same calls write the same journals, byte for byte.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dovetail.fabrics import name_of
from dovetail.model.errors import LocalProtocolError
from dovetail.model.hop import Hop
from dovetail.sim.clock import START_US, Clock
from dovetail.sim.core import CoreFactory, CrashPoint, JournalFactory, Observer
from dovetail.sim.memory import MemoryDisks, digest_hops
from dovetail.sim.network import Link, Network
from dovetail.sim.process import Place
from dovetail.sim.randomness import Randomness
from dovetail.sim.streams import Streams
from dovetail.sim.timeline import Timeline

SECOND_US = 1_000_000


class World:
    """Add places, plan what shall happen to them, then `run`."""

    def __init__(
        self,
        seed: int,
        *,
        link: Link | None = None,
        start_us: int = START_US,
        journal_factory: JournalFactory | None = None,
    ) -> None:
        self.seed = seed
        self.randomness = Randomness(seed)
        self.timeline = Timeline(start_us)
        self.network = Network(self.timeline, self.randomness, link or Link())
        self.places: dict[str, Place] = {}
        self.streams = Streams(self.timeline, self.network, self.places)
        self._journal_factory = journal_factory or MemoryDisks()

    @property
    def now(self) -> int:
        """World time; a place's own clock may differ."""
        return self.timeline.now

    def add_place(
        self,
        name: str,
        factory: CoreFactory,
        *,
        server: str,
        fabric: str | None = None,
        observer: Observer | None = None,
        skew_us: int = 0,
        drift_ppm: int = 0,
    ) -> Place:
        """Put a place on the network and start it; `server` is its URI in the journal, and decides the fabric."""
        if name in self.places:
            raise LocalProtocolError(f"there is a place {name!r} already")
        if fabric not in (None, name_of(server)):
            raise LocalProtocolError(f"{server} is no server of {fabric}")
        place = Place(
            name,
            factory,
            server=server,
            clock=Clock(self.timeline.start_us, skew_us, drift_ppm),
            observer=observer,
            timeline=self.timeline,
            network=self.network,
            exchange=self.streams,
            randomness=self.randomness,
            journal_factory=self._journal_factory,
        )
        self.places[name] = place
        self.network.attach(name, place.take_datagram)
        place.start()
        return place

    def schedule(self, after_us: int, action: Callable[[], object]) -> None:
        """Call `action` so long after now."""
        self.timeline.push(self.now + after_us, _call, action, None)

    def command(self, name: str, action: Callable[[Any, int], object], after_us: int = 0) -> None:
        """Call `action(core, now)` at a place, as one turn; a place that is down misses it."""
        place = self.places[name]
        self.timeline.push(self.now + after_us, _command, place, action)

    def run(self, for_us: int) -> bool:
        """Let world time go on; True if nothing is left to happen."""
        try:
            return self.timeline.run(self.now + for_us)
        except Exception as error:
            error.add_note(f"in the world of seed {self.seed}, {self.now - self.timeline.start_us} us after its start")
            raise

    # -- misfortune

    def crash(self, name: str, restart_after_us: int | None = None) -> None:
        """Crash a place now; without a restart it stays down until `restart`. Nothing changes if it is down."""
        place = self.places[name]
        if not place.is_up:
            return
        place.crash()
        if restart_after_us is not None:
            self.timeline.push(self.now + restart_after_us, _start, place, place.life)

    def crash_on_append(
        self, name: str, append: int, point: CrashPoint, restart_after_us: int | None = SECOND_US
    ) -> None:
        """Crash a place in the turn of its n-th append, counted from 1 over all its lives."""
        if append < 1:
            raise LocalProtocolError(f"crash on append {append}, expected 1 or more")
        self.places[name].crash_plan[append] = (point, lambda: self.crash(name, restart_after_us))

    def restart(self, name: str) -> None:
        """Start a place that is down."""
        self.places[name].start()

    def pause(self, name: str, for_us: int) -> None:
        """Stop a place for a while without killing it: inputs wait, timers are late."""
        self.places[name].pause(self.now + for_us)

    def jump_clock(self, name: str, by_us: int) -> None:
        """Set a place's clock forwards or backwards."""
        self.places[name].jump_clock(by_us)

    def fill_disk(self, name: str, for_us: int) -> None:
        """Leave a place no room for its journal for a while."""
        self.places[name].fill_disk(self.now + for_us)

    def partition(self, groups: Sequence[Sequence[str]]) -> int:
        """Cut groups of places from each other and from the rest; the number is for `heal`."""
        number = self.network.partition(groups)
        self.streams.notice_cuts()
        return number

    def heal(self, number: int | None = None) -> None:
        """End one partition, or all."""
        self.network.heal(number)
        self.streams.notice_cuts()

    # -- what came of it

    def digests(self) -> dict[str, str]:
        """By place: SHA-256 over all hops of its journal."""
        return {name: digest_hops(self.places[name].hops()) for name in sorted(self.places)}

    def hops(self) -> dict[str, list[Hop]]:
        """By place: all hops of its journal."""
        return {name: self.places[name].hops() for name in sorted(self.places)}

    def close(self) -> None:
        """Close the journals of the places that are up; call it last."""
        for place in self.places.values():
            if place.is_up:
                place.journal.close()


def _call(action: Callable[[], object], _: object) -> None:
    action()


def _command(place: Place, action: Callable[[Any, int], object]) -> None:
    place.take(place.feed_command, action, None)


def _start(place: Place, life: int) -> None:
    if place.life == life:
        place.start()
