"""Which manifests are active, decided in one place for every reader; and how one is added.

A manifest is active unless one with a higher number names it in `replaces`. In formats 1 and 2, which have no numbers,
it is also inactive if one of a higher generation covers all of its hops. Anyone can write a manifest, so forged ones
are ignored, and one replaces others only if it has the same hops: see `claims`.

A reader takes a snapshot and reads the files that it names. Files that a compaction replaced are kept for a grace
period, so that they still exist when the reader gets to them: see `retain`.
"""

from __future__ import annotations

import bisect
import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import msgspec

from dovetail.lake.claims import find_forged, holds, is_signed
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
from dovetail.tlog.keys import Verifier, parse_verifier

Read = Callable[[str], Manifest | None]


def check_lake(lake: Location) -> Location:
    """The location of a lake, a directory as an absolute path; PipelineError if it is not a lake."""
    directory = local_directory(lake)
    is_there = open_store(lake).directories(f"{MANIFESTS}/") if directory is None else (directory / MANIFESTS).is_dir()
    if not is_there:
        raise PipelineError(
            f"{lake} is not a lake: it has no {MANIFESTS}; seal journals into it with `dovetail journal seal`"
        )
    return lake if directory is None else directory.resolve()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The active manifests at one moment: by server, in order of their hops, without gaps from hop 0.

    `damages` says, by directory name, why a server's manifests are unusable, and `unreadable`, why one of them is not
    read. `next_numbers` has the number after those of each server.
    """

    servers: Mapping[str, tuple[Manifest, ...]] = field(default_factory=dict)
    damages: Mapping[str, JournalDamaged] = field(default_factory=dict)
    unreadable: Mapping[str, JournalDamaged] = field(default_factory=dict)
    next_numbers: Mapping[str, int] = field(default_factory=dict)

    @property
    def hops(self) -> int:
        """How many hops they list."""
        return sum(manifests[-1].end for manifests in self.servers.values())

    def check(self) -> Snapshot:
        """Return the snapshot itself; JournalDamaged if the manifests of any server are unusable."""
        for damage in self.damages.values():
            raise damage
        return self

    def manifests(self) -> list[Manifest]:
        """The manifests of all servers."""
        return [manifest for manifests in self.servers.values() for manifest in manifests]


def snapshot(store: Store, server: str | None = None, trusted: Sequence[Verifier] = ()) -> Snapshot:
    """The active manifests of one server, or of all; `trusted` are known keys of servers.

    Anyone can add an unreadable one, so a server is damaged only if the others do not follow each other.
    """
    servers: dict[str, tuple[Manifest, ...]] = {}
    damages: dict[str, JournalDamaged] = {}
    unreadable: dict[str, JournalDamaged] = {}
    numbers: dict[str, int] = {}
    for directory in store.directories(f"{MANIFESTS}/") if server is None else [server_slug(server)]:
        log = read_log(store, directory)

        def read(key: str, log: ManifestLog = log) -> Manifest | None:
            try:
                return log.read(store, key)
            except JournalDamaged as damage:
                unreadable.setdefault(log.directory, damage)
                return None

        chosen = choose(log.keys, read, trusted)
        names = {manifest.server for manifest in chosen.values() if manifest is not None}
        try:
            for name in names:
                servers[name] = _follow_each_other(chosen, name)
                numbers[name] = next_number(servers[name])
        except JournalDamaged as damage:
            damages[directory] = unreadable.get(directory, damage)
        if not names and directory in unreadable:
            damages[directory] = unreadable[directory]
    return Snapshot(dict(sorted(servers.items())), damages, unreadable, numbers)


def commit(store: Store, manifest: Manifest, number: int, conflicts: Callable[[Manifest], bool]) -> Manifest | None:
    """Create a manifest under the first free number from `number` on, which was free when the caller looked.

    None if one that somebody else created since then conflicts with it; forged and unreadable ones do not.
    """
    verifiers = [parse_verifier(manifest.key)]
    while number <= MAX_NUMBER:
        numbered = msgspec.structs.replace(manifest, number=number)
        if store.create(manifest_key(manifest.server, number), encode_manifest(numbered)):
            return numbered
        before = manifest_key(manifest.server, number - 1) if number else ""
        newer = [entry.key for entry in store.list(manifest_prefix(manifest.server), before)]
        for key in filter(is_manifest_key, newer):
            with contextlib.suppress(JournalDamaged):
                other = read_manifest(store, key)
                if other.server == manifest.server and is_signed(other, verifiers) and conflicts(other):
                    return None
        number += 1
        while manifest_key(manifest.server, number) in newer:
            number += 1
    raise JournalDamaged(f"{manifest_prefix(manifest.server)} has no free number")


def manifest_keys(store: Store, server: str | None = None) -> list[str]:
    """All manifests of one server or of all, including inactive ones."""
    return list(manifest_tags(store, server))


def manifest_tags(store: Store, server: str | None = None) -> dict[str, str]:
    """The same keys, each with its tag from the listing."""
    tags: dict[str, str] = {}
    for directory in store.directories(f"{MANIFESTS}/") if server is None else [server_slug(server)]:
        listed = store.list(f"{MANIFESTS}/{directory}/")
        own = {entry.key: entry.tag for entry in listed if is_manifest_key(entry.key)}
        tags |= own or dict.fromkeys(_odd_first(store, directory), "")
    return tags


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


def next_number(manifests: Iterable[Manifest]) -> int:
    """The number after those of these manifests."""
    return max((-1 if each.number is None else each.number for each in manifests), default=-1) + 1


def choose(keys: Iterable[str], read: Read, trusted: Sequence[Verifier] = ()) -> dict[str, Manifest | None]:
    """The active manifests among these, newest first.

    `read` may return None for an unreadable one: it is active, and replaces nothing.
    """
    return settle(keys, read, trusted)[0]


def settle(
    keys: Iterable[str], read: Read, trusted: Sequence[Verifier] = ()
) -> tuple[dict[str, Manifest | None], set[str]]:
    """The active manifests, and those that are forged or falsely claim to replace others: see `claims`."""
    known: dict[str, Manifest | None] = {}

    def once(key: str) -> Manifest | None:
        if key not in known:
            known[key] = read(key)
        return known[key]

    left, false = set(keys), set[str]()
    while True:
        chosen = not_replaced(left, once)
        if not (found := _false_claims(chosen, left, once, trusted) or _forged(chosen, trusted)):
            return chosen, false
        left -= found
        false |= found


def _false_claims(
    chosen: Mapping[str, Manifest | None], keys: Iterable[str], read: Read, trusted: Sequence[Verifier]
) -> set[str]:
    claims = {key: manifest for key, manifest in chosen.items() if manifest is not None and manifest.is_compaction}
    directories: dict[str, dict[str, ManifestName]] = {}
    for key in keys if claims else ():
        if (name := parse_manifest_key(key)) is not None:
            directories.setdefault(name.directory, {})[key] = name

    def trusted_of(server: str) -> list[Verifier]:
        return [verifier for verifier in trusted if verifier.name == server]

    def of_server(server: str, among: Iterable[str]) -> Iterator[Manifest]:
        for key in among:
            with contextlib.suppress(JournalDamaged):  # gone or damaged: the claim cannot be compared with it
                manifest = read(key)
                if manifest is not None and manifest.server == server and is_signed(manifest, trusted_of(server)):
                    yield manifest

    false = set()
    for key, claim in claims.items():
        names = directories[key.split("/")[1]]
        own = names[key]
        replaced = [other for other, name in names.items() if name.id in claim.replaces or _covers(own, name)]
        # the active ones have been read already, and the others are hardly ever needed
        nearest = sorted(names, key=lambda other: other not in chosen)
        if not holds(claim, list(of_server(claim.server, replaced)), partial(of_server, claim.server, nearest)):
            false.add(key)
    return false


def _forged(chosen: Mapping[str, Manifest | None], trusted: Sequence[Verifier]) -> set[str]:
    servers: dict[str, dict[str, Manifest]] = {}
    for key, manifest in chosen.items():
        if manifest is not None:
            servers.setdefault(manifest.server, {})[key] = manifest
    return {key for own in servers.values() for key in find_forged(own, trusted)}


def _covers(own: ManifestName, other: ManifestName) -> bool:
    """Whether a manifest of format 2 replaces another by its generation and hops."""
    is_ranged = own.number is None and other.number is None
    return is_ranged and own.generation > other.generation and own.first_seq <= other.first_seq and other.end <= own.end


def not_replaced(keys: Iterable[str], read: Read) -> dict[str, Manifest | None]:
    """The manifests that no other names or covers; replaced ones are not read."""
    chosen: dict[str, Manifest | None] = {}
    ranged: dict[str, list[tuple[ManifestName, str]]] = {}
    replaced: dict[str, set[int | str]] = {}
    named = [(parse_manifest_key(key), key) for key in keys]
    for name, key in sorted(named, key=lambda item: (precedence(item[0]), item[1]), reverse=True):
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


def precedence(name: ManifestName | None) -> tuple[int, int, int]:
    """Newer manifests sort after older ones: numbers after hops, hops by their end."""
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
