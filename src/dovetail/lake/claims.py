"""Whether a manifest is believed, and whether it may replace others.

Anyone with write access to the lake can write a manifest without a key. One that is not signed with its server's key is
forged. So is one that carries a copy of a signed checkpoint, but not the files that lead to it, or that announces hops
a second time.

A compaction signs nothing: its manifest carries the checkpoint of the last manifest that it replaces. So its claim is
checked: its files must lead to the signed root, it must cover every hop of the manifests that it replaces, and its
checkpoint must be theirs.

Manifests that fail are ignored by every reader and replace nothing; the audit reports them. Two histories that the
server itself signed are never ignored: they are evidence.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence

from dovetail.lake.manifest import Manifest
from dovetail.model.errors import CheckpointError
from dovetail.tlog.checkpoint import parse_checkpoint, verify_checkpoint
from dovetail.tlog.keys import Verifier, parse_verifier
from dovetail.tlog.tree import Frontier


def holds(claim: Manifest, replaced: Sequence[Manifest], others: Callable[[], Iterable[Manifest]]) -> bool:
    """Whether a manifest has exactly the hops of those that it replaces; only those that still exist are compared.

    `others` are manifests of the same server: one that ends where the claim begins provides the tree before it. That
    one may be false too, since only the correct tree leads to a signed root.
    """
    if not replaced:
        return True  # it replaces none
    if any(old.first_seq < claim.first_seq or old.end > claim.end for old in replaced):
        return False
    last = [old for old in replaced if old.end == claim.end]
    if any((old.key, old.checkpoint) != (claim.key, claim.checkpoint) for old in last):
        return False
    if not last and not (all(old.key == claim.key for old in replaced) and is_signed(claim)):
        return False
    if not claim.first_seq:
        return leads_to_root(claim, Frontier())
    return any(other.end == claim.first_seq and leads_to_root(claim, other.tree()) for other in others())


def find_forged(manifests: Mapping[str, Manifest], trusted: Sequence[Verifier] = ()) -> set[str]:
    """The keys of the forged ones among the active manifests of one server.

    Without a trusted key the first hops vouch for one. If they do so for two, nobody can tell which is the server's.
    """
    ordered = sorted(manifests, key=lambda key: (manifests[key].first_seq, _age(manifests[key])))
    verifiers = [each for each in trusted if each.name == manifests[ordered[0]].server]
    verifiers = verifiers or _first_keys(manifests[key] for key in ordered)
    if not verifiers:
        return set()
    starts = [manifests[key].first_seq for key in ordered]
    if starts == [0, *(manifests[key].end for key in ordered[:-1])] and is_signed(manifests[ordered[-1]], verifiers):
        return set()  # the usual case: its root commits to all others
    signed = {key for key in ordered if is_signed(manifests[key], verifiers)}
    chain, tree = list[str](), Frontier()
    for key in ordered:
        manifest = manifests[key]
        if key in signed and manifest.first_seq == tree.size and leads_to_root(manifest, tree):
            chain.append(key)
            tree = manifest.tree()
    known = {root for key in chain for root in _signed_roots(manifests[key])}
    copies = {key for key in signed.difference(chain) if (manifests[key].end, _root(manifests[key])) in known}
    return manifests.keys() - signed | copies if chain else set()


def _age(manifest: Manifest) -> tuple[bool, int]:
    """Older ones sort first; one without a number, next to one with the same hops that has one, was put there later."""
    return manifest.number is None, manifest.number or 0


def _first_keys(manifests: Iterable[Manifest]) -> list[Verifier]:
    """The one key that has signed a server's first hops; none if there are two."""
    first = [each for each in manifests if not each.first_seq and is_signed(each) and leads_to_root(each, Frontier())]
    keys = {each.key for each in first}
    return [parse_verifier(key) for key in keys] if len(keys) == 1 else []


def _signed_roots(manifest: Manifest) -> Iterable[tuple[int, bytes]]:
    """Size and root of its checkpoint and of the earlier ones that it keeps."""
    for note in (manifest.checkpoint, *(earlier.note for earlier in manifest.earlier)):
        with contextlib.suppress(CheckpointError):
            signed = parse_checkpoint(note)
            yield signed.size, signed.root


def _root(manifest: Manifest) -> bytes:
    return manifest.signed_checkpoint().root


def is_signed(manifest: Manifest, verifiers: Sequence[Verifier] = ()) -> bool:
    """Whether the checkpoint is signed with one of these keys, or with the one that the manifest states."""
    try:
        verify_checkpoint(manifest.checkpoint, verifiers or [parse_verifier(manifest.key)])
    except CheckpointError:
        return False
    return True


def leads_to_root(manifest: Manifest, before: Frontier) -> bool:
    """Whether its files, after the tree before them, lead to the root of its checkpoint."""
    tree = before.copy()
    for file in manifest.files:
        tree.append(bytes.fromhex(file.root), file.level)
    return tree.root() == manifest.signed_checkpoint().root
