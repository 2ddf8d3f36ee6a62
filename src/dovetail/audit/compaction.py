"""What a compaction does to a server's part of the lake, planned from the manifests alone.

Consecutive manifests whose hops were first seen on one UTC date, and that lie wholly before the date given, become one
manifest of a higher generation. Their files are joined where they form a larger perfect subtree of one date: every file
keeps a power of two of hops, and its root follows from the roots of the files it is made of. So what is written can be
checked against what was announced before, and the signed checkpoints stay what they are. The checkpoints in between are
kept, each with a proof that its hops are the first ones of the next.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import msgspec

from dovetail.lake.index import index_path
from dovetail.lake.manifest import (
    COMPACTED_FORMAT,
    EarlierCheckpoint,
    Manifest,
    SealedFile,
    generation_mark,
    range_name,
    server_slug,
)
from dovetail.lake.segments import MAX_SEGMENT_LEVEL
from dovetail.tlog.tree import Frontier, aligned_ranges, prove_consistency

KEPT = "_kept"
MAX_EARLIER = 4096
"""A manifest holds at most about so many earlier checkpoints; further ones go into the next."""

_DAY_US = 86_400_000_000


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """A file to be: its inputs follow each other and form one perfect subtree."""

    server: str
    fabric: str
    path: str
    root: str
    inputs: list[SealedFile]

    @property
    def kept_path(self) -> str:
        """Where that which is kept of removed bytes goes."""
        return f"{KEPT}/{self.path}"

    @property
    def written(self) -> list[str]:
        """Everything that rewriting it may write."""
        return [self.path, self.kept_path, str(index_path(Path(), self.server, self.path))]

    @property
    def bytes(self) -> int:
        """How much there is to read."""
        return sum(file.bytes for file in self.inputs)

    @property
    def is_merge(self) -> bool:
        """Several files become one."""
        return len(self.inputs) > 1

    def may_expire(self, before_us: int) -> bool:
        """Bytes that expired before this time may be in it, for all that is known without reading it."""
        return any(file.bytes_until_us < before_us for file in self.inputs)


@dataclass(frozen=True, slots=True)
class Group:
    """Manifests that become one; `tree` is that of the hops before them."""

    manifests: Sequence[Manifest]
    tree: Frontier
    targets: Sequence[Target]

    @property
    def server(self) -> str:
        """Whose hops these are."""
        return self.manifests[0].server

    @property
    def generation(self) -> int:
        """The generation that replaces them."""
        return max(manifest.generation for manifest in self.manifests) + 1

    @property
    def bytes(self) -> int:
        """How much there is to read."""
        return sum(target.bytes for target in self.targets)

    def replace_with(self, files: Sequence[SealedFile]) -> Manifest:
        """The manifest that takes the place of all of them, over the same hops."""
        last = self.manifests[-1]
        return Manifest(
            format=COMPACTED_FORMAT,
            server=last.server,
            fabric=last.fabric,
            key=last.key,
            checkpoint=last.checkpoint,
            frontier=last.frontier,
            files=list(files),
            generation=self.generation,
            earlier=self._earlier(),
        )

    def _earlier(self) -> list[EarlierCheckpoint]:
        """All checkpoints but the last. Those of earlier compactions lead to one of these, and stay as they are."""
        node = _Roots([*_peaks(self.tree), *(file for manifest in self.manifests for file in manifest.files)])
        end = self.manifests[-1].end
        earlier = []
        for manifest in self.manifests:
            earlier += manifest.earlier
            if manifest.end != end:
                proof = prove_consistency(manifest.end, end, node)
                earlier.append(
                    EarlierCheckpoint(note=manifest.checkpoint, end=end, proof=[item.hex() for item in proof])
                )
        return earlier


@dataclass(frozen=True, slots=True)
class _Peak:
    first_seq: int
    level: int
    root: str

    @property
    def end(self) -> int:
        return self.first_seq + (1 << self.level)


def _peaks(tree: Frontier) -> Iterator[_Peak]:
    for (first, level), root in zip(aligned_ranges(0, tree.size), tree.peaks(), strict=True):
        yield _Peak(first, level, root.hex())


class _Roots:
    """Perfect subtrees from those of files: a proof between two ends of files never needs a part of one."""

    def __init__(self, parts: Sequence[_Peak | SealedFile]) -> None:
        self._parts = parts
        self._starts = [part.first_seq for part in parts]

    def __call__(self, level: int, number: int) -> bytes:
        index = bisect.bisect_left(self._starts, number << level)
        tree = Frontier()
        while tree.size < 1 << level:
            part = self._parts[index]
            tree.append(bytes.fromhex(part.root), part.level)
            index += 1
        return tree.root()


def plan_groups(manifests: Sequence[Manifest], *, before_us: int, target_bytes: int) -> list[Group]:
    """What becomes of one server's manifests, given in order and without gaps from hop 0."""
    groups: list[Group] = []
    pending: list[Manifest] = []
    tree = Frontier()
    for manifest in manifests:
        if manifest.files[-1].last_at_us >= before_us:
            break
        if pending and not _belongs(manifest, pending):
            groups.append(_close(pending, tree, target_bytes))
            tree = pending[-1].tree()
            pending = []
        pending.append(manifest)
    if pending:
        groups.append(_close(pending, tree, target_bytes))
    return groups


def _belongs(manifest: Manifest, pending: Sequence[Manifest]) -> bool:
    checkpoints = sum(1 + len(item.earlier) for item in pending)
    return (
        _day(manifest) == _day(pending[0])
        and manifest.key == pending[0].key
        and checkpoints + 1 + len(manifest.earlier) <= MAX_EARLIER
    )


def _day(manifest: Manifest) -> int:
    return manifest.files[0].first_at_us // _DAY_US


def _close(manifests: Sequence[Manifest], tree: Frontier, target_bytes: int) -> Group:
    generation = max(manifest.generation for manifest in manifests) + 1
    files = [file for manifest in manifests for file in manifest.files]
    targets: list[Target] = []
    start = 0
    for index, file in enumerate(files):
        # files of one directory are of one date
        if index + 1 == len(files) or PurePosixPath(files[index + 1].path).parent != PurePosixPath(file.path).parent:
            joined = _join(files[start : index + 1], target_bytes)
            targets += [_target(manifests[0], inputs, generation) for inputs in joined]
            start = index + 1
    return Group(tuple(manifests), tree.copy(), targets)


def _join(files: Sequence[SealedFile], target_bytes: int) -> Iterator[Sequence[SealedFile]]:
    """Consecutive files in runs that form perfect subtrees, as large as alignment and `target_bytes` allow."""
    starts = [file.first_seq for file in files]
    pending = list(reversed(aligned_ranges(files[0].first_seq, files[-1].end, MAX_SEGMENT_LEVEL)))
    while pending:
        position, level = pending.pop()
        first = bisect.bisect_left(starts, position)
        inside = files[first : bisect.bisect_left(starts, position + (1 << level))]
        if len(inside) > 1 and sum(file.bytes for file in inside) > target_bytes:
            half = 1 << (level - 1)
            pending += [(position + half, level - 1), (position, level - 1)]
        else:
            yield inside


def _target(manifest: Manifest, inputs: Sequence[SealedFile], generation: int) -> Target:
    first, end = inputs[0].first_seq, inputs[-1].end
    tree = Frontier()
    for file in inputs:
        tree.append(bytes.fromhex(file.root), file.level)
    name = f"{server_slug(manifest.server)}.{range_name(first, end)}{generation_mark(generation)}.parquet"
    return Target(
        server=manifest.server,
        fabric=manifest.fabric,
        path=str(PurePosixPath(inputs[0].path).with_name(name)),
        root=tree.root().hex(),
        inputs=list(inputs),
    )
