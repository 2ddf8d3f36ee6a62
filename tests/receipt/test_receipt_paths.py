from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.model.address import address_of
from dovetail.model.errors import CheckpointError, ReceiptError
from dovetail.receipt.format import HopRecord, JournalRecord, encode_hashes
from dovetail.receipt.paths import PathWalker, read_hashes
from dovetail.tlog.checkpoint import Checkpoint
from dovetail.tlog.tree import fold_perfect, prove_inclusion, verify_inclusion
from tlog.trees import root_of


def hop(seq: int, path: list[int]) -> HopRecord:
    return HopRecord(at=0, seq=seq, stage="accepted", path=path)


def journal(size: int, seqs: list[int]) -> tuple[Checkpoint, list[bytes], list[bytes], list[HopRecord]]:
    """A tree of `size` leaves with the paths of some, as in a receipt."""
    leaves = [address_of(b"leaf %d" % number) for number in range(size)]
    numbers: dict[bytes, int] = {}

    def node(level: int, number: int) -> bytes:
        return fold_perfect(leaves[number << level : (number + 1) << level])

    hops = [
        hop(seq, [numbers.setdefault(step, len(numbers)) for step in prove_inclusion(seq, size, node)]) for seq in seqs
    ]
    return Checkpoint("pcp://b/server", size, root_of(leaves)), leaves, list(numbers), hops


def is_good(checkpoint, hashes, record, leaf) -> bool:
    """Verify as in RFC 9162, one path at a time."""
    try:
        verify_inclusion(leaf, record.seq, checkpoint.size, [hashes[n] for n in record.path], checkpoint.root)
    except CheckpointError:
        return False
    return True


@pytest.mark.exhaustive
@settings(max_examples=300, deadline=None)
@given(st.data())
def test_paths_together_are_good_where_each_is_good_alone(data):
    size = data.draw(st.integers(1, 40))
    seqs = sorted(data.draw(st.sets(st.integers(0, size - 1), min_size=1, max_size=8)))
    checkpoint, leaves, hashes, hops = journal(size, seqs)
    walker = PathWalker(checkpoint, hashes)
    for record in hops:
        leaf, path = leaves[record.seq], list(record.path)
        match data.draw(st.integers(0, 7)):
            case 0:
                leaf = address_of(b"another")
            case 1 if path:
                path[data.draw(st.integers(0, len(path) - 1))] = data.draw(st.integers(0, len(hashes) - 1))
            case 2 if path:
                path.pop()
            case 3 if hashes:
                path.append(data.draw(st.integers(0, len(hashes) - 1)))
            case 4 if path:
                del path[data.draw(st.integers(0, len(path) - 1))]
            case _:
                pass
        changed = hop(record.seq, path)
        if is_good(checkpoint, hashes, changed, leaf):
            walker.check(changed, leaf)
        else:
            with pytest.raises(ReceiptError, match=rf"^inclusion: hop {record.seq} of pcp://b/server: "):
                walker.check(changed, leaf)


def test_a_path_that_leaves_a_shared_one_above_is_not_taken_for_good():
    checkpoint, leaves, hashes, hops = journal(16, [4, 5])
    walker = PathWalker(checkpoint, hashes)
    walker.check(hops[0], leaves[4])
    wrong = [*hops[1].path[:-1], hops[1].path[0]]
    with pytest.raises(ReceiptError, match="leads to another root"):
        walker.check(hop(5, wrong), leaves[5])


def test_a_path_that_skips_a_hash_behind_the_meeting_is_not_taken_for_good():
    checkpoint, leaves, hashes, hops = journal(16, [4, 5])
    walker = PathWalker(checkpoint, hashes)
    walker.check(hops[0], leaves[4])
    # the two meet one level up; the rest of the path ends like the good one
    assert hops[1].path[1:] == hops[0].path[1:]
    with pytest.raises(ReceiptError, match="expected 4"):
        walker.check(hop(5, [hops[1].path[0], *hops[1].path[2:]]), leaves[5])


@pytest.mark.parametrize(
    ("paths", "hashes", "match"),
    [
        ([[0], [0]], 2, "1 hashes of pcp://b/server are used by no path"),
        ([[1]], 2, "names hash 1 out of order"),
        ([[0, 1, 2]], 2, "names hash 2 out of order"),
    ],
)
def test_hashes_are_all_used_in_the_order_of_their_first_use(paths, hashes, match):
    table = encode_hashes([address_of(b"%d" % number) for number in range(hashes)])
    record = JournalRecord(
        checkpoint="x", keys=["k"], hashes=table, hops=[hop(seq, path) for seq, path in enumerate(paths)]
    )
    with pytest.raises(ReceiptError, match=match):
        read_hashes(record, "pcp://b/server")


def test_a_hash_or_hop_that_stands_twice_is_refused():
    one = address_of(b"one")
    twice = JournalRecord(checkpoint="x", keys=["k"], hashes=encode_hashes([one, one]), hops=[hop(0, [0, 1])])
    with pytest.raises(ReceiptError, match="occurs twice"):
        read_hashes(twice, "s")
    hops = JournalRecord(checkpoint="x", keys=["k"], hashes=encode_hashes([one]), hops=[hop(3, [0]), hop(3, [0])])
    with pytest.raises(ReceiptError, match="not in order, or one occurs twice"):
        read_hashes(hops, "s")
