"""The Merkle tree of RFC 9162 over a journal's hops: roots, inclusion proofs, consistency proofs.

Pure hash arithmetic. Proofs are built from perfect subtrees, which the caller looks up through a `NodeSource`:
`node(level, index)` is the hash of the leaves `index << level` up to `(index + 1) << level`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence

from dovetail.fast import twin
from dovetail.model.errors import CheckpointError

HASH_BYTES = 32
MAX_LEVEL = 63
EMPTY_ROOT = hashlib.sha256(b"").digest()

NodeSource = Callable[[int, int], bytes]


def hash_leaf(entry: bytes) -> bytes:
    """RFC 9162, 2.1.1: the hash of one entry."""
    return hashlib.sha256(b"\x00" + entry).digest()


def hash_children(left: bytes, right: bytes) -> bytes:
    """RFC 9162, 2.1.1: the hash of an inner node."""
    return hashlib.sha256(b"\x01" + left + right).digest()


def fold_perfect(hashes: Sequence[bytes]) -> bytes:
    """The root of a perfect subtree, given the hashes of one level; their number is a power of two."""
    return fold(b"".join(hashes))


@twin
def fold(level: bytes) -> bytes:
    """Same as `fold_perfect`, for concatenated hashes."""
    count = len(level) // HASH_BYTES
    if not count or count & (count - 1) or len(level) % HASH_BYTES:
        raise ValueError(f"a perfect subtree has a power of two of hashes, got {len(level)} bytes")
    sha256 = hashlib.sha256
    while len(level) > HASH_BYTES:
        level = b"".join(
            [sha256(b"\x01" + level[i : i + 2 * HASH_BYTES]).digest() for i in range(0, len(level), 2 * HASH_BYTES)]
        )
    return level


def split_hashes(hashes: bytes) -> list[bytes]:
    """Split concatenated hashes."""
    return [hashes[start : start + HASH_BYTES] for start in range(0, len(hashes), HASH_BYTES)]


class Frontier:
    """The peaks of a growing tree: enough to append and to compute the root, in logarithmic space."""

    __slots__ = ("_peaks", "size")

    def __init__(self, size: int = 0, peaks: Iterable[bytes] = ()) -> None:
        hashes = list(peaks)
        levels = _peak_levels(size)
        if len(levels) != len(hashes):
            raise ValueError(f"a tree of {size} leaves has {len(levels)} peaks, got {len(hashes)}")
        self.size = size
        self._peaks = list(zip(levels, hashes, strict=True))

    def append(self, subtree: bytes, level: int = 0) -> None:
        """Append one leaf hash, or a perfect subtree of `1 << level` leaves at an aligned position."""
        if self.size & ((1 << level) - 1):
            raise ValueError(f"a subtree of {1 << level} leaves cannot stand at {self.size}")
        self.size += 1 << level
        peaks = self._peaks
        while peaks and peaks[-1][0] == level:
            subtree = hash_children(peaks.pop()[1], subtree)
            level += 1
        peaks.append((level, subtree))

    def root(self) -> bytes:
        """RFC 9162, 2.1.1: the Merkle tree hash of all leaves appended so far."""
        if not self._peaks:
            return EMPTY_ROOT
        root = self._peaks[-1][1]
        for _, peak in reversed(self._peaks[:-1]):
            root = hash_children(peak, root)
        return root

    def peaks(self) -> list[bytes]:
        """The hashes of the perfect subtrees, left to right, as the constructor takes them."""
        return [peak for _, peak in self._peaks]

    def copy(self) -> Frontier:
        """Return an independent copy."""
        return Frontier(self.size, self.peaks())


def aligned_ranges(first: int, end: int, max_level: int = MAX_LEVEL) -> list[tuple[int, int]]:
    """Split `[first, end)` into the fewest perfect subtrees, as (start, level) from left to right."""
    ranges = []
    while first < end:
        level = min((first & -first).bit_length() - 1 if first else MAX_LEVEL, (end - first).bit_length() - 1)
        level = min(level, max_level)
        ranges.append((first, level))
        first += 1 << level
    return ranges


def prove_inclusion(index: int, size: int, node: NodeSource) -> list[bytes]:
    """RFC 9162, 2.1.3.1: the path from leaf `index` to the root of the tree with `size` leaves."""
    if not 0 <= index < size:
        raise ValueError(f"leaf {index} is not in a tree of {size} leaves")
    path: list[bytes] = []
    first, end = 0, size
    while end - first > 1:
        split = first + _split(end - first)
        if index < split:
            path.append(_range_root(split, end, node))
            end = split
        else:
            path.append(_range_root(first, split, node))
            first = split
    path.reverse()
    return path


def prove_consistency(old_size: int, size: int, node: NodeSource) -> list[bytes]:
    """RFC 9162, 2.1.4.1: prove that the tree of `old_size` leaves is a prefix of the tree of `size` leaves."""
    if not 0 <= old_size <= size:
        raise ValueError(f"a tree of {size} leaves cannot begin with one of {old_size}")
    if old_size in (0, size):
        return []
    path: list[bytes] = []
    first, end = 0, size
    whole = True
    while old_size != end:
        split = first + _split(end - first)
        if old_size <= split:
            path.append(_range_root(split, end, node))
            end = split
        else:
            path.append(_range_root(first, split, node))
            first = split
            whole = False
    if not whole:
        path.append(_range_root(first, end, node))
    path.reverse()
    return path


def verify_inclusion(leaf: bytes, index: int, size: int, path: Sequence[bytes], root: bytes) -> None:
    """RFC 9162, 2.1.3.2. Raises CheckpointError if `path` does not lead from `leaf` to `root`."""
    if not 0 <= index < size:
        raise CheckpointError(f"leaf {index} is not in a tree of {size} leaves")
    sides = _sides(index, size - 1)
    if len(path) != len(sides):
        raise CheckpointError(f"inclusion proof of {len(path)} hashes, expected {len(sides)}")
    computed = leaf
    for step, is_left in zip(path, sides, strict=True):
        computed = hash_children(step, computed) if is_left else hash_children(computed, step)
    if computed != root:
        raise CheckpointError(f"inclusion proof of leaf {index} leads to another root than that of {size} leaves")


def verify_consistency(old_size: int, old_root: bytes, size: int, root: bytes, path: Sequence[bytes]) -> None:
    """RFC 9162, 2.1.4.2. Raises CheckpointError if the old tree is not a prefix of the new one."""
    if not 0 <= old_size <= size:
        raise CheckpointError(f"a tree of {size} leaves cannot begin with one of {old_size}")
    if old_size in (0, size):
        if path:
            raise CheckpointError(f"consistency proof of {len(path)} hashes, expected none")
        if old_root != (EMPTY_ROOT if old_size == 0 else root):
            raise CheckpointError(f"two different roots for {old_size} leaves")
        return
    level = (old_size & -old_size).bit_length() - 1  # of the last perfect subtree of the old tree
    is_perfect = old_size == 1 << level
    sides = _sides((old_size - 1) >> level, (size - 1) >> level)
    expected = len(sides) + (not is_perfect)
    if len(path) != expected:
        raise CheckpointError(f"consistency proof of {len(path)} hashes, expected {expected}")
    start, steps = (old_root, path) if is_perfect else (path[0], path[1:])
    old_computed = computed = start
    for step, is_left in zip(steps, sides, strict=True):
        if is_left:
            old_computed = hash_children(step, old_computed)
            computed = hash_children(step, computed)
        else:
            computed = hash_children(computed, step)
    if old_computed != old_root or computed != root:
        raise CheckpointError(f"the tree of {size} leaves does not begin with that of {old_size} leaves")


def _sides(node: int, last: int) -> list[bool]:
    """For each hash on the path from a node to the root: is it the left one? `last` is the last node of the level."""
    sides = []
    while last:
        is_left = bool(node & 1) or node == last
        if is_left:
            while not node & 1:  # the last node of a level has no sibling: it moves up unchanged
                node >>= 1
                last >>= 1
        sides.append(is_left)
        node >>= 1
        last >>= 1
    return sides


def _split(leaves: int) -> int:
    """The largest power of two smaller than `leaves`."""
    return 1 << ((leaves - 1).bit_length() - 1)


def _range_root(first: int, end: int, node: NodeSource) -> bytes:
    """The root over `[first, end)`, where `first` is aligned like a node of the tree."""
    hashes = [node(level, start >> level) for start, level in aligned_ranges(first, end)]
    root = hashes[-1]
    for left in reversed(hashes[:-1]):
        root = hash_children(left, root)
    return root


def _peak_levels(size: int) -> list[int]:
    return [level for level in range(size.bit_length() - 1, -1, -1) if size >> level & 1]
