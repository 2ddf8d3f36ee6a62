"""Roll-ups: many manifests of a server in one object, so that a reader who begins anew asks for few objects.

    _rollups/<server>/<level>/<first number>.jsonl

A roll-up of level 1 covers 64 numbers, one of level 2 covers 64 of those, 4,096 numbers. It has, one in a line, all
manifests whose names sort into its range; those without numbers, of formats 1 and 2, are among them. It is made once
all of its numbers are taken, and never changes: numbers are only given upwards.

A roll-up is a copy and proves nothing by itself. What it says is checked as a manifest is, and `audit verify` reads the
manifests themselves. Where a roll-up is missing or cannot be read, so are they.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec

from dovetail.lake.layout import MANIFESTS, MAX_NUMBER, NUMBER_CHARS, ROLLUPS, manifest_name, parse_manifest_key
from dovetail.lake.manifest import MAX_MANIFEST_BYTES, Manifest, encode_manifest, parse_manifest
from dovetail.lake.store import Entry, Store
from dovetail.model.errors import JournalDamaged

FAN = 64
LEVELS = 2
MAX_ROLLUP_BYTES = 64 << 20
"""A larger one is not made, and not read."""

MAX_MADE_AT_ONCE = 4
"""So many of level 1 at each sealing: a lake that had none gets them little by little."""


@dataclass(slots=True)
class ManifestLog:
    """The manifests in one directory of the lake: those that roll-ups told, and the keys of the others."""

    directory: str
    known: dict[str, Manifest] = field(default_factory=dict)
    single: list[str] = field(default_factory=list)
    covered: list[tuple[int, int]] = field(default_factory=list)
    """The numbers that roll-ups cover, in order: the first of a range and the one behind it."""
    left_out: int | None = None
    """The first number of the last roll-up that was not read; None if all were."""

    @property
    def keys(self) -> list[str]:
        """All of them."""
        return [*self.known, *self.single]

    def gaps(self) -> list[tuple[int, int]]:
        """The numbers that no roll-up covers; the last range has no end but that of all numbers."""
        starts = [0, *(end for _, end in self.covered)]
        ends = [*(first for first, _ in self.covered), MAX_NUMBER + 1]
        return [(first, end) for first, end in zip(starts, ends, strict=True) if first < end]

    def read(self, store: Store, key: str) -> Manifest:
        """One of them; JournalDamaged where it is not whole or is gone."""
        return self.known[key] if key in self.known else read_manifest(store, key)


def read_manifest(store: Store, key: str) -> Manifest:
    """One manifest; JournalDamaged where it is not whole, contradicts itself or is gone."""
    try:
        return parse_manifest(key, store.get(key, 0, MAX_MANIFEST_BYTES + 1))
    except FileNotFoundError:
        raise JournalDamaged(f"{key} was listed and is gone") from None


def read_log(store: Store, directory: str, since: int = 0) -> ManifestLog:
    """What is in a server's directory of manifests, by as few requests as possible.

    Roll-ups that begin before the number `since` are not read: what they cover is left out.
    """
    log = ManifestLog(directory)
    for level in range(LEVELS, 0, -1):
        first = log.gaps()[0][0]
        prefix = f"{ROLLUPS}/{directory}/{level}/"
        for entry in store.list(prefix, prefix + manifest_name(first)):
            _read_rollup(store, log, level, entry, since)
    for first, end in log.gaps():
        low, high = (f"{MANIFESTS}/{directory}/{manifest_name(number)}" for number in (first, end))
        for entry in store.list(f"{MANIFESTS}/{directory}/", low):
            if end <= MAX_NUMBER and entry.key >= high:
                break
            if is_manifest_key(entry.key):
                log.single.append(entry.key)
    return log


def is_manifest_key(key: str) -> bool:
    """Whether an object is taken for a manifest; what is wrong with its name is found when it is read."""
    parts = key.split("/")
    return len(parts) == 3 and parts[0] == MANIFESTS and parts[2][0].isdigit() and parts[2].endswith(".json")


def roll_up(store: Store, log: ManifestLog, end: int) -> int:
    """Make the roll-ups that are due when all numbers before `end` are taken; returns how many."""
    numbers = [name.number for key in log.single if (name := parse_manifest_key(key)) and name.number is not None]
    due = sorted({number // FAN * FAN for number in [*numbers, end - 1] if number // FAN * FAN + FAN <= end})
    made = [first for first in due[:MAX_MADE_AT_ONCE] if _roll_manifests(store, log, first)]
    left = {*due} - {*made}
    wide = FAN**LEVELS
    for first in sorted({first // wide * wide for first in made}):
        if first + wide <= end and not any(first <= number < first + wide for number in left):
            _roll_rollups(store, log.directory, first)
    return len(made)


def rollup_key(directory: str, level: int, first: int) -> str:
    """The key of a roll-up."""
    return f"{ROLLUPS}/{directory}/{level}/{manifest_name(first)}.jsonl"


def _read_rollup(store: Store, log: ManifestLog, level: int, entry: Entry, since: int) -> None:
    """Take one in, if it is a roll-up and can be read; else the manifests themselves are."""
    name = entry.key.rpartition("/")[2].removesuffix(".jsonl")
    first = int(name) if len(name) == NUMBER_CHARS and name.isascii() and name.isdigit() else -1
    size = FAN**level
    if first % size or entry.key != rollup_key(log.directory, level, first) or entry.size > MAX_ROLLUP_BYTES:
        return
    if any(first < other_end and other < first + size for other, other_end in log.covered):
        return
    if first >= since:
        try:
            log.known.update(_parse(log.directory, level, first, store.get(entry.key, 0, MAX_ROLLUP_BYTES)))
        except (JournalDamaged, FileNotFoundError):
            return
    else:
        log.left_out = max(first, log.left_out or 0)
    log.covered = sorted([*log.covered, (first, first + size)])


def _parse(directory: str, level: int, first: int, data: bytes) -> Iterator[tuple[str, Manifest]]:
    low, high = (f"{MANIFESTS}/{directory}/{manifest_name(number)}" for number in (first, first + FAN**level))
    for line in data.splitlines():
        try:
            key, content = msgspec.json.decode(line, type=tuple[str, msgspec.Raw])
        except msgspec.DecodeError as error:
            raise JournalDamaged(f"{rollup_key(directory, level, first)} is not a roll-up: {error}") from None
        if not low <= key < high:
            raise JournalDamaged(f"{rollup_key(directory, level, first)} has {key[:200]!r}, which is not in its range")
        yield key, parse_manifest(key, bytes(content))


def _roll_manifests(store: Store, log: ManifestLog, first: int) -> bool:
    """Make one roll-up of level 1; False where a manifest cannot be read, or there would be too much."""
    directory = log.directory
    low, high = (f"{MANIFESTS}/{directory}/{manifest_name(number)}" for number in (first, first + FAN))
    lines: list[bytes] = []
    try:
        for entry in store.list(f"{MANIFESTS}/{directory}/", low):
            if entry.key >= high:
                break
            if is_manifest_key(entry.key):
                data = store.get(entry.key, 0, MAX_MANIFEST_BYTES + 1)
                manifest = parse_manifest(entry.key, data)
                if encode_manifest(manifest) != data:
                    return False  # a copy would not be the same
                lines.append(msgspec.json.encode((entry.key, manifest)))
    except (JournalDamaged, FileNotFoundError):
        return False
    return _create(store, rollup_key(directory, 1, first), lines)


def _roll_rollups(store: Store, directory: str, first: int) -> bool:
    lines: list[bytes] = []
    for number in range(first, first + FAN**LEVELS, FAN):
        with contextlib.suppress(FileNotFoundError):  # none of these numbers had a manifest any more
            lines += store.get(rollup_key(directory, 1, number), 0, MAX_ROLLUP_BYTES + 1).splitlines()
    return _create(store, rollup_key(directory, LEVELS, first), lines)


def _create(store: Store, key: str, lines: list[bytes]) -> bool:
    data = b"".join(line + b"\n" for line in lines)
    if len(data) > MAX_ROLLUP_BYTES:
        return False
    store.create(key, data)  # whoever else made it read the same manifests
    return True
