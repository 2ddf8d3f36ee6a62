"""Which manifests count, decided once for every reader; and how one is added.

A manifest counts unless one with a higher number names it in `replaces`. Of formats 1 and 2, which have no numbers, one
also does not count if another of a higher generation covers all of its hops.

A reader takes a snapshot and reads the files that it names. Files that a compaction replaced stay for a grace time, so
that they are still there when the reader gets to them: see `retain`.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial

import msgspec

from dovetail.lake.layout import (
    MANIFESTS,
    MAX_NUMBER,
    ManifestName,
    manifest_key,
    manifest_name,
    manifest_prefix,
    parse_manifest_key,
    server_slug,
)
from dovetail.lake.location import Location, local_directory, open_store
from dovetail.lake.manifest import Manifest, encode_manifest
from dovetail.lake.rollup import ManifestLog, is_manifest_key, read_log, read_manifest
from dovetail.lake.store import Store
from dovetail.model.errors import JournalDamaged, PipelineError

Read = Callable[[str], Manifest | None]


def check_lake(lake: Location) -> Location:
    """The location of a lake, a directory by its absolute path; PipelineError where it is none."""
    directory = local_directory(lake)
    is_there = open_store(lake).directories(f"{MANIFESTS}/") if directory is None else (directory / MANIFESTS).is_dir()
    if not is_there:
        raise PipelineError(f"{lake} is not a lake: it has no {MANIFESTS}")
    return lake if directory is None else directory.resolve()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The manifests that count at one moment: by server, in the order of their hops, without gaps from hop 0.

    `damages` has, by the name of its directory, why a server's manifests cannot be used. `next_numbers` are, by server,
    the first numbers that were free.
    """

    servers: Mapping[str, tuple[Manifest, ...]] = field(default_factory=dict)
    damages: Mapping[str, JournalDamaged] = field(default_factory=dict)
    next_numbers: Mapping[str, int] = field(default_factory=dict)

    @property
    def hops(self) -> int:
        """How many hops they announce."""
        return sum(manifests[-1].end for manifests in self.servers.values())

    def check(self) -> Snapshot:
        """The snapshot itself; JournalDamaged where the manifests of any server cannot be used."""
        for damage in self.damages.values():
            raise damage
        return self

    def manifests(self) -> list[Manifest]:
        """Those of all servers."""
        return [manifest for manifests in self.servers.values() for manifest in manifests]


@dataclass(frozen=True, slots=True)
class Head:
    """How far a server is sealed: the manifest that goes furthest, and the number that the next one gets.

    `log` is what was read for it.
    """

    manifest: Manifest | None
    next_number: int
    log: ManifestLog

    @property
    def end(self) -> int:
        """How many hops are sealed."""
        return 0 if self.manifest is None else self.manifest.end


def snapshot(store: Store, server: str | None = None) -> Snapshot:
    """The manifests of one server, or of all, that count now."""
    servers: dict[str, tuple[Manifest, ...]] = {}
    damages: dict[str, JournalDamaged] = {}
    numbers: dict[str, int] = {}
    for directory in store.directories(f"{MANIFESTS}/") if server is None else [server_slug(server)]:
        try:
            log = read_log(store, directory)
            chosen = choose(log.keys, partial(log.read, store))
            for name in {manifest.server for manifest in chosen.values() if manifest is not None}:
                servers[name] = _follow_each_other(chosen, name)
                numbers[name] = _next_number(log.keys)
        except JournalDamaged as damage:
            damages[directory] = damage
    return Snapshot(dict(sorted(servers.items())), damages, numbers)


def read_head(store: Store, server: str) -> Head:
    """How far a server is sealed, from as few manifests as possible.

    Sealings follow each other, so nothing older than the newest of them goes further; compactions add no hops.
    """
    return _head_of(store, server_slug(server), server)


def read_heads(store: Store) -> list[Head]:
    """How far each server is sealed."""
    return [_head_of(store, directory) for directory in store.directories(f"{MANIFESTS}/")]


def _head_of(store: Store, directory: str, server: str | None = None) -> Head:
    log = read_log(store, directory, MAX_NUMBER)
    head, read = _furthest(store, log, server), log
    while head is None and read.left_out is not None:
        # no sealing is newer than the newest roll-up: that one is read, and if there is none in it, all are
        read = read_log(store, directory, read.left_out if read is log else 0)
        head = _furthest(store, read, server)
    return Head(head, max(log.gaps()[-1][0], _next_number(log.keys)), log)


def _furthest(store: Store, log: ManifestLog, server: str | None) -> Manifest | None:
    """The manifest that goes furthest, if a sealing is among those that were read; a compaction may go as far."""
    names = {key: name for key in log.keys if (name := parse_manifest_key(key)) is not None}
    furthest: Manifest | None = None
    replaced: set[int | str] = set()
    for key in sorted(names, key=lambda key: _precedence(names[key]), reverse=True):
        if names[key].id in replaced:
            continue
        manifest = log.read(store, key)
        if server not in (None, manifest.server):
            continue  # another server whose name has the same hash
        replaced.update(manifest.replaces)
        if furthest is None or manifest.end > furthest.end:
            furthest = manifest
        if not manifest.is_compaction:
            return furthest
    return furthest if log.left_out is None else None


def commit(store: Store, manifest: Manifest, number: int, conflicts: Callable[[Manifest], bool]) -> Manifest | None:
    """Create a manifest under the first free number from `number` on, which was free when the caller looked.

    None where one that somebody else created since then conflicts with it.
    """
    while True:
        if number > MAX_NUMBER:
            raise JournalDamaged(f"{manifest_prefix(manifest.server)} has a manifest with the number {number - 1}")
        numbered = msgspec.structs.replace(manifest, number=number)
        if store.create(manifest_key(manifest.server, number), encode_manifest(numbered)):
            return numbered
        before = manifest_key(manifest.server, number - 1) if number else ""
        listed = store.list(manifest_prefix(manifest.server), before)
        newer = [entry.key for entry in listed if is_manifest_key(entry.key) and _number_of(entry.key) >= number]
        if not newer:
            raise JournalDamaged(f"{manifest_key(manifest.server, number)} is taken by something that is no manifest")
        others = [read_manifest(store, key) for key in newer]
        if any(other.server == manifest.server and conflicts(other) for other in others):
            return None
        number = _next_number(newer)


def manifest_keys(store: Store, server: str | None = None) -> list[str]:
    """All manifests there are, of one server or of all, also those that do not count."""
    keys: list[str] = []
    for directory in store.directories(f"{MANIFESTS}/") if server is None else [server_slug(server)]:
        own = [entry.key for entry in store.list(f"{MANIFESTS}/{directory}/") if is_manifest_key(entry.key)]
        keys += own or _odd_first(store, directory)
    return keys


def _odd_first(store: Store, directory: str) -> list[str]:
    """The first manifest of a server that has no plain one, if something else is in its place: a link or a pipe."""
    key = f"{MANIFESTS}/{directory}/{manifest_name(0)}.json"
    try:
        store.entry(key)
    except JournalDamaged:
        return [key]
    except FileNotFoundError:
        pass
    return []


def _next_number(keys: Iterable[str]) -> int:
    return max(map(_number_of, keys), default=-1) + 1


def _number_of(key: str) -> int:
    """The number of a manifest, -1 where its key has none."""
    name = parse_manifest_key(key)
    return -1 if name is None or name.number is None else name.number


def choose(keys: Iterable[str], read: Read) -> dict[str, Manifest | None]:
    """The manifests among these that count, newest first; those that others replace are not read.

    `read` may give None for one that cannot be read: it counts, and replaces nothing.
    """
    chosen: dict[str, Manifest | None] = {}
    ranged: dict[str, list[tuple[ManifestName, str]]] = {}
    replaced: dict[str, set[int | str]] = {}
    named = [(parse_manifest_key(key), key) for key in keys]
    for name, key in sorted(named, key=lambda item: (_precedence(item[0]), item[1]), reverse=True):
        if name is not None and name.number is None:
            ranged.setdefault(name.directory, []).append((name, key))
        elif name is None or name.number not in replaced.get(name.directory, ()):
            manifest = chosen[key] = read(key)
            if name is not None and manifest is not None:
                replaced.setdefault(name.directory, set()).update(manifest.replaces)
    for directory, items in ranged.items():
        left = [item for item in items if item[0].id not in replaced.get(directory, ())]
        chosen |= {key: read(key) for key in _not_covered(left)}
    return chosen


def _precedence(name: ManifestName | None) -> tuple[int, int, int]:
    """Newer manifests sort behind older ones: numbers behind hops, hops by their end."""
    if name is None:
        return (-1, 0, 0)
    return (0, name.end, name.generation) if name.number is None else (1, name.number, 0)


def _not_covered(items: Iterable[tuple[ManifestName, str]]) -> list[str]:
    """Keys of formats 1 and 2 that none of a higher generation covers, newest first."""
    ordered = sorted((name.first_seq, name.end, name.generation, key) for name, key in items)
    covered: set[str] = set()
    for first, end, generation, _ in ordered:
        for other in ordered[bisect.bisect_left(ordered, (first,)) :] if generation else ():
            if other[0] >= end:
                break
            if other[1] <= end and other[2] < generation:
                covered.add(other[3])
    return [key for *_, key in reversed(ordered) if key not in covered]


def _follow_each_other(chosen: Mapping[str, Manifest | None], server: str) -> tuple[Manifest, ...]:
    own = (item for item in chosen.values() if item is not None and item.server == server)
    manifests = sorted(own, key=lambda item: item.first_seq)
    position = 0
    for manifest in manifests:
        if manifest.first_seq > position:
            raise JournalDamaged(f"hops {position} to {manifest.first_seq - 1} of {manifest.server} are in no manifest")
        if manifest.first_seq < position:
            raise JournalDamaged(f"hops from {manifest.first_seq} of {manifest.server} are in two manifests")
        position = manifest.end
    return tuple(manifests)
