"""The inclusion proofs of one journal's hops: read from the receipt, then verified together.

Hops of one message are close together, so the upper halves of their paths are equal. Shared parts are hashed once: at
the node where the paths of a leaf and the previously verified leaf meet, verification stops if the hash and the rest
of the path are the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from dovetail.model.errors import CheckpointError, ReceiptError
from dovetail.receipt.format import HopRecord, JournalRecord, decode_hashes
from dovetail.tlog.checkpoint import Checkpoint
from dovetail.tlog.tree import MAX_LEVEL, verify_inclusion


def read_hashes(record: JournalRecord, server: str) -> list[bytes]:
    """The hashes of all paths; each occurs once, in order of first use, and all are used."""
    hashes = decode_hashes(record.hashes, f"the hashes of {server}")
    if len(set(hashes)) != len(hashes):
        raise ReceiptError(f"form: a hash of {server} occurs twice")
    used = 0
    previous_seq = -1
    for hop in record.hops:
        if hop.seq <= previous_seq:
            raise ReceiptError(f"form: the hops of {server} are not in order, or one occurs twice")
        previous_seq = hop.seq
        fresh = [number for number in hop.path if number >= used]
        for number in fresh:
            if number != used or number >= len(hashes):
                raise ReceiptError(f"form: the path of hop {hop.seq} of {server} names hash {number} out of order")
            used += 1
    if used != len(hashes):
        raise ReceiptError(f"form: {len(hashes) - used} hashes of {server} are used by no path")
    return hashes


class PathWalker:
    """Checks that leaves are in the tree of one checkpoint; fastest in leaf order."""

    __slots__ = ("_checkpoint", "_hashes", "_index", "_passed", "_path", "_rests")

    def __init__(self, checkpoint: Checkpoint, hashes: Sequence[bytes]) -> None:
        self._checkpoint = checkpoint
        self._hashes = hashes
        # the last verified path: its leaf, its hashes, and by level the node passed and how much of the path was left
        self._index: int | None = None
        self._path: list[int] = []
        self._passed = [b""] * (MAX_LEVEL + 1)
        self._rests = [0] * (MAX_LEVEL + 1)

    def check(self, record: HopRecord, leaf: bytes) -> None:
        """RFC 9162, 2.1.3.2. Raises ReceiptError if the hop's path does not lead from its leaf to the root."""
        if self._leads_to_root(record.seq, leaf, record.path):
            self._index, self._path = record.seq, record.path
            return
        self._index = None
        checkpoint = self._checkpoint
        try:
            path = [self._hashes[number] for number in record.path]
            verify_inclusion(leaf, record.seq, checkpoint.size, path, checkpoint.root)
        except CheckpointError as error:
            raise ReceiptError(f"inclusion: hop {record.seq} of {checkpoint.origin}: {error}") from None

    def _leads_to_root(self, index: int, leaf: bytes, path: list[int]) -> bool:
        sha256, hashes = hashlib.sha256, self._hashes
        before, passed, rests = self._path, self._passed, self._rests
        node, last, computed = index, self._checkpoint.size - 1, leaf
        if node > last:
            return False
        # from this level up, both leaves are below one node
        meeting = -1 if self._index is None else (index ^ self._index).bit_length()
        level, rest = 0, len(path)
        for number in path:
            if last == 0:
                return False
            if (
                level == meeting
                and passed[level] == computed
                and rests[level] == rest
                and before[-rest:] == path[-rest:]
            ):
                return True
            passed[level] = computed
            rests[level] = rest
            if node & 1:
                computed = sha256(b"\x01" + hashes[number] + computed).digest()
            elif node != last:
                computed = sha256(b"\x01" + computed + hashes[number]).digest()
            else:
                computed = sha256(b"\x01" + hashes[number] + computed).digest()
                while not node & 1 and node:
                    node >>= 1
                    last >>= 1
                    level += 1
            node >>= 1
            last >>= 1
            level += 1
            rest -= 1
        return last == 0 and computed == self._checkpoint.root
