"""The tree over a journal's hops, kept in blocks of 256 leaves so that any proof needs few reads.

Leaves are never stored whole: a block keeps its root and, of every leaf hash, the first 8 bytes. The root lets proofs
skip the block; the 8 bytes let `journal verify` name the very row that is wrong. Leaves of the one block a proof goes
through are hashed again from the hops.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from dovetail.journal.database import BLOCK_LEAVES, BLOCK_LEVEL, CHECK_BYTES
from dovetail.journal.encoding import hash_runs
from dovetail.journal.layout import REASON_OF_CODE, STAGE_OF_CODE, Run, unpack_names
from dovetail.journal.messages import MessageRow
from dovetail.journal.reader import Commit, JournalReader
from dovetail.model.errors import JournalDamaged
from dovetail.tlog.tree import (
    HASH_BYTES,
    Frontier,
    aligned_ranges,
    fold,
    fold_perfect,
    prove_consistency,
    prove_inclusion,
)

_BLOCK_BYTES = BLOCK_LEAVES * HASH_BYTES


@dataclass(slots=True)
class TreeGrowth:
    """What a stretch of leaves adds to the stored tree: rows of `blocks` and `nodes`."""

    blocks: list[tuple[int, bytes, bytes]] = field(default_factory=list)
    nodes: list[tuple[int, int, bytes]] = field(default_factory=list)


class GrowingTree:
    """Takes leaf hashes in order; gives roots and the rows to store.

    Start it from what is stored: `groups` are, for each stored level, the hashes that do not yet fill the next level.
    """

    __slots__ = ("_blocks", "_groups", "_tail", "growth")

    def __init__(self, groups: dict[int, list[bytes]] | None = None, size: int = 0) -> None:
        self._groups = groups or {}
        self._tail = b""
        self._blocks = Frontier()
        self.growth = TreeGrowth()
        """What has become full since it was last taken."""
        for level in sorted(self._groups, reverse=True):
            for node in self._groups[level]:
                self._blocks.append(node, level)
        if self._blocks.size != size:
            raise ValueError(f"stored nodes cover {self._blocks.size} of {size} leaves")

    @property
    def size(self) -> int:
        """How many leaves it has."""
        return self._blocks.size + len(self._tail) // HASH_BYTES

    def root(self) -> bytes:
        """The root over all leaves so far."""
        frontier = self._blocks.copy()
        first = frontier.size
        for start, level in aligned_ranges(first, self.size):
            place = (start - first) * HASH_BYTES
            frontier.append(fold(self._tail[place : place + (HASH_BYTES << level)]), level)
        return frontier.root()

    def open_block(self) -> tuple[int, bytes, bytes] | None:
        """The row of the block that is not full yet: no root, the checks of its leaves so far."""
        if not self._tail:
            return None
        return self._blocks.size >> BLOCK_LEVEL, b"", _checks(self._tail)

    def extend(self, leaves: bytes) -> None:
        """Append leaf hashes that lie behind each other."""
        leaves = self._tail + leaves
        end = len(leaves) - len(leaves) % _BLOCK_BYTES
        for start in range(0, end, _BLOCK_BYTES):
            self._close_block(leaves[start : start + _BLOCK_BYTES])
        self._tail = leaves[end:]

    def take_growth(self) -> TreeGrowth:
        """What has become full since this was last asked."""
        growth, self.growth = self.growth, TreeGrowth()
        return growth

    def _close_block(self, leaves: bytes) -> None:
        root = fold(leaves)
        number = self._blocks.size >> BLOCK_LEVEL
        self.growth.blocks.append((number, root, _checks(leaves)))
        self._blocks.append(root, BLOCK_LEVEL)
        level = BLOCK_LEVEL
        group = self._groups.setdefault(level, [])
        group.append(root)
        while len(group) == BLOCK_LEAVES:
            node = fold_perfect(group)
            group.clear()
            level += BLOCK_LEVEL
            self.growth.nodes.append((level, (self._blocks.size >> level) - 1, node))
            group = self._groups.setdefault(level, [])
            group.append(node)


def _checks(leaves: bytes) -> bytes:
    return b"".join([leaves[start : start + CHECK_BYTES] for start in range(0, len(leaves), HASH_BYTES)])


class JournalTree:
    """The tree of one journal, read through a reader: leaf hashes, proofs, and where to go on hashing."""

    __slots__ = ("_reader",)

    def __init__(self, reader: JournalReader) -> None:
        self._reader = reader

    def prove_inclusion(self, seq: int, size: int) -> list[bytes]:
        """The RFC 9162 path from hop `seq` to the root of the first `size` hops."""
        return prove_inclusion(seq, size, self.node)

    def prove_consistency(self, old_size: int, size: int) -> list[bytes]:
        """The RFC 9162 proof that the first `size` hops begin with the first `old_size`."""
        return prove_consistency(old_size, size, self.node)

    def leaf_hashes(self, first: int, end: int) -> Iterator[bytes]:
        """Leaf hashes of hops from `first` up to and without `end`, computed from the rows, a commit at a time."""
        for commit in self._reader.commits(first, end):
            seq, at_us, runs = commit.runs_between(first, end)
            messages = self._reader.messages_by_id({run.message_id for run in runs})
            leaves = self._hash_runs(seq, at_us, runs, messages)
            yield leaves[max(first - seq, 0) * HASH_BYTES : (end - seq) * HASH_BYTES]

    def hash_commit(self, commit: Commit, messages: dict[int, MessageRow]) -> bytes:
        """Leaf hashes of all hops of a commit, in their order."""
        return self._hash_runs(commit.first_seq, commit.first_at_us, commit.runs, messages)

    def _hash_runs(self, seq: int, at_us: int, runs: list[Run], messages: dict[int, MessageRow]) -> bytes:
        """Leaf hashes of runs that begin at hop `seq`, the first of them counting its time from `at_us`."""
        try:
            leaves = hash_runs(seq, at_us, runs, messages, self._reader.names, STAGE_OF_CODE, REASON_OF_CODE)
            if isinstance(leaves, list):
                ids = list({name_id for run in runs for name_id in unpack_names(run.counterparts)})
                names = dict(zip(ids, self._reader.names_of(ids), strict=True))
                leaves = hash_runs(seq, at_us, runs, messages, names, STAGE_OF_CODE, REASON_OF_CODE)
        except ValueError as error:
            raise JournalDamaged(f"{self._reader.path}: {error}") from None
        assert isinstance(leaves, bytes)
        return leaves

    def stored(self) -> GrowingTree:
        """The tree up to its last full block, ready to be extended."""
        blocks = self._full_blocks()
        groups: dict[int, list[bytes]] = {}
        level, count = BLOCK_LEVEL, blocks
        while count:
            start = count - count % BLOCK_LEAVES
            groups[level] = [self._stored_node(level, number) for number in range(start, count)]
            level, count = level + BLOCK_LEVEL, count // BLOCK_LEAVES
        return GrowingTree(groups, blocks << BLOCK_LEVEL)

    def node(self, level: int, number: int) -> bytes:
        """The hash of a perfect subtree, from the nearest stored level at or below it."""
        if level < BLOCK_LEVEL or self._is_unstored(level, number):
            start = number << level
            return fold(b"".join(self.leaf_hashes(start, start + (1 << level))))
        stored = level - level % BLOCK_LEVEL
        first = number << (level - stored)
        return fold_perfect([self._stored_node(stored, first + i) for i in range(1 << (level - stored))])

    @property
    def stored_size(self) -> int:
        """How many leaves are in stored blocks that are full."""
        return self._full_blocks() << BLOCK_LEVEL

    def _is_unstored(self, level: int, number: int) -> bool:
        """Whether the subtree reaches beyond the last stored block."""
        return (number + 1) << level > self._full_blocks() << BLOCK_LEVEL

    def _full_blocks(self) -> int:
        row = self._reader.one("SELECT number, root FROM blocks ORDER BY number DESC LIMIT 1")
        if row is None:
            return 0
        self._reader.check_types(row, "blocks", int, bytes)
        return int(row[0]) + (1 if row[1] else 0)

    def _stored_node(self, level: int, number: int) -> bytes:
        if level == BLOCK_LEVEL:
            row = self._reader.one("SELECT root FROM blocks WHERE number = ?", (number,))
        else:
            row = self._reader.one("SELECT hash FROM nodes WHERE level = ? AND number = ?", (level, number))
        if row is None:
            last = ((number + 1) << level) - 1
            raise JournalDamaged(f"{self._reader.path}: hops {number << level} to {last}: node of the tree is missing")
        self._reader.check_types(row, "blocks" if level == BLOCK_LEVEL else "nodes", bytes)
        node: bytes = row[0]
        return node
