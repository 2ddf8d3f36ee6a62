import hashlib

import pytest

from dovetail.model.errors import CheckpointError
from dovetail.tlog.tree import (
    EMPTY_ROOT,
    Frontier,
    aligned_ranges,
    fold_perfect,
    hash_leaf,
    prove_consistency,
    prove_inclusion,
    verify_consistency,
    verify_inclusion,
)
from tlog.trees import root_of

# the eight entries and roots that implementations of Certificate Transparency share as reference data
ENTRIES = [
    bytes.fromhex(text)
    for text in (
        "",
        "00",
        "10",
        "2021",
        "3031",
        "40414243",
        "5051525354555657",
        "606162636465666768696a6b6c6d6e6f",
    )
]
ROOTS = [
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
]
LEAVES = [hash_leaf(b"%d" % i) for i in range(40)]


def slow_root(leaves):
    """RFC 9162, 2.1.1, word for word."""
    if not leaves:
        return hashlib.sha256(b"").digest()
    if len(leaves) == 1:
        return leaves[0]
    k = 1
    while k * 2 < len(leaves):
        k *= 2
    return hashlib.sha256(b"\x01" + slow_root(leaves[:k]) + slow_root(leaves[k:])).digest()


def node(level, number):
    return slow_root(LEAVES[number << level : (number + 1) << level])


@pytest.mark.parametrize("size", range(1, 9))
def test_roots_equal_the_reference_data(size):
    assert root_of(hash_leaf(entry) for entry in ENTRIES[:size]).hex() == ROOTS[size - 1]


def test_the_empty_tree_has_the_hash_of_nothing():
    assert Frontier().root() == EMPTY_ROOT == hashlib.sha256(b"").digest()


@pytest.mark.parametrize("size", range(41))
def test_a_frontier_has_the_root_of_the_definition(size):
    frontier = Frontier()
    for leaf in LEAVES[:size]:
        frontier.append(leaf)
    assert frontier.root() == slow_root(LEAVES[:size])
    assert Frontier(size, frontier.peaks()).root() == frontier.root()


@pytest.mark.parametrize("size", range(1, 41))
def test_every_leaf_is_included_and_no_other(size):
    root = slow_root(LEAVES[:size])
    for index in range(size):
        path = prove_inclusion(index, size, node)
        verify_inclusion(LEAVES[index], index, size, path, root)
        for other in range(size):
            if other != index:
                with pytest.raises(CheckpointError):
                    verify_inclusion(LEAVES[other], index, size, path, root)


@pytest.mark.parametrize("size", range(1, 41))
def test_every_tree_begins_with_its_earlier_ones(size):
    root = slow_root(LEAVES[:size])
    for old_size in range(size + 1):
        path = prove_consistency(old_size, size, node)
        old_root = slow_root(LEAVES[:old_size])
        verify_consistency(old_size, old_root, size, root, path)
        with pytest.raises(CheckpointError):
            verify_consistency(old_size, hash_leaf(b"other"), size, root, path)


def test_altered_shortened_and_lengthened_proofs_are_refused():
    size, index = 23, 13
    root = slow_root(LEAVES[:size])
    path = prove_inclusion(index, size, node)
    old_path = prove_consistency(11, size, node)
    old_root = slow_root(LEAVES[:11])
    for bad in _alterations(path):
        with pytest.raises(CheckpointError):
            verify_inclusion(LEAVES[index], index, size, bad, root)
    for bad in _alterations(old_path):
        with pytest.raises(CheckpointError):
            verify_consistency(11, old_root, size, root, bad)


def _alterations(path):
    yield path[:-1]
    yield path[1:]
    yield [*path, bytes(32)]
    yield [bytes(32), *path]
    yield [bytes(32)] * 100
    for i, step in enumerate(path):
        yield [*path[:i], bytes([step[0] ^ 1]) + step[1:], *path[i + 1 :]]


def test_proofs_outside_the_tree_are_refused():
    with pytest.raises(ValueError, match="leaf 5"):
        prove_inclusion(5, 5, node)
    with pytest.raises(ValueError, match="cannot begin"):
        prove_consistency(6, 5, node)
    with pytest.raises(CheckpointError):
        verify_inclusion(LEAVES[0], -1, 5, [], LEAVES[0])


@pytest.mark.parametrize(("first", "end"), [(0, 0), (0, 13), (13, 20), (5, 6), (7, 64), (0, 64)])
def test_ranges_are_aligned_and_cover_exactly(first, end):
    position = first
    for start, level in aligned_ranges(first, end):
        assert start == position
        assert start % (1 << level) == 0
        position += 1 << level
    assert position == end


def test_a_frontier_takes_whole_subtrees():
    frontier = Frontier()
    for start, level in aligned_ranges(0, 37):
        frontier.append(fold_perfect(LEAVES[start : start + (1 << level)]), level)
    assert frontier.root() == slow_root(LEAVES[:37])
    with pytest.raises(ValueError, match="cannot stand at 37"):
        frontier.append(LEAVES[0], 1)
