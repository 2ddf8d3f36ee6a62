"""Which files of the lake are proven to have the rows that their servers signed.

Only the rows of files that a server's own signed tree commits to are taken, whatever else manifests announce.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dovetail.audit.ingest_log import FileFact, ManifestFact
from dovetail.lake.claims import is_signed, leads_to_root
from dovetail.lake.manifest import Manifest
from dovetail.model.errors import CheckpointError
from dovetail.tlog.keys import Verifier, parse_verifier
from dovetail.tlog.tree import Frontier, aligned_ranges


def proven_paths(manifests: Sequence[ManifestFact], files: Sequence[FileFact]) -> set[str]:
    """Files whose rows are exactly those that their announced subtree commits to."""
    read = {fact.path: fact for fact in files}
    return {
        file.path
        for fact in manifests
        if fact.manifest is not None
        for file in fact.manifest.files
        if file.path in read and read[file.path].is_proven(file, fact.manifest.server)
    }


def committed_paths(manifests: Sequence[ManifestFact], trusted: Sequence[Verifier] = ()) -> set[str]:
    """Files that a server's own signed tree commits to: only their rows are taken, whatever else is announced.

    A manifest's files must lead to the root signed with the server's key. If earlier hops are in no manifest, the files
    that make up whole peaks of the signed tree are taken.
    """
    by_server: dict[str, list[Manifest]] = {}
    for fact in manifests:
        if fact.manifest is not None:
            by_server.setdefault(fact.manifest.server, []).append(fact.manifest)
    committed: set[str] = set()
    for server, own in by_server.items():
        own.sort(key=lambda manifest: (manifest.first_seq, manifest.end))
        keys = [verifier for verifier in trusted if verifier.name == server] if trusted else stated_keys(own[0])
        tree = Frontier()
        for manifest in own:
            if not keys or not is_signed(manifest, keys):
                continue
            committed.update(_under_signed_root(manifest, tree))
            if manifest.end > tree.size:
                tree = manifest.tree()  # its root is the signed one
    return committed


def stated_keys(manifest: Manifest) -> list[Verifier]:
    """The key that a manifest states, if it is one."""
    try:
        return [parse_verifier(manifest.key)]
    except CheckpointError:
        return []


def _under_signed_root(manifest: Manifest, before: Frontier) -> Iterator[str]:
    """The files of a signed manifest that fold, after the tree before it, to its root; else those of whole peaks."""
    if before.size == manifest.first_seq and leads_to_root(manifest, before):
        yield from (file.path for file in manifest.files)
        return
    known = {file.first_seq: file for file in manifest.files}
    for (first, level), peak in zip(aligned_ranges(0, manifest.end), manifest.tree().peaks(), strict=True):
        tree, inside = Frontier(), []
        while tree.size < 1 << level and (found := known.get(first + tree.size)) is not None and found.level <= level:
            tree.append(bytes.fromhex(found.root), found.level)
            inside.append(found.path)
        if tree.size == 1 << level and tree.root() == peak:
            yield from inside
