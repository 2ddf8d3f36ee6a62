"""Disk faults in the files of a journal: corrupted bytes and lost writes.

Pure: it takes the correct files and returns the damaged ones. The log stores pages in frames, the database file stores
them consecutively, and the high-water mark has slots.
"""

from __future__ import annotations

import enum
import random
from collections.abc import Callable, Mapping

from dovetail.journal.high_water import SLOT_BYTES
from dovetail.sim.randomness import draw_between

FILE, LOG, MARK = "", "-wal", ".mark"
SUFFIXES = (FILE, LOG, MARK)
"""The suffixes of a journal's files."""
_PAGE = 8192
_LOG_HEADER = 32
_FRAME = 24 + _PAGE
_PARTS = {FILE: (0, _PAGE), LOG: (_LOG_HEADER, _FRAME), MARK: (0, SLOT_BYTES)}

Files = Mapping[str, bytes]


class Damage(enum.StrEnum):
    """A kind of disk fault."""

    TORN = "torn"
    """The log ends with part of another, unacknowledged commit."""
    LOST = "lost"
    """Acknowledged writes are missing: the end of the log, or a page with its old content."""
    FLIPPED = "flipped"
    """One bit of one file is flipped."""
    ZEROED = "zeroed"
    """A page was never written and reads as zeros."""
    MISDIRECTED = "misdirected"
    """A page was written in the place of another."""


def damage_files(files: Files, earlier: Files, damage: Damage, chance: random.Random) -> dict[str, bytes]:
    """The files after the damage; `earlier` are older versions, for lost writes."""
    damaged = {suffix: bytearray(data) for suffix, data in files.items()}
    _HOW[damage](damaged, earlier, chance)
    return {suffix: bytes(data) for suffix, data in damaged.items()}


def _tear(files: dict[str, bytearray], _earlier: Files, chance: random.Random) -> None:
    log = files.get(LOG)
    if log and len(log) >= _LOG_HEADER + _FRAME:
        frame = log[_LOG_HEADER : _LOG_HEADER + _FRAME]
        log += frame[: draw_between(chance, 1, _FRAME)]


def _lose(files: dict[str, bytearray], earlier: Files, chance: random.Random) -> None:
    log = files.get(LOG)
    if log:
        del log[draw_between(chance, 0, len(log) - 1) :]
        return
    start, size = _pick_part(files, FILE, chance)
    old = earlier.get(FILE, b"")[start : start + size]
    files[FILE][start : start + size] = old.ljust(size, b"\0")


def _flip(files: dict[str, bytearray], _earlier: Files, chance: random.Random) -> None:
    data = files[_pick_file(files, chance)]
    data[draw_between(chance, 0, len(data) - 1)] ^= 1 << draw_between(chance, 0, 7)


def _zero(files: dict[str, bytearray], _earlier: Files, chance: random.Random) -> None:
    suffix = _pick_file(files, chance)
    start, size = _pick_part(files, suffix, chance)
    files[suffix][start : start + size] = bytes(size)


def _misdirect(files: dict[str, bytearray], _earlier: Files, chance: random.Random) -> None:
    suffix = _pick_file(files, chance)
    (source, size), (target, _) = _pick_part(files, suffix, chance), _pick_part(files, suffix, chance)
    files[suffix][target : target + size] = files[suffix][source : source + size]


_HOW: dict[Damage, Callable[[dict[str, bytearray], Files, random.Random], None]] = {
    Damage.TORN: _tear,
    Damage.LOST: _lose,
    Damage.FLIPPED: _flip,
    Damage.ZEROED: _zero,
    Damage.MISDIRECTED: _misdirect,
}


def _pick_file(files: dict[str, bytearray], chance: random.Random) -> str:
    """Mostly where the hops are: in the log, if it has any, else in the file; now and then the mark."""
    if files.get(MARK) and chance.random() < 0.15:
        return MARK
    return LOG if files.get(LOG) and chance.random() < 0.8 else FILE


def _pick_part(files: dict[str, bytearray], suffix: str, chance: random.Random) -> tuple[int, int]:
    """Start and size of a complete page, frame or slot."""
    first, size = _PARTS[suffix]
    count = max(1, (len(files[suffix]) - first) // size)
    start = first + size * draw_between(chance, 0, count - 1)
    return start, min(size, len(files[suffix]) - start)
