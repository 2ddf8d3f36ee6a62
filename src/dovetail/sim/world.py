"""A world: named processes on one virtual clock and one network, all from one seed.

The world owns the timeline, the network and the processes; only it crashes, pauses, cuts and heals. Nothing happens
outside `run`; requests made in between are scheduled for the current time, in order. Two worlds with the same seed and
the same calls write the same journals, byte for byte.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dovetail.fabrics import name_of
from dovetail.model.errors import LocalProtocolError, UsageError
from dovetail.model.hop import Hop
from dovetail.model.times import SECOND_US
from dovetail.runtime.driver import Driver
from dovetail.sim.clock import START_US, Clock
from dovetail.sim.core import CoreFactory, CrashPoint, DamagedDisks, JournalFactory
from dovetail.sim.damage import Damage
from dovetail.sim.links import Links
from dovetail.sim.memory import MemoryDisks, digest_hops
from dovetail.sim.network import Link, Network
from dovetail.sim.process import ProcessOptions, SimProcess
from dovetail.sim.randomness import Randomness
from dovetail.sim.timeline import Timeline


class World:
    """Add processes, plan what happens to them, then `run`."""

    def __init__(
        self,
        seed: int,
        *,
        link: Link | None = None,
        start_us: int = START_US,
        journal_factory: JournalFactory | None = None,
        driver_class: type[Driver[Any]] = Driver,
    ) -> None:
        self.seed = seed
        self.randomness = Randomness(seed)
        self.timeline = Timeline(start_us)
        self.network = Network(self.timeline, self.randomness, link or Link())
        self.processes: dict[str, SimProcess] = {}
        self.names: dict[str, SimProcess] = {}
        """Processes that links can be opened to: by name, by server URI, and by names that a scenario adds."""
        self.links = Links(self.timeline, self.network, self.names.get)
        self._journal_factory = journal_factory or MemoryDisks()
        self._driver_class = driver_class

    @property
    def now(self) -> int:
        """World time; a process's own clock may differ."""
        return self.timeline.now

    def add_process(
        self,
        name: str,
        factory: CoreFactory,
        *,
        server: str,
        options: ProcessOptions | None = None,
        skew_us: int = 0,
        drift_ppm: int = 0,
    ) -> SimProcess:
        """Add a process to the network and start it; `server` is its URI in the journal and determines the fabric."""
        if name in self.processes:
            raise LocalProtocolError(f"there is a process {name!r} already")
        name_of(server)
        process = SimProcess(
            name,
            factory,
            server=server,
            clock=Clock(self.timeline.start_us, skew_us, drift_ppm),
            options=options or ProcessOptions(),
            timeline=self.timeline,
            network=self.network,
            links=self.links,
            randomness=self.randomness,
            journal_factory=self._journal_factory,
            fail=lambda: self.crash(name, SECOND_US),
            driver_class=self._driver_class,
        )
        self.processes[name] = self.names[name] = self.names[server] = process
        self.network.attach(name, process.take_datagram)
        process.start()
        return process

    def schedule(self, after_us: int, action: Callable[[], object]) -> None:
        """Call `action` after this time."""
        self.timeline.push(self.now + after_us, _call, action, None)

    def command(self, name: str, action: Callable[[Any, int], object], after_us: int = 0) -> None:
        """Call `action(core, now)` at a process, as one turn; a process that is down misses it."""
        process = self.processes[name]
        self.timeline.push(self.now + after_us, _command, process, action)

    def run(self, for_us: int) -> bool:
        """Advance world time; True if no events are left."""
        try:
            return self.timeline.run(self.now + for_us)
        except Exception as error:
            error.add_note(f"in the world of seed {self.seed}, {self.now - self.timeline.start_us} us after its start")
            raise

    # -- faults

    def crash(self, name: str, restart_after_us: int | None = None) -> None:
        """Crash a process now; without a restart it stays down until `restart`. No effect if it is down."""
        process = self.processes[name]
        if not process.is_up:
            return
        process.crash()
        if restart_after_us is not None:
            self.timeline.push(self.now + restart_after_us, _start, process, process.life)

    def crash_on_append(
        self, name: str, append: int, point: CrashPoint, restart_after_us: int | None = SECOND_US
    ) -> None:
        """Crash a process in the turn of its n-th append, counted from 1 over all its lives."""
        if append < 1:
            raise LocalProtocolError(f"crash on append {append}, expected 1 or more")
        self.processes[name].disk.crash_plan[append] = (point, lambda: self.crash(name, restart_after_us))

    def restart(self, name: str) -> None:
        """Start a process that is down."""
        self.processes[name].start()

    def pause(self, name: str, for_us: int) -> None:
        """Suspend a process for a while without killing it: inputs wait, timers are late."""
        self.processes[name].pause(self.now + for_us)

    def jump_clock(self, name: str, by_us: int) -> None:
        """Set a process's clock forwards or backwards."""
        self.processes[name].jump_clock(by_us)

    def fill_disk(self, name: str, for_us: int) -> None:
        """Leave a process no disk space for its journal for a while."""
        disk = self.processes[name].disk
        disk.full_until_us = max(disk.full_until_us, self.now + for_us)

    def slow_disk(self, name: str, commit_us: int, for_us: int) -> None:
        """Make each commit of a process take this long for a while."""
        disk = self.processes[name].disk
        disk.slow_us, disk.slow_until_us = commit_us, self.now + for_us

    def fail_disk(self, name: str) -> None:
        """Make the next commit of a process fail, which ends it; it is restarted."""
        self.processes[name].disk.is_failing = True

    def damage_disk(self, name: str, damage: Damage, restart_after_us: int | None = None) -> None:
        """Crash a process, and make its disk return other bytes than were written."""
        if not isinstance(self._journal_factory, DamagedDisks):
            raise UsageError("damage needs journals in files, and those of this world are in memory")
        self._journal_factory.damage(name, damage)
        self.crash(name, restart_after_us)

    def partition(self, groups: Sequence[Sequence[str]]) -> int:
        """Cut groups of processes from each other and from the rest; the number is for `heal`."""
        number = self.network.partition(groups)
        self.links.notice_cuts()
        return number

    def heal(self, number: int | None = None) -> None:
        """End one partition, or all."""
        self.network.heal(number)
        self.links.notice_cuts()

    # -- results

    def digests(self) -> dict[str, str]:
        """By process: SHA-256 over all hops of its journal."""
        return {name: digest_hops(self.processes[name].hops()) for name in sorted(self.processes)}

    def hops(self) -> dict[str, list[Hop]]:
        """By process: all hops of its journal."""
        return {name: self.processes[name].hops() for name in sorted(self.processes)}

    def close(self) -> None:
        """Close the journals of the processes that are up; call it last."""
        for process in self.processes.values():
            if process.is_up:
                process.journal.close()


def _call(action: Callable[[], object], _: object) -> None:
    action()


def _command(process: SimProcess, action: Callable[[Any, int], object]) -> None:
    process.command(action)


def _start(process: SimProcess, life: int) -> None:
    if process.life == life:
        process.start()
