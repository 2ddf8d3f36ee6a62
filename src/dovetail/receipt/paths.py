"""The inclusion proofs of one journal's hops: read from the receipt, then checked together.

Hops of one message lie close together, so their paths share their upper halves. What two paths share is hashed once: a
walk that comes to a node which an earlier, good walk has passed with the same hash, and with the same path before it,
leads where that one led.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from dovetail.errors import CheckpointError, ReceiptError
from dovetail.journal.checkpoint import Checkpoint
from dovetail.journal.merkle import verify_inclusion
from dovetail.receipt.format import HopRecord, JournalRecord, decode_hashes


def read_hashes(record: JournalRecord, server: str) -> list[bytes]:
    """The hashes of all paths; each stands once, in the order of its first use, and none is unused."""
    hashes = decode_hashes(record.hashes, f"the hashes of {server}")
    if len(set(hashes)) != len(hashes):
        raise ReceiptError(f"form: a hash of {server} stands twice")
    used = 0
    previous_seq = -1
    for hop in record.hops:
        if hop.seq <= previous_seq:
            raise ReceiptError(f"form: the hops of {server} are not in order, or one stands twice")
        previous_seq = hop.seq
        for number in hop.path:
            if number >= used:
                if number > used or number >= len(hashes):
                    raise ReceiptError(f"form: the path of hop {hop.seq} of {server} names hash {number} out of order")
                used += 1
    if used != len(hashes):
        raise ReceiptError(f"form: {len(hashes) - used} hashes of {server} are used by no path")
    return hashes


class PathWalker:
    """Checks that leaves lie in the tree of one checkpoint."""

    __slots__ = ("_checkpoint", "_hashes", "_passed")

    def __init__(self, checkpoint: Checkpoint, hashes: Sequence[bytes]) -> None:
        self._checkpoint = checkpoint
        self._hashes = hashes
        # a node by its number and that of the last one on its level: its hash, and the path that led on from there
        self._passed: dict[tuple[int, int], tuple[bytes, list[int], int]] = {}

    def check(self, record: HopRecord, leaf: bytes) -> None:
        """RFC 9162, 2.1.3.2. ReceiptError where the hop's path does not lead from its leaf to the root."""
        if self._leads_to_root(record.seq, leaf, record.path):
            return
        checkpoint = self._checkpoint
        try:
            path = [self._hashes[number] for number in record.path]
            verify_inclusion(leaf, record.seq, checkpoint.size, path, checkpoint.root)
        except CheckpointError as error:
            raise ReceiptError(f"inclusion: hop {record.seq} of {checkpoint.origin}: {error}") from None

    def _leads_to_root(self, index: int, leaf: bytes, path: list[int]) -> bool:
        sha256, hashes, passed = hashlib.sha256, self._hashes, self._passed
        node, last, computed = index, self._checkpoint.size - 1, leaf
        if node > last:
            return False
        walked = []
        for position, number in enumerate(path):
            place = (node, last)
            known = passed.get(place)
            if known is not None and known[0] == computed and known[1][known[2] :] == path[position:]:
                break
            if last == 0:
                return False
            walked.append((place, (computed, path, position)))
            if node & 1 or node == last:
                computed = sha256(b"\x01" + hashes[number] + computed).digest()
                while not node & 1 and node:
                    node >>= 1
                    last >>= 1
            else:
                computed = sha256(b"\x01" + computed + hashes[number]).digest()
            node >>= 1
            last >>= 1
        else:
            if last != 0 or computed != self._checkpoint.root:
                return False
        passed.update(walked)
        return True
