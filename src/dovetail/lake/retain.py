"""Deletes inactive objects from the lake once nobody can need them.

- What a compaction replaced is deleted after a grace period, so that readers with an older snapshot still find their
  files: the files first, then the manifests.
- Files that no manifest lists were left by interrupted sealings and compactions. They are deleted once they can no
  longer be listed: a sealing lists only hops after the sealed range, and a compaction gives up long before its files
  reach ORPHAN_AGE_S.

A server with an unreadable manifest is skipped, since nobody knows what it lists.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from dovetail.lake.layout import INDEXES, MANIFESTS, RETAINED, hops_of_key, index_key
from dovetail.lake.manifest import Manifest, SealedFile
from dovetail.lake.rollup import is_manifest_key, read_log
from dovetail.lake.snapshot import settle
from dovetail.lake.store import Entry, Store
from dovetail.model.errors import JournalDamaged

DEFAULT_GRACE_S = 86_400
ORPHAN_AGE_S = 86_400


@dataclass(slots=True)
class Swept:
    """How much was deleted, and how much inactive data is not old enough yet."""

    files: int = 0
    bytes: int = 0
    waiting_files: int = 0
    waiting_bytes: int = 0


@dataclass(slots=True)
class _Server:
    """The manifests of one server, and the other objects with its name."""

    manifests: dict[str, Manifest] = field(default_factory=dict)
    modified_s: dict[str, float] = field(default_factory=dict)
    objects: list[tuple[Entry, int]] = field(default_factory=list)
    """Each with its first hop."""

    def split(self, oldest_s: float) -> tuple[set[str], set[str], set[str], list[str]]:
        """Keys of active manifests, of forged ones, of those replaced lately, and of those before `oldest_s`."""
        chosen, false = settle(self.manifests, self.manifests.__getitem__)
        active = set(chosen)
        true = self.manifests.keys() - false
        waiting: set[str] = set()
        over: list[str] = []
        for key in sorted(true - active):
            replaced_s = min(self.modified_s[other] for other in true if self._replaces(other, key))
            if replaced_s < oldest_s:
                over.append(key)
            else:
                waiting.add(key)
        return active, false, waiting, over

    def _replaces(self, key: str, other: str) -> bool:
        manifest, old = self.manifests[key], self.manifests[other]
        if old.id in manifest.replaces:
            return True
        is_wider = manifest.first_seq <= old.first_seq and old.end <= manifest.end
        return old.number is None and manifest.number is None and is_wider and manifest.generation > old.generation

    def not_proven(self, store: Store, active: set[str], over: list[str]) -> set[str]:
        """Those of `over` that were replaced by files without the signed content: the originals must be kept.

        Anyone can write a manifest, so the files that replaced the originals are verified before those are deleted.
        """
        from dovetail.lake.inspect import is_proven  # imports Parquet only if files are read

        kept: set[str] = set()
        for key in active:
            replaced = {other for other in over if self._replaces(key, other)}
            known = self.announced_by(replaced)
            new = [file for file in self.manifests[key].files if file.path not in known] if replaced else []
            if not all(is_proven(store, file) for file in new):
                kept |= replaced
        return kept

    def announced_by(self, keys: Iterable[str]) -> set[str]:
        """All objects that these manifests list, with their companions."""
        return announced_keys(self.manifests[key] for key in keys)


def sweep(store: Store, *, grace_s: float = DEFAULT_GRACE_S, orphan_age_s: float = ORPHAN_AGE_S) -> Swept:
    """Delete what was replaced `grace_s` ago or more, and what interrupted writers left `orphan_age_s` ago."""
    now_s = time.time()
    swept = Swept()
    for server in _gather(store).values():
        active, false, waiting, over = server.split(now_s - grace_s)
        kept = server.not_proven(store, active, over)
        waiting, over = waiting | kept, [key for key in over if key not in kept]
        needed = server.announced_by(active | false)  # one of two with the same hops is taken for forged
        read_lately = server.announced_by(waiting) - needed
        replaced = server.announced_by(over) - needed - read_lately
        end = max((server.manifests[key].end for key in active), default=0)
        gone: list[Entry] = []
        for entry, first_seq in server.objects:
            if entry.key in needed:
                continue
            is_orphan = entry.key not in read_lately and entry.key not in replaced
            is_dead = is_orphan and first_seq < end and entry.modified_s < now_s - orphan_age_s
            if entry.key in replaced or is_dead:
                gone.append(entry)
            else:
                swept.waiting_files += 1
                swept.waiting_bytes += entry.size
        store.delete(entry.key for entry in gone)
        store.delete(over)
        swept.files += len(gone)
        swept.bytes += sum(entry.size for entry in gone)
    return swept


def announced_keys(manifests: Iterable[Manifest]) -> set[str]:
    """All objects that these manifests list, with their companions."""
    return {key for manifest in manifests for file in manifest.files for key in object_keys(manifest.server, file)}


def object_keys(server: str, file: SealedFile) -> list[str]:
    """A file, its index, and its retained fields."""
    return [file.path, index_key(server, file.path), *([file.retained.path] if file.retained else [])]


def _gather(store: Store) -> Mapping[str, _Server]:
    """Everything in the lake by server, without servers that have an unreadable manifest."""
    servers: dict[str, _Server] = {}
    unreadable: set[str] = set()
    # data before manifests: what a manifest lists meanwhile is not taken for an orphan
    objects = [entry for prefix in ("fabric=", f"{INDEXES}/", f"{RETAINED}/") for entry in store.list(prefix)]
    for slug in store.directories(f"{MANIFESTS}/"):
        server = servers[slug] = _Server()
        try:
            log = read_log(store, slug)
            for entry in store.list(f"{MANIFESTS}/{slug}/"):
                if is_manifest_key(entry.key):
                    server.modified_s[entry.key] = entry.modified_s
                    server.manifests[entry.key] = log.read(store, entry.key)
        except (JournalDamaged, OSError):
            unreadable.add(slug)
    for entry in objects:
        hops = hops_of_key(entry.key)
        if hops is not None and hops[0] in servers:
            servers[hops[0]].objects.append((entry, hops[1]))
    return {slug: server for slug, server in servers.items() if slug not in unreadable}
