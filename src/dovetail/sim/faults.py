"""Faults as data: what goes wrong in a world, when and where.

A schedule is a list of faults. It is drawn from the world's seed or read from JSON, can be printed and replayed, and
does not depend on what the processes do. Times are microseconds after the world's start. Every fault ends by itself, so
after `end_of(faults)` the world is intact again and can be expected to settle.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated

import msgspec

from dovetail.model.errors import LocalProtocolError, UsageError
from dovetail.model.times import SECOND_US
from dovetail.sim.core import CrashPoint
from dovetail.sim.damage import Damage
from dovetail.sim.network import Link
from dovetail.sim.randomness import Randomness, draw_between
from dovetail.sim.world import World

MAX_FAULTS = 10_000
MAX_SCHEDULE_BYTES = 4 << 20
_MAX_DOWN_US = 5 * SECOND_US
_MAX_CLOCK_JUMP_US = 20 * SECOND_US
_MAX_SLOW_US = SECOND_US // 2
_OUTAGE_US = (3600 * SECOND_US, 4 * 3600 * SECOND_US)
_APPENDS_WORTH_A_CRASH = 50

Span = Annotated[int, msgspec.Meta(ge=0)]
Ordinal = Annotated[int, msgspec.Meta(ge=1)]


class _TimedFault(msgspec.Struct, frozen=True, kw_only=True, tag_field="fault"):
    """Something that happens this long after the start."""

    at_us: Span


class _ProcessFault(_TimedFault, frozen=True, kw_only=True):
    """Something that happens to one process."""

    place: str


class Crash(_ProcessFault, frozen=True, kw_only=True, tag="crash"):
    """A process crashes at a given time and restarts from its journal."""

    down_us: Span


class AppendCrash(msgspec.Struct, frozen=True, kw_only=True, tag_field="fault", tag="append_crash"):
    """A process crashes in the turn of its n-th append (from 1): before the commit, before, amid or after the sends."""

    place: str
    append: Ordinal
    point: CrashPoint
    down_us: Span


class Partition(_TimedFault, frozen=True, kw_only=True, tag="partition"):
    """Groups of processes, and all processes in no group, cannot reach each other for a while."""

    groups: tuple[tuple[str, ...], ...]
    for_us: Span


class Pause(_ProcessFault, frozen=True, kw_only=True, tag="pause"):
    """A process is suspended for a while, then continues."""

    for_us: Span


class ClockJump(_ProcessFault, frozen=True, kw_only=True, tag="clock"):
    """A process's clock is set forwards or backwards."""

    by_us: int


class DiskFull(_ProcessFault, frozen=True, kw_only=True, tag="disk"):
    """A process's journal has no disk space for a while."""

    for_us: Span


class DiskSlow(_ProcessFault, frozen=True, kw_only=True, tag="slow"):
    """Commits of a process are slow for a while."""

    commit_us: Span
    for_us: Span


class DiskFailure(_ProcessFault, frozen=True, kw_only=True, tag="failure"):
    """The next commit of a process fails, which ends it; it is restarted a second later."""


class DiskDamage(_ProcessFault, frozen=True, kw_only=True, tag="damage"):
    """A process crashes, and its disk returns other bytes than were written; for worlds with journals in files."""

    damage: Damage
    down_us: Span


class Weather(_TimedFault, frozen=True, kw_only=True, tag="weather"):
    """All links behave like this one for a while."""

    link: Link
    for_us: Span


AnyFault = (
    Crash | AppendCrash | Partition | Pause | ClockJump | DiskFull | DiskSlow | DiskFailure | DiskDamage | Weather
)


def encode_faults(faults: Sequence[AnyFault]) -> bytes:
    """A schedule as JSON, one fault per line."""
    lines = b",\n".join(msgspec.json.encode(fault) for fault in faults)
    return b"[\n" + lines + b"\n]\n" if lines else b"[]\n"


def decode_faults(data: bytes) -> list[AnyFault]:
    """A schedule from JSON; raises UsageError if it is invalid."""
    if len(data) > MAX_SCHEDULE_BYTES:
        raise UsageError(f"fault schedule of {len(data)} bytes, expected at most {MAX_SCHEDULE_BYTES}")
    try:
        faults = msgspec.json.decode(data, type=list[AnyFault])
    except msgspec.DecodeError as error:
        raise UsageError(f"fault schedule: {error}") from None
    if len(faults) > MAX_FAULTS:
        raise UsageError(f"fault schedule of {len(faults)} faults, expected at most {MAX_FAULTS}")
    return faults


def apply_faults(world: World, faults: Sequence[AnyFault]) -> None:
    """Schedule the faults in a world that has all its processes and is not running yet."""
    for fault in faults:
        names = [name for group in fault.groups for name in group] if isinstance(fault, Partition) else []
        names += [fault.place] if not isinstance(fault, Partition | Weather) else []
        for name in names:
            if name not in world.processes:
                raise UsageError(f"fault {type(fault).__name__} names {name!r}, which is not in this world")
        if isinstance(fault, AppendCrash):
            world.crash_on_append(fault.place, fault.append, fault.point, fault.down_us)
        else:
            world.schedule(world.timeline.start_us + fault.at_us - world.now, _strike(world, fault))


def end_of(faults: Sequence[AnyFault]) -> int:
    """When the last fault ends, in microseconds after the start; crashes on an append have no time of their own."""
    ends = [0]
    for fault in faults:
        match fault:
            case Crash() | DiskDamage():
                ends.append(fault.at_us + fault.down_us)
            case Partition() | Pause() | DiskFull() | DiskSlow() | Weather():
                ends.append(fault.at_us + fault.for_us)
            case ClockJump() | DiskFailure():
                ends.append(fault.at_us)
            case AppendCrash():
                pass
    return max(ends)


def _strike(world: World, fault: AnyFault) -> Callable[[], None]:
    def strike() -> None:
        match fault:
            case Crash():
                world.crash(fault.place, fault.down_us)
            case Partition():
                number = world.partition(fault.groups)
                world.schedule(fault.for_us, lambda: world.heal(number))
            case Pause():
                world.pause(fault.place, fault.for_us)
            case ClockJump():
                world.jump_clock(fault.place, fault.by_us)
            case DiskFull():
                world.fill_disk(fault.place, fault.for_us)
            case DiskSlow():
                world.slow_disk(fault.place, fault.commit_us, fault.for_us)
            case DiskFailure():
                world.fail_disk(fault.place)
            case DiskDamage():
                world.damage_disk(fault.place, fault.damage, fault.down_us)
            case Weather():
                number = world.network.add_weather(fault.link)
                world.schedule(fault.for_us, lambda: world.network.end_weather(number))
            case AppendCrash():
                raise LocalProtocolError("a crash on an append is planned by number, not by time")

    return strike


# -- drawing a schedule

_Draw = Callable[[random.Random, Sequence[str], int], AnyFault]


def _draw_crash(chance: random.Random, places: Sequence[str], span_us: int) -> AnyFault:
    at_us, place = _moment(chance, span_us), _pick(chance, places)
    return Crash(at_us=at_us, place=place, down_us=draw_between(chance, 1, _MAX_DOWN_US))


def _draw_append_crash(chance: random.Random, places: Sequence[str], span_us: int) -> AnyFault:
    return AppendCrash(
        place=_pick(chance, places),
        append=draw_between(chance, 1, _APPENDS_WORTH_A_CRASH),
        point=tuple(CrashPoint)[draw_between(chance, 0, len(CrashPoint) - 1)],
        down_us=draw_between(chance, 1, min(_MAX_DOWN_US, span_us)),
    )


def _draw_partition(chance: random.Random, places: Sequence[str], span_us: int) -> AnyFault:
    at_us = _moment(chance, span_us)
    sides: tuple[list[str], list[str]] = ([], [])
    for place in places:
        sides[chance.random() < 0.5].append(place)
    for side, other in (sides, sides[::-1]):
        if not side and len(other) > 1:
            side.append(other.pop())
    return Partition(at_us=at_us, groups=(tuple(sides[0]), tuple(sides[1])), for_us=_while(chance, span_us, at_us))


def _draw_outage(chance: random.Random, places: Sequence[str], span_us: int) -> AnyFault:
    """One process is cut off for hours."""
    at_us, place = _moment(chance, span_us), _pick(chance, places)
    return Partition(at_us=at_us, groups=((place,),), for_us=draw_between(chance, *_OUTAGE_US))


def _draw_pause(chance: random.Random, places: Sequence[str], span_us: int) -> AnyFault:
    at_us = _moment(chance, span_us)
    return Pause(at_us=at_us, place=_pick(chance, places), for_us=_while(chance, span_us, at_us))


def _draw_clock_jump(chance: random.Random, places: Sequence[str], span_us: int) -> AnyFault:
    by_us = draw_between(chance, -_MAX_CLOCK_JUMP_US, _MAX_CLOCK_JUMP_US)
    return ClockJump(at_us=_moment(chance, span_us), place=_pick(chance, places), by_us=by_us)


def _draw_disk_full(chance: random.Random, places: Sequence[str], span_us: int) -> AnyFault:
    at_us = _moment(chance, span_us)
    return DiskFull(at_us=at_us, place=_pick(chance, places), for_us=_while(chance, span_us, at_us))


def _draw_disk_slow(chance: random.Random, places: Sequence[str], span_us: int) -> AnyFault:
    at_us, commit_us = _moment(chance, span_us), draw_between(chance, 1, _MAX_SLOW_US)
    return DiskSlow(
        at_us=at_us, place=_pick(chance, places), commit_us=commit_us, for_us=_while(chance, span_us, at_us)
    )


def _draw_disk_failure(chance: random.Random, places: Sequence[str], span_us: int) -> AnyFault:
    return DiskFailure(at_us=_moment(chance, span_us), place=_pick(chance, places))


def _draw_disk_damage(chance: random.Random, places: Sequence[str], span_us: int) -> AnyFault:
    return DiskDamage(
        at_us=_moment(chance, span_us),
        place=_pick(chance, places),
        damage=tuple(Damage)[draw_between(chance, 0, len(Damage) - 1)],
        down_us=draw_between(chance, 1, min(_MAX_DOWN_US, 1 + span_us // 8)),
    )


def _draw_weather(chance: random.Random, places: Sequence[str], span_us: int) -> AnyFault:  # noqa: ARG001 - same signature as the others
    at_us = _moment(chance, span_us)
    low_us = draw_between(chance, 0, 100_000)
    link = Link(
        latency_us=(low_us, low_us + draw_between(chance, 0, 400_000)),
        loss=draw_between(chance, 0, 50) / 100,
        duplicate=draw_between(chance, 0, 20) / 100,
        reorder=draw_between(chance, 0, 30) / 100,
    )
    return Weather(at_us=at_us, link=link, for_us=_while(chance, span_us, at_us))


KINDS: Mapping[str, _Draw] = {
    "crash": _draw_crash,
    "append_crash": _draw_append_crash,
    "partition": _draw_partition,
    "pause": _draw_pause,
    "clock": _draw_clock_jump,
    "disk": _draw_disk_full,
    "slow": _draw_disk_slow,
    "failure": _draw_disk_failure,
    "weather": _draw_weather,
    "outage": _draw_outage,
    "damage": _draw_disk_damage,
}
"""The kinds that can be drawn, by their name in JSON and on the command line."""
ALL = tuple(kind for kind in KINDS if kind not in ("outage", "damage"))
"""The kinds in `all`: every kind that neither takes hours nor needs journals in files."""


def draw_faults(
    randomness: Randomness, places: Sequence[str], *, span_us: int, kinds: Sequence[str], count: int
) -> list[AnyFault]:
    """Draw `count` faults of each kind within `span_us`; each kind has its own stream, so kinds can be added."""
    if not places or span_us < 1:
        raise LocalProtocolError(f"faults for {len(places)} places within {span_us} us")
    if count * len(kinds) > MAX_FAULTS:
        raise UsageError(f"{count * len(kinds)} faults, expected at most {MAX_FAULTS}")
    faults: list[AnyFault] = []
    for kind in kinds:
        if kind not in KINDS:
            raise UsageError(f"unknown kind of fault {kind!r}, expected some of {', '.join(KINDS)}")
        chance = randomness.stream(f"faults\0{kind}")
        faults.extend(KINDS[kind](chance, places, span_us) for _ in range(count))
    return faults


def _moment(chance: random.Random, span_us: int) -> int:
    return draw_between(chance, 0, span_us - 1)


def _while(chance: random.Random, span_us: int, at_us: int) -> int:
    return draw_between(chance, 1, span_us - at_us)


def _pick(chance: random.Random, places: Sequence[str]) -> str:
    return places[draw_between(chance, 0, len(places) - 1)]
