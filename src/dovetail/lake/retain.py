"""Deleting from the lake what does not count any more, once nobody can need it.

- What a compaction replaced goes after a grace time, so that readers with an older snapshot still find their files: the
  files first, then the manifests.
- Files that no manifest announces were left by sealings and compactions that were interrupted. They go once they can no
  longer be announced: a sealing announces only hops behind what is sealed, and a compaction gives up long before its
  files reach ORPHAN_AGE_S.

A server with a manifest that cannot be read is passed over, since nobody knows what it announces.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from dovetail.lake.layout import INDEXES, MANIFESTS, RETAINED, hops_of_key, index_key
from dovetail.lake.manifest import Manifest, SealedFile
from dovetail.lake.rollup import is_manifest_key, read_log
from dovetail.lake.snapshot import choose
from dovetail.lake.store import Entry, Store
from dovetail.model.errors import JournalDamaged

DEFAULT_GRACE_S = 86_400
ORPHAN_AGE_S = 86_400


@dataclass(slots=True)
class Swept:
    """How much was deleted, and how much that does not count still waits for its time."""

    files: int = 0
    bytes: int = 0
    waiting_files: int = 0
    waiting_bytes: int = 0


@dataclass(slots=True)
class _Server:
    """The manifests of one server, and the other objects that bear its name."""

    manifests: dict[str, Manifest] = field(default_factory=dict)
    modified_s: dict[str, float] = field(default_factory=dict)
    objects: list[tuple[Entry, int]] = field(default_factory=list)
    """Each with its first hop."""

    def split(self, oldest_s: float) -> tuple[set[str], set[str], list[str]]:
        """Keys of the manifests that count, of those replaced lately, and of those replaced before `oldest_s`."""
        active = set(choose(self.manifests, self.manifests.__getitem__))
        waiting: set[str] = set()
        over: list[str] = []
        for key in sorted(self.manifests.keys() - active):
            replaced_s = min(self.modified_s[other] for other in self.manifests if self._replaces(other, key))
            if replaced_s < oldest_s:
                over.append(key)
            else:
                waiting.add(key)
        return active, waiting, over

    def _replaces(self, key: str, other: str) -> bool:
        manifest, old = self.manifests[key], self.manifests[other]
        if old.id in manifest.replaces:
            return True
        is_wider = manifest.first_seq <= old.first_seq and old.end <= manifest.end
        return old.number is None and manifest.number is None and is_wider and manifest.generation > old.generation

    def announced_by(self, keys: Iterable[str]) -> set[str]:
        """All objects that these manifests announce, with what is beside them."""
        return announced_keys(self.manifests[key] for key in keys)


def sweep(store: Store, *, grace_s: float = DEFAULT_GRACE_S, orphan_age_s: float = ORPHAN_AGE_S) -> Swept:
    """Delete what was replaced `grace_s` ago or more, and what interrupted writers left `orphan_age_s` ago."""
    now_s = time.time()
    swept = Swept()
    for server in _gather(store).values():
        active, waiting, over = server.split(now_s - grace_s)
        needed = server.announced_by(active)
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
    """All objects that these manifests announce, with what is beside them."""
    return {key for manifest in manifests for file in manifest.files for key in object_keys(manifest.server, file)}


def object_keys(server: str, file: SealedFile) -> list[str]:
    """A file, its index, and what is retained of it."""
    return [file.path, index_key(server, file.path), *([file.retained.path] if file.retained else [])]


def _gather(store: Store) -> Mapping[str, _Server]:
    """Everything in the lake, by server; without servers whose manifests cannot all be read."""
    servers: dict[str, _Server] = {}
    unreadable: set[str] = set()
    # data before manifests: what a manifest announces meanwhile is not taken for an orphan
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
