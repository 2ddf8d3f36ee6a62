"""The Merkle scan, without Spark."""

from __future__ import annotations

import hashlib

import pyarrow as pa
import pytest

from dovetail.audit.merkle_scan import Node, decode_part, merge_parts, push_leaves, walk_files
from dovetail.tlog.tree import fold_perfect
from tlog.trees import root_of

LEAVES = [hashlib.sha256(bytes([number])).digest() for number in range(64)]


def rows(first, count, *, file="f", times=None, valid=True, seqs=None):
    seqs = list(range(first, first + count)) if seqs is None else seqs
    return pa.RecordBatch.from_pydict(
        {
            "file": [file] * len(seqs),
            "server": ["s"] * len(seqs),
            "seq": pa.array(seqs, pa.int64()),
            "at_us": pa.array(times or [seq * 10 for seq in seqs], pa.int64()),
            "leaf_hash": [LEAVES[seq] for seq in seqs],
            "leaf_valid": [valid] * len(seqs),
        }
    )


def walk(*batches):
    return [decode_part(row["part"]) for batch in walk_files(batches) for row in batch.to_pylist()]


@pytest.mark.parametrize("cuts", [[32], [1, 31], [7, 9, 16], [16, 16], [5] * 6 + [2]])
def test_however_the_rows_come_they_fold_to_one_root(cuts):
    batches, first = [], 32
    for cut in cuts:
        batches.append(rows(first, cut))
        first += cut
    (part,) = walk(*batches)
    assert part.nodes == [Node(5, 1, fold_perfect(LEAVES[32:64]))]
    assert (part.rows, part.breaks, part.backwards, part.invalid) == (32, 0, 0, 0)


def test_parts_of_one_file_are_merged_in_any_order():
    parts = [walk(rows(first, 8))[0] for first in (24, 0, 16, 8)]
    assert merge_parts(parts).nodes == [Node(5, 0, root_of(LEAVES[:32]))]


def test_files_are_told_apart():
    first, second = walk(rows(0, 4, file="a"), rows(4, 4, file="b"))
    assert (first.file, second.file) == ("a", "b")
    assert second.nodes == [Node(2, 1, fold_perfect(LEAVES[4:8]))]


def test_a_missing_row_breaks_the_order_and_leaves_no_single_root():
    (part,) = walk(rows(0, 0, seqs=[0, 1, 3, 4]))
    assert (part.breaks, part.first_break) == (1, 3)
    assert len(part.nodes) > 1


def test_time_going_backwards_is_noted_across_batches_and_parts():
    (part,) = walk(rows(0, 2, times=[5, 9]), rows(2, 2, times=[8, 20]))
    assert (part.backwards, part.first_backwards) == (1, 2)
    later = walk(rows(4, 2, times=[19, 30]))[0]
    assert (merge_parts([part, later]).backwards, part.first_backwards) == (2, 2)


def test_invalid_rows_are_counted_and_the_first_is_named():
    (part,) = walk(rows(0, 2), rows(2, 2, valid=False))
    assert (part.invalid, part.first_invalid) == (2, 2)


def test_no_rows_give_no_part():
    assert walk(rows(0, 0)) == []


def test_a_subtree_that_does_not_start_aligned_stays_in_pieces():
    stack: list[Node] = []
    push_leaves(stack, 3, LEAVES[3:8])
    assert [(node.level, node.index) for node in stack] == [(0, 3), (2, 1)]
