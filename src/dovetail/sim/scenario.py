"""Runs a world from a seed with faults until it is quiet, and reports the result.

A scenario adds processes to a world, plans the traffic of a setting, and can say whether everything promised has
arrived, and what is wrong. One that is not in SCENARIOS is named by its builder, `module:function`.
"""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, cast

import msgspec

from dovetail.model.errors import UsageError
from dovetail.model.hop import Hop
from dovetail.model.times import SECOND_US
from dovetail.runtime.driver import Driver, Durability
from dovetail.sim.core import JournalFactory
from dovetail.sim.faults import ALL, AnyFault, apply_faults, draw_faults, end_of
from dovetail.sim.invariants import Finding, check_journals
from dovetail.sim.links import LinkCounts
from dovetail.sim.network import Link, NetworkCounts
from dovetail.sim.randomness import Randomness
from dovetail.sim.world import World

GRACE_US = 120 * SECOND_US
"""How long after the traffic and the last fault a world may take to settle."""
_LOOK_EVERY_US = SECOND_US // 4
MAX_PLACES = 10_000
FULL_SHARE = 0.6

SCENARIOS: dict[str, str] = {
    "pcp": "dovetail.sim.pcp_scenario:PcpScenario",
    "won": "dovetail.sim.won_scenario:WonScenario",
    "swarm": "dovetail.sim.swarm_scenario:SwarmScenario",
}
"""Name -> module and class of the scenario."""


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """The size of a scenario: a builder makes this many processes, and traffic for this long."""

    places: int = 3
    duration_us: int = 10 * SECOND_US
    durability: Durability | None = None
    """Durability of the servers; drawn from the seed if not given."""
    is_hostile: bool = False
    """Use limits so small that traffic hits them all the time."""
    grace_us: int = GRACE_US

    def draw_durability(self, randomness: Randomness) -> Durability:
        """The durability of the servers in the world of this seed."""
        is_full = randomness.stream("durability").random() < FULL_SHARE
        return self.durability or ("full" if is_full else "relaxed")


class Scenario(Protocol):
    """Processes and traffic in a world."""

    def is_settled(self) -> bool:
        """True if everything that must arrive has arrived; polled while the world runs."""

    def findings(self, hops: Mapping[str, Sequence[Hop]]) -> list[Finding]:
        """Faults found at the end, beyond the general invariants."""

    def facts(self) -> dict[str, int]:
        """Numbers for the report."""


Builder = Callable[[World, Setting], Scenario]


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one run; runs with equal reports wrote equal journals."""

    scenario: str
    seed: int
    places: int
    faults: list[AnyFault]
    is_settled: bool
    virtual_us: int
    events: int
    hops: int
    appends: int
    crashes: int
    missed: int
    network: NetworkCounts
    links: LinkCounts
    facts: dict[str, int]
    findings: list[Finding]
    digests: dict[str, str]
    digest: str


def run_scenario(
    name: str,
    seed: int,
    *,
    setting: Setting | None = None,
    faults: Sequence[AnyFault] | str = (),
    link: Link | None = None,
    journal_factory: JournalFactory | None = None,
    driver_class: type[Driver[Any]] = Driver,
) -> Report:
    """Build, run until settled or out of time, check, report; faults are a schedule or a text for `draw_schedule`."""
    setting = setting or Setting()
    world = World(seed, link=link, journal_factory=journal_factory, driver_class=driver_class)
    try:
        scenario = find_builder(name)(world, setting)
        if isinstance(faults, str):
            faults = draw_schedule(faults, world.randomness, list(world.processes), setting.duration_us)
        apply_faults(world, faults)
        _run_until_settled(world, scenario, max(setting.duration_us, end_of(faults)), setting.grace_us)
        return _report(name, world, scenario, list(faults))
    finally:
        world.close()


def find_builder(name: str) -> Builder:
    """The builder of a scenario, by its name in SCENARIOS or as `module:function`; imported only now."""
    module, _, function = SCENARIOS.get(name, name).partition(":")
    try:
        return cast(Builder, getattr(importlib.import_module(module), function))
    except (ImportError, AttributeError, ValueError):
        expected = f"{', '.join(SCENARIOS)} or module:function"
        raise UsageError(f"unknown scenario {name!r}, expected {expected}") from None


def name_places(prefix: str, count: int) -> list[str]:
    """Names that sort in order: prefix-0000 and so on."""
    if not 1 <= count <= MAX_PLACES:
        raise UsageError(f"{count} places, expected 1 to {MAX_PLACES}")
    return [f"{prefix}-{number:04}" for number in range(count)]


def draw_schedule(text: str, randomness: Randomness, places: Sequence[str], span_us: int) -> list[AnyFault]:
    """Draw a schedule from a text: `none`, or kinds with counts such as `crash=2,partition`; `all=2` is two of each."""
    if text == "none":
        return []
    wanted: dict[str, int] = {}
    for part in text.split(","):
        kind, _, number = part.strip().partition("=")
        if number and not (number.isascii() and number.isdecimal()):
            raise UsageError(f"fault {part!r}: {number!r} is no count")
        for one in ALL if kind == "all" else [kind]:
            wanted[one] = wanted.get(one, 0) + int(number or "1")
    faults: list[AnyFault] = []
    for kind, count in wanted.items():
        faults += draw_faults(randomness, places, span_us=span_us, kinds=[kind], count=count)
    return faults


def _run_until_settled(world: World, scenario: Scenario, busy_us: int, grace_us: int) -> None:
    deadline_us = world.timeline.start_us + busy_us + grace_us
    while world.now < deadline_us:
        if world.run(_LOOK_EVERY_US):
            return
        is_over = world.now >= world.timeline.start_us + busy_us
        if is_over and _is_at_rest(world) and scenario.is_settled():
            return


def _is_at_rest(world: World) -> bool:
    """True if all processes are up and no core is ahead of its journal."""
    return all(process.is_durable for process in world.processes.values())


def _report(name: str, world: World, scenario: Scenario, faults: list[AnyFault]) -> Report:
    hops = world.hops()
    digests = world.digests()
    findings = check_journals(hops) + scenario.findings(hops)
    findings += [finding for process in world.processes.values() for finding in process.findings]
    is_settled = scenario.is_settled()
    virtual_us = world.timeline.last_us - world.timeline.start_us
    if not is_settled:
        findings.append(Finding(rule="settled", server="", seq=None, detail=f"not settled after {virtual_us} us"))
    processes = list(world.processes.values())
    counts = [process.counts for process in processes]
    return Report(
        scenario=name,
        seed=world.seed,
        places=len(processes),
        faults=faults,
        is_settled=is_settled,
        virtual_us=virtual_us,
        events=world.timeline.happened,
        hops=sum(len(part) for part in hops.values()),
        appends=sum(process.disk.appends for process in processes),
        crashes=sum(count.crashes for count in counts),
        missed=sum(count.missed for count in counts),
        network=world.network.counts,
        links=world.links.counts,
        facts=scenario.facts(),
        findings=findings,
        digests=digests,
        digest=hashlib.sha256("\n".join(f"{each} {digests[each]}" for each in digests).encode()).hexdigest(),
    )
