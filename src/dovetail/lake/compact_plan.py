"""Plans what a compaction does to a server's part of the lake, from the manifests alone.

Consecutive manifests whose hops were first seen on one UTC date, and that are wholly before the given date, become one.
Their files are merged if they form a larger perfect subtree of one date: every file keeps a power of two of hops, and
its root follows from the roots of its input files. So the output can be checked against the earlier manifests, and the
signed checkpoints stay valid. The checkpoints in between are kept, each with a proof that its hops are the first ones
of the next.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

from dovetail.lake.layout import check_data_key
from dovetail.lake.manifest import MANIFEST_FORMAT, EarlierCheckpoint, Manifest, SealedFile
from dovetail.lake.segments import MAX_SEGMENT_LEVEL
from dovetail.tlog.tree import Frontier, aligned_ranges, prove_consistency

MAX_EARLIER = 4096
"""About how many earlier checkpoints a manifest has at most; further ones go into the next."""

_DAY_US = 86_400_000_000


class CompactionTask(msgspec.Struct, frozen=True, kw_only=True):
    """One file to write: its inputs are consecutive and form one perfect subtree."""

    server: str
    fabric: str
    date: str
    root: str
    inputs: list[SealedFile]

    @property
    def id(self) -> tuple[str, int]:
        """Identifies the task within one compaction."""
        return self.server, self.inputs[0].first_seq

    @property
    def rows(self) -> int:
        """How many hops it has."""
        return sum(file.rows for file in self.inputs)

    @property
    def bytes(self) -> int:
        """How many bytes to read."""
        return sum(file.bytes for file in self.inputs)

    @property
    def is_merge(self) -> bool:
        """True if several files become one."""
        return len(self.inputs) > 1

    def may_expire(self, before_us: int) -> bool:
        """Whether it may have bytes that expired before this time, judging by its manifest alone."""
        return any(file.bytes_until_us < before_us for file in self.inputs)


@dataclass(frozen=True, slots=True)
class CompactionGroup:
    """Manifests that become one; `tree` is the tree of the hops before them."""

    manifests: Sequence[Manifest]
    tree: Frontier
    tasks: Sequence[CompactionTask]

    @property
    def server(self) -> str:
        """Whose hops these are."""
        return self.manifests[0].server

    @property
    def bytes(self) -> int:
        """How many bytes to read."""
        return sum(task.bytes for task in self.tasks)

    def replace_with(self, files: Sequence[SealedFile]) -> Manifest:
        """The manifest that replaces all of them, over the same hops; it has no number yet."""
        last = self.manifests[-1]
        replaced = {name for manifest in self.manifests for name in (manifest.id, *manifest.replaces)}
        return Manifest(
            format=MANIFEST_FORMAT,
            server=last.server,
            fabric=last.fabric,
            key=last.key,
            checkpoint=last.checkpoint,
            frontier=last.frontier,
            files=list(files),
            replaces=sorted(replaced, key=lambda name: (isinstance(name, int), name)),
            earlier=self._earlier(),
        )

    def _earlier(self) -> list[EarlierCheckpoint]:
        """All checkpoints except the last. Those of earlier compactions lead to one of these, and stay unchanged."""
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


def _peaks(tree: Frontier) -> Iterator[_Peak]:
    for (first, level), root in zip(aligned_ranges(0, tree.size), tree.peaks(), strict=True):
        yield _Peak(first, level, root.hex())


class _Roots:
    """Perfect subtrees from those of files: a proof between two file boundaries never needs part of a file."""

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


def plan_groups(manifests: Sequence[Manifest], *, before_us: int, target_bytes: int) -> list[CompactionGroup]:
    """Plan the compaction of one server's manifests, given in order and without gaps from hop 0."""
    groups: list[CompactionGroup] = []
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


def _close(manifests: Sequence[Manifest], tree: Frontier, target_bytes: int) -> CompactionGroup:
    dated = [(_date_of(manifest, file), file) for manifest in manifests for file in manifest.files]
    tasks: list[CompactionTask] = []
    start = 0
    for index, (date, _) in enumerate(dated, 1):
        if index == len(dated) or dated[index][0] != date:
            joined = _join([file for _, file in dated[start:index]], target_bytes)
            tasks += [_task(manifests[0], inputs, date) for inputs in joined]
            start = index
    return CompactionGroup(tuple(manifests), tree.copy(), tasks)


def _date_of(manifest: Manifest, file: SealedFile) -> str:
    return check_data_key(file.path, manifest.server, manifest.fabric, file.first_seq, file.end).date


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


def _task(manifest: Manifest, inputs: Sequence[SealedFile], date: str) -> CompactionTask:
    tree = Frontier()
    for file in inputs:
        tree.append(bytes.fromhex(file.root), file.level)
    return CompactionTask(
        server=manifest.server, fabric=manifest.fabric, date=date, root=tree.root().hex(), inputs=list(inputs)
    )
