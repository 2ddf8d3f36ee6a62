"""Roll-ups: many manifests of a server in one object, so that a reader that starts from scratch needs few requests.

    _rollups/<server>/<level>/<first number>.jsonl

A roll-up of level 1 covers 64 numbers, one of level 2 covers 64 of those, 4,096 numbers. It has one line per manifest
whose name sorts into its range, including those without numbers, of formats 1 and 2. It is created once all of its
numbers are taken, and never changes: numbers only increase.

Anyone with write access to the lake can create a roll-up, so it is only a hint. Which manifests exist is always listed.
A copy is used instead of its manifest only if the listing proves that they have the same bytes: an object store lists
the MD5 of what it received. Otherwise the manifest itself is read. So a false roll-up costs requests, and changes no
answer; it is logged, and `audit verify` reports it.
"""

from __future__ import annotations

import bisect
import hashlib
import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby
from typing import NamedTuple

import msgspec

from dovetail.lake.layout import MANIFESTS, MAX_NUMBER, NUMBER_CHARS, ROLLUPS, manifest_name, parse_manifest_key
from dovetail.lake.manifest import MAX_MANIFEST_BYTES, Manifest, encode_manifest, parse_manifest
from dovetail.lake.store import Entry, Store
from dovetail.model.errors import JournalDamaged

FAN = 64
LEVELS = 2
MAX_ROLLUP_BYTES = 64 << 20
"""A larger one is neither created nor read."""

MAX_MADE_AT_ONCE = 4
"""Maximum number of level 1 roll-ups created per sealing: a lake without any catches up gradually."""

_MD5 = re.compile(r'"?([0-9a-f]{32})"?')

log = logging.getLogger("dovetail.lake")


class Rollup(NamedTuple):
    """What the key of a roll-up says: the numbers from `first` up to but excluding `end`."""

    directory: str
    level: int
    first: int
    entry: Entry

    @property
    def end(self) -> int:
        """The number after its last one."""
        size: int = FAN**self.level
        return self.first + size

    @property
    def key_range(self) -> tuple[str, str]:
        """The keys of its manifests sort between these two."""
        low, high = (f"{MANIFESTS}/{self.directory}/{manifest_name(number)}" for number in (self.first, self.end))
        return low, high


@dataclass(slots=True)
class ManifestLog:
    """The manifests in one directory of the lake, as listed, and the roll-ups that claim to copy them."""

    directory: str
    keys: list[str] = field(default_factory=list)
    """In order: all of them, or if not `is_complete` the newest."""
    is_complete: bool = True
    rollups: list[Rollup] = field(default_factory=list)
    known: dict[str, Manifest] = field(default_factory=dict)
    """Those read from roll-ups."""

    def read(self, store: Store, key: str) -> Manifest:
        """Read one of them; JournalDamaged if it is incomplete or gone."""
        return self.known[key] if key in self.known else read_manifest(store, key)


def read_manifest(store: Store, key: str) -> Manifest:
    """Read one manifest; JournalDamaged if it is incomplete, contradicts itself or is gone."""
    try:
        return parse_manifest(key, store.get(key, 0, MAX_MANIFEST_BYTES + 1))
    except FileNotFoundError:
        raise JournalDamaged(f"{key} was listed and is gone") from None


def read_log(store: Store, directory: str) -> ManifestLog:
    """List all manifests of a server, and read those of which a roll-up has a proven copy."""
    made = ManifestLog(directory, rollups=_list_rollups(store, directory))
    digests: dict[str, str] = {}
    for entry in _list_manifests(store, directory):
        made.keys.append(entry.key)
        if match := _MD5.fullmatch(entry.tag):
            digests[entry.key] = match[1]
    for rollup in made.rollups:
        low, high = (bisect.bisect_left(made.keys, bound) for bound in rollup.key_range)
        wanted = {key for key in made.keys[low:high] if key in digests and key not in made.known}
        if len(wanted) > 1:
            proven = _read_proven(store, rollup, {key: digests[key] for key in wanted})
            made.known |= proven
            if len(proven) < len(wanted):
                _report_false(store, rollup)
    return made


def read_newest(store: Store, directory: str) -> ManifestLog:
    """List the newest manifests of a server: at least those that are in no roll-up.

    The newest manifest is never deleted, so if there is none where a roll-up ends, the roll-up is false.
    """
    rollups = _list_rollups(store, directory)
    last = max(rollups, key=lambda each: each.end, default=None)
    if last is not None:
        keys = [entry.key for entry in _list_manifests(store, directory, last.end - FAN)]
        if any(name.number is not None for name in map(parse_manifest_key, keys) if name is not None):
            return ManifestLog(directory, keys, is_complete=last.end == FAN, rollups=rollups)
        _report_false(store, last)
    return ManifestLog(directory, [entry.key for entry in _list_manifests(store, directory)], rollups=rollups)


def is_manifest_key(key: str) -> bool:
    """True if an object is treated as a manifest; faults in its name are found when it is read."""
    parts = key.split("/")
    return len(parts) == 3 and parts[0] == MANIFESTS and parts[2][0].isdigit() and parts[2].endswith(".json")


def roll_up(store: Store, manifests: ManifestLog, end: int) -> int:
    """Create the roll-ups that are due when all numbers before `end` are taken; returns how many."""
    names = map(parse_manifest_key, manifests.keys)
    numbers = [name.number for name in names if name is not None and name.number is not None]
    ranges = {number // FAN * FAN for number in [*numbers, end - 1]}
    covered = {first for each in manifests.rollups for first in range(each.first, each.end, FAN)}
    due = sorted(first for first in ranges - covered if first + FAN <= end)
    done = [first for first in due[:MAX_MADE_AT_ONCE] if _roll_manifests(store, manifests.directory, first)]
    wide = FAN**LEVELS
    for first in sorted({first // wide * wide for first in done}):
        if first + wide <= end:
            _roll_rollups(store, manifests.directory, first)
    return len(done)


def rollup_key(directory: str, level: int, first: int) -> str:
    """The key of a roll-up."""
    return f"{ROLLUPS}/{directory}/{level}/{manifest_name(first)}.jsonl"


def find_false(store: Store) -> Iterator[tuple[str, str]]:
    """The roll-ups that do not copy the manifests that exist, with the reason; reads the manifests of their ranges."""
    for directory, entries in groupby(store.list(f"{ROLLUPS}/"), lambda entry: entry.key.split("/")[1]):
        keys = [entry.key for entry in _list_manifests(store, directory)]
        digests: dict[str, bytes] = {}
        for entry in entries:
            if (reason := _why_false(store, entry, keys, digests)) is not None:
                yield entry.key, reason


def _why_false(store: Store, entry: Entry, keys: list[str], digests: dict[str, bytes]) -> str | None:
    """Why a roll-up is false, or None; `keys` are the manifests that exist, `digests` of those read so far."""
    rollup = _parse_key(entry)
    if rollup is None:
        return "it is not a roll-up"
    if not keys or keys[-1] < f"{MANIFESTS}/{rollup.directory}/{manifest_name(rollup.end - 1)}":
        return "it covers numbers that are not taken yet"
    try:
        copies = {
            key: hashlib.sha256(encode_manifest(parse_manifest(key, content))).digest()
            for key, content in _parse(rollup, store.get(entry.key, 0, MAX_ROLLUP_BYTES + 1))
        }
    except (JournalDamaged, FileNotFoundError) as error:
        return str(error)
    low, high = (bisect.bisect_left(keys, bound) for bound in rollup.key_range)
    for key in keys[low:high]:
        if key not in digests:
            try:
                digests[key] = hashlib.sha256(store.get(key, 0, MAX_MANIFEST_BYTES + 1)).digest()
            except (JournalDamaged, FileNotFoundError):
                continue  # deleted or replaced since it was listed
        if copies.get(key) != digests[key]:
            return f"its copy of {key} differs or is missing"
    return None


def _list_manifests(store: Store, directory: str, first: int = 0) -> Iterator[Entry]:
    prefix = f"{MANIFESTS}/{directory}/"
    return (entry for entry in store.list(prefix, prefix + manifest_name(first)) if is_manifest_key(entry.key))


def _list_rollups(store: Store, directory: str) -> list[Rollup]:
    """Those of higher levels first; the ones that they begin with are not listed again."""
    rollups: list[Rollup] = []
    for level in range(LEVELS, 0, -1):
        end = 0
        for each in rollups:
            end = each.end if each.first == end else end
        prefix = f"{ROLLUPS}/{directory}/{level}/"
        listed = map(_parse_key, store.list(prefix, prefix + manifest_name(end)))
        rollups += [each for each in listed if each is not None]
    return rollups


def _parse_key(entry: Entry) -> Rollup | None:
    parts = entry.key.split("/")
    name = parts[-1].removesuffix(".jsonl")
    if len(parts) != 4 or len(name) != NUMBER_CHARS or not (name.isascii() and name.isdigit()):
        return None
    for level in range(1, LEVELS + 1):
        rollup = Rollup(parts[1], level, int(name), entry)
        if entry.key == rollup_key(parts[1], level, rollup.first):
            return rollup if rollup.first % FAN**level == 0 and rollup.end <= MAX_NUMBER else None
    return None


def _report_false(store: Store, rollup: Rollup) -> None:
    log.error(
        "%s: %s does not copy the manifests that exist, and is ignored; find out who can write to the lake",
        store,
        rollup.entry.key,
    )


def _read_proven(store: Store, rollup: Rollup, digests: dict[str, str]) -> dict[str, Manifest]:
    """The copies in a roll-up whose bytes have these MD5 digests."""
    proven = {}
    try:
        for key, content in _parse(rollup, store.get(rollup.entry.key, 0, MAX_ROLLUP_BYTES + 1)):
            if key in digests:
                manifest = parse_manifest(key, content)
                digest = hashlib.md5(encode_manifest(manifest), usedforsecurity=False)
                if digest.hexdigest() == digests[key]:
                    proven[key] = manifest
    except (JournalDamaged, FileNotFoundError):
        pass  # what was proven so far is true
    return proven


def _parse(rollup: Rollup, data: bytes) -> Iterator[tuple[str, bytes]]:
    """The keys in a roll-up, and what it has as their content; JournalDamaged if it is not a roll-up."""
    if len(data) > MAX_ROLLUP_BYTES:
        raise JournalDamaged(f"it has over {MAX_ROLLUP_BYTES} bytes")
    low, high = rollup.key_range
    for line in data.splitlines():
        try:
            key, content = msgspec.json.decode(line, type=tuple[str, msgspec.Raw])
        except (msgspec.DecodeError, RecursionError) as error:
            raise JournalDamaged(f"it is not a roll-up: {error}") from None
        if not low <= key < high:
            raise JournalDamaged(f"it has {key[:200]!r}, which is not in its range")
        yield key, bytes(content)


def _roll_manifests(store: Store, directory: str, first: int) -> bool:
    """Create one roll-up of level 1; False if a manifest cannot be read, or the roll-up would be too large."""
    lines: list[bytes] = []
    high = f"{MANIFESTS}/{directory}/{manifest_name(first + FAN)}"
    try:
        for entry in _list_manifests(store, directory, first):
            if entry.key >= high:
                break
            data = store.get(entry.key, 0, MAX_MANIFEST_BYTES + 1)
            manifest = parse_manifest(entry.key, data)
            if encode_manifest(manifest) != data:
                return False  # a copy would not be the same
            lines.append(msgspec.json.encode((entry.key, manifest)))
    except (JournalDamaged, FileNotFoundError):
        return False
    return _create(store, rollup_key(directory, 1, first), lines)


def _roll_rollups(store: Store, directory: str, first: int) -> bool:
    """Create one roll-up of level 2; False if one of level 1 is missing, or it would be too large."""
    lines: list[bytes] = []
    for number in range(first, first + FAN**LEVELS, FAN):
        try:
            lines += store.get(rollup_key(directory, 1, number), 0, MAX_ROLLUP_BYTES + 1).splitlines()
        except FileNotFoundError:
            high = f"{MANIFESTS}/{directory}/{manifest_name(number + FAN)}"
            entry = next(_list_manifests(store, directory, number), None)
            if entry is not None and entry.key < high:
                return False
    return _create(store, rollup_key(directory, LEVELS, first), lines)


def _create(store: Store, key: str, lines: list[bytes]) -> bool:
    data = b"".join(line + b"\n" for line in lines)
    if len(data) > MAX_ROLLUP_BYTES:
        return False
    store.create(key, data)  # any other writer read the same manifests
    return True
