"""The tree over a journal's hops, stored in blocks of 256 leaves so that any proof needs few reads.

Leaf hashes are not stored in full: a block stores its root and the first 8 bytes of every leaf hash. The root lets
proofs skip the block; the 8 bytes let `journal verify` name the exact row that is wrong. Leaves of the one block that a
proof passes through are rehashed from the hops.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

from dovetail.fast import twin
from dovetail.journal.database import BLOCK_LEAVES, BLOCK_LEVEL, CHECK_BYTES
from dovetail.journal.layout import REASON_OF_CODE, STAGE_OF_CODE
from dovetail.journal.messages import MessagesRow
from dovetail.journal.reader import CommitRow, JournalReader
from dovetail.journal.stored import HashedCommit, HopHasher, Missing
from dovetail.model.errors import JournalDamaged
from dovetail.tlog.tree import (
    HASH_BYTES,
    Frontier,
    aligned_ranges,
    fold,
    fold_perfect,
)

_BLOCK_BYTES = BLOCK_LEAVES * HASH_BYTES
_ALL = (1 << 63) - 1
_CHECK = f"{CHECK_BYTES}s{HASH_BYTES - CHECK_BYTES}x"
_block_checks = struct.Struct(_CHECK * BLOCK_LEAVES).unpack


@dataclass(slots=True)
class TreeGrowth:
    """What a range of leaves adds to the stored tree: rows of `blocks` and `nodes`."""

    blocks: list[tuple[int, bytes, bytes]] = field(default_factory=list)
    nodes: list[tuple[int, int, bytes]] = field(default_factory=list)


class GrowingTree:
    """Takes leaf hashes in order; returns roots and the rows to store.

    It starts from the stored tree: `groups` has, for each stored level, the hashes that do not yet fill the next level.
    """

    __slots__ = ("_blocks", "_groups", "_tail", "growth")

    def __init__(self, groups: dict[int, list[bytes]] | None = None, size: int = 0) -> None:
        self._groups = groups or {}
        self._tail = b""
        self._blocks = Frontier()
        self.growth = TreeGrowth()
        """What has been completed since it was last taken."""
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
        return self._blocks.size >> BLOCK_LEVEL, b"", checks_of(self._tail)

    def extend(self, leaves: bytes) -> None:
        """Append concatenated leaf hashes."""
        leaves = self._tail + leaves
        end = len(leaves) - len(leaves) % _BLOCK_BYTES
        for start in range(0, end, _BLOCK_BYTES):
            self._close_block(leaves[start : start + _BLOCK_BYTES])
        self._tail = leaves[end:]

    def take_growth(self) -> TreeGrowth:
        """Take what has been completed since the last call."""
        growth, self.growth = self.growth, TreeGrowth()
        return growth

    def _close_block(self, leaves: bytes) -> None:
        root = fold(leaves)
        number = self._blocks.size >> BLOCK_LEVEL
        self.growth.blocks.append((number, root, checks_of(leaves)))
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


@twin
def checks_of(leaves: bytes) -> bytes:
    """The leading bytes of every leaf hash, as stored."""
    count, rest = divmod(len(leaves), HASH_BYTES)
    if rest:
        raise ValueError(f"leaf hashes have {HASH_BYTES} bytes each, got {len(leaves)} bytes")
    return b"".join(_block_checks(leaves) if count == BLOCK_LEAVES else struct.unpack(_CHECK * count, leaves))


class JournalTree:
    """The tree of one journal, through a reader: leaf hashes, proofs, and where to resume hashing."""

    __slots__ = ("_hasher", "_reader")

    def __init__(self, reader: JournalReader) -> None:
        self._reader = reader
        self._hasher = HopHasher(STAGE_OF_CODE, REASON_OF_CODE)

    def leaf_hashes(self, first: int, end: int) -> Iterator[bytes]:
        """Leaf hashes of hops from `first` up to but excluding `end`, computed from the rows, one commit at a time."""
        for commit in self._reader.commit_rows(first, end):
            yield self.hash_commit(commit, first, end).leaves

    def hash_commit(self, commit: CommitRow, first: int = 0, end: int = _ALL) -> HashedCommit:
        """Decode a commit, with the leaf hashes of its hops from `first` up to but excluding `end`."""
        try:
            while True:
                found = self._hasher.hash_commit(commit.first_seq, commit.first_at_us, commit.rows, first, end)
                if len(found) != len(Missing._fields):
                    hashed = HashedCommit._make(found)
                    break
                self._add_missing(commit, Missing._make(found))
        except (ValueError, OverflowError) as error:
            raise JournalDamaged(f"{self._reader.path}: hops {commit.first_seq} to {commit.end - 1}: {error}") from None
        if hashed.last_at_us != commit.last_at_us:
            raise JournalDamaged(
                f"{self._reader.path}: hops {commit.first_seq} to {commit.end - 1}: their times contradict each other"
            )
        return hashed

    def add_messages(self, row: MessagesRow) -> int:
        """Add messages that the next commit names; otherwise they are read from the file. Returns how many there are.

        They may lack their bytes and expiries.
        """
        return self._hasher.add_messages(row.first_id, row.rows)

    def _add_missing(self, commit: CommitRow, missing: Missing) -> None:
        end = 0
        for message_id in missing.message_ids:
            if message_id < end:
                continue
            row = self._reader.row_of_message(message_id)
            if row is None or self.add_messages(row) != row.count:
                raise JournalDamaged(
                    f"{self._reader.path}: hop {commit.first_seq} names message {message_id}, "
                    "which is missing or unreadable"
                )
            end = row.end
        if missing.name_ids:
            names = self._reader.names_of(missing.name_ids)
            self._hasher.add_names(list(zip(missing.name_ids, names, strict=True)))

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
            return self.fold(b"".join(self.leaf_hashes(start, start + (1 << level))), level, number)
        stored = level - level % BLOCK_LEVEL
        first = number << (level - stored)
        return fold_perfect([self._stored_node(stored, first + i) for i in range(1 << (level - stored))])

    def fold(self, leaves: bytes, level: int, number: int) -> bytes:
        """The hash of a subtree from its leaf hashes; JournalDamaged if some are missing."""
        if len(leaves) != HASH_BYTES << level:
            first, end = number << level, (number + 1) << level
            raise JournalDamaged(f"{self._reader.path}: hops {first} to {end - 1} are not all there")
        return fold(leaves)

    @property
    def stored_size(self) -> int:
        """How many leaves are in full stored blocks."""
        return self._full_blocks() << BLOCK_LEVEL

    def _is_unstored(self, level: int, number: int) -> bool:
        """True if the subtree extends beyond the last stored block."""
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
        if len(node) != HASH_BYTES:
            raise JournalDamaged(f"{self._reader.path}: a node of the tree has {len(node)} bytes")
        return node
