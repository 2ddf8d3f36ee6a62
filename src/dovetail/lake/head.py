"""How far a server is sealed, from as few manifests as possible."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from dovetail.lake.claims import is_signed, leads_to_root
from dovetail.lake.layout import INDEXES, MANIFESTS, parse_manifest_key, server_slug
from dovetail.lake.manifest import Manifest
from dovetail.lake.rollup import ManifestLog, read_log, read_newest
from dovetail.lake.snapshot import choose, next_number, precedence
from dovetail.lake.store import Store
from dovetail.model.errors import JournalDamaged
from dovetail.tlog.keys import Verifier
from dovetail.tlog.tree import Frontier


@dataclass(frozen=True, slots=True)
class Head:
    """How far a server is sealed: the manifest that extends furthest, and the next free number.

    `log` is what was read for it, `signed` are the manifests among it with a checkpoint that the server signed, and
    `ignored` are the keys of those newer than the head that are forged or unreadable.
    """

    manifest: Manifest | None
    next_number: int
    log: ManifestLog
    signed: Sequence[Manifest]
    ignored: Sequence[str]

    @property
    def end(self) -> int:
        """How many hops are sealed."""
        return 0 if self.manifest is None else self.manifest.end


def read_head(store: Store, verifier: Verifier) -> Head:
    """How far the server with this key is sealed, from as few manifests as possible.

    Sealings are consecutive, so nothing older than the newest of them extends further; compactions add no hops.
    Somebody may have copied an old manifest to a new number: if there are files beyond the head, all are read.
    """
    return _head_of(store, server_slug(verifier.name), verifier)


def read_heads(store: Store) -> list[Head]:
    """How far each server is sealed, by the keys that its manifests state."""
    return [_head_of(store, directory) for directory in store.directories(f"{MANIFESTS}/")]


def _head_of(store: Store, directory: str, verifier: Verifier | None = None) -> Head:
    log = read_newest(store, directory)
    found = _Found(store, log, verifier)
    head = found.look()
    if head is None and not log.is_complete:
        found = _Found(store, read_log(store, directory), verifier)
        head = found.look()
    prefix = f"{INDEXES}/{directory}/"
    if any(True for _ in store.list(prefix, f"{prefix}{0 if head is None else head.end:019d}")):
        found = _Found(store, read_log(store, directory), verifier)
        head = found.choose()
    return Head(head, next_number(found.read), log, found.signed, found.ignored)


@dataclass(slots=True)
class _Found:
    """What was read to find how far a server is sealed."""

    store: Store
    log: ManifestLog
    verifier: Verifier | None
    read: list[Manifest] = field(default_factory=list)
    signed: list[Manifest] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)
    ends: dict[int, list[Manifest]] = field(default_factory=dict)

    def look(self) -> Manifest | None:
        """The manifest that extends furthest: the newest sealing, or a compaction that extends as far.

        Its files must lead to a signed root, after the tree of one that ends where it begins; so that one is read too.
        """
        names = {key: name for key in self.log.keys if (name := parse_manifest_key(key)) is not None}
        replaced: set[int | str] = set()
        for key in sorted(names, key=lambda key: precedence(names[key]), reverse=True):
            if (manifest := self._read(key)) is None:
                if names[key].id in replaced:
                    self.ignored.remove(key)
                continue
            replaced.update(manifest.replaces)
            if sealed := [each for each in self.signed if not each.is_compaction and self._is_whole(each)]:
                furthest = max(sealed, key=lambda each: each.end)
                same = (each for each in self.signed if each.is_compaction and each.checkpoint == furthest.checkpoint)
                return next(same, furthest)
        return self.choose() if self.log.is_complete else None

    def choose(self) -> Manifest | None:
        """The same, from all that there are."""
        self.signed, self.ignored, self.ends = [], [], {}
        chosen = choose(self.log.keys, self._read, [] if self.verifier is None else [self.verifier])
        active = sorted(filter(None, chosen.values()), key=lambda each: each.end)
        if all(before.end == after.first_seq for before, after in pairwise(active)):
            self.signed = active[-1:]  # its root commits to the others
        return max((each for each in active if self._is_whole(each)), key=lambda each: each.end, default=None)

    def _read(self, key: str) -> Manifest | None:
        """One that its server signed; None if it is another's, forged or unreadable."""
        try:
            manifest = self.log.read(self.store, key)
        except JournalDamaged:
            self.ignored.append(key)
            return None
        if self.verifier is not None and manifest.server != self.verifier.name:
            return None  # another server whose name has the same hash
        self.read.append(manifest)
        if not is_signed(manifest, () if self.verifier is None else [self.verifier]):
            self.ignored.append(key)
            return None
        self.signed.append(manifest)
        self.ends.setdefault(manifest.end, []).append(manifest)
        return manifest

    def _is_whole(self, manifest: Manifest) -> bool:
        if not manifest.first_seq:
            return leads_to_root(manifest, Frontier())
        return any(leads_to_root(manifest, each.tree()) for each in self.ends.get(manifest.first_seq, ()))
