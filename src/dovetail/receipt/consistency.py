"""Proof that a journal only grew between two of its checkpoints: the proof in a receipt, and its use.

A receipt built with an older checkpoint (`since`) contains the RFC 9162 consistency proof from it. Anyone who kept that
checkpoint, or a receipt with it, can then check that nothing before it was changed, removed or inserted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dovetail.model.canonical_base64 import encode_base64
from dovetail.model.errors import CheckpointError, ReceiptError
from dovetail.receipt.format import SinceRecord, decode_hashes, encode_hashes
from dovetail.tlog.checkpoint import Checkpoint
from dovetail.tlog.note import decode_base64
from dovetail.tlog.tree import HASH_BYTES, NodeSource, prove_consistency, verify_consistency


@dataclass(frozen=True, slots=True)
class View:
    """A checkpoint as shown to one party, and an older state that it provably grew from."""

    checkpoint: Checkpoint
    grown_from: Checkpoint | None = None


def prove_since(checkpoint: Checkpoint, olders: Iterable[Checkpoint], node: NodeSource) -> SinceRecord | None:
    """Prove growth from the newest of the server's older checkpoints; ReceiptError if the journal did not only grow."""
    own = [older for older in olders if older.origin == checkpoint.origin and 0 < older.size <= checkpoint.size]
    if not own:
        return None
    older = max(own, key=lambda each: each.size)
    proof = prove_consistency(older.size, checkpoint.size, node)
    try:
        verify_consistency(older.size, older.root, checkpoint.size, checkpoint.root, proof)
    except CheckpointError as error:
        raise ReceiptError(f"consistency: {checkpoint.origin} did not only grow: {error}") from None
    return SinceRecord(size=older.size, root=encode_base64(older.root), proof=encode_hashes(proof))


def check_since(record: SinceRecord | None, checkpoint: Checkpoint) -> View:
    """Check a receipt's consistency proof; returns its view of the journal."""
    if record is None:
        return View(checkpoint)
    root = decode_base64(record.root, f"the older root of {checkpoint.origin}")
    proof = decode_hashes(record.proof, f"the consistency proof of {checkpoint.origin}")
    if len(root) != HASH_BYTES:
        raise ReceiptError(f"form: the older root of {checkpoint.origin} has {len(root)} bytes, expected {HASH_BYTES}")
    try:
        verify_consistency(record.size, root, checkpoint.size, checkpoint.root, proof)
    except CheckpointError as error:
        raise ReceiptError(f"consistency: {checkpoint.origin}: {error}") from None
    return View(checkpoint, Checkpoint(checkpoint.origin, record.size, root))


def compare_views(views: Sequence[View], others: Iterable[View]) -> list[str]:
    """Check that both show the same growing journals; returns the findings in words, ReceiptError if they differ.

    Two checkpoints of equal size must have equal roots. If sizes differ, the larger view must prove growth from the
    smaller.
    """
    found = []
    by_server = {view.checkpoint.origin: view for view in views}
    for other in others:
        view = by_server.get(other.checkpoint.origin)
        if view is None:
            continue
        small, large = sorted((view, other), key=lambda each: each.checkpoint.size)
        server, size = small.checkpoint.origin, small.checkpoint.size
        if large.checkpoint.size == size:
            if large.checkpoint.root != small.checkpoint.root:
                raise ReceiptError(f"against: {server} signed two different journals of {size} hops")
            found.append(f"{server} showed the same journal of {size} hops both times")
            continue
        if large.grown_from is None or large.grown_from.size != size:
            raise ReceiptError(
                f"against: no proof that the journal of {server} grew from {size} to {large.checkpoint.size} hops; "
                "build the newer receipt with --since"
            )
        if large.grown_from.root != small.checkpoint.root:
            raise ReceiptError(f"against: {server} rewrote its journal between {size} and {large.checkpoint.size} hops")
        found.append(f"the journal of {server} only grew from {size} to {large.checkpoint.size} hops")
    if not found:
        raise ReceiptError("against: the two have no server in common")
    return found
