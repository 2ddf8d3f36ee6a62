"""Split views: two checkpoints that one server signed and that cannot both be true, as evidence anyone can check.

Two checkpoints of one size with different roots contradict each other directly. If sizes differ, the consistency proof
of the larger tree shows which root its first hops really have (RFC 9162, 2.1.4): if that is not the smaller
checkpoint's root, the server rewrote its journal, or shows different journals to different people.
"""

from __future__ import annotations

from dovetail.model.errors import CheckpointError, ReceiptError
from dovetail.receipt.claims import check_claim
from dovetail.receipt.format import SplitView, check_note, decode_hashes
from dovetail.receipt.proof import Policy, Proof, check_trust, server_fabric
from dovetail.tlog.checkpoint import Checkpoint
from dovetail.tlog.keys import Verifier
from dovetail.tlog.note import decode_base64
from dovetail.tlog.tree import HASH_BYTES, verify_consistency

_LIMITS = (
    "which of the two is true",
    "whether it was the server or somebody else who holds its key",
)


def check_split_view(receipt: SplitView, trusted: frozenset[Verifier], policy: Policy) -> Proof:
    """Check that a trusted key signed two journals that cannot both be true."""
    if len(receipt.first.keys) > 1 or len(receipt.second.keys) > 1:
        raise ReceiptError("form: a split view carries no cosignatures")
    signatories = tuple(check_trust(check_note(note), trusted, policy) for note in (receipt.first, receipt.second))
    first, second = (signatory.checkpoint for signatory in signatories)
    if first.origin != second.origin:
        raise ReceiptError("split view: the checkpoints are of two servers")
    if (first.size, receipt.first.checkpoint) >= (second.size, receipt.second.checkpoint):
        raise ReceiptError("form: the checkpoints are not in order")
    root = _check_root(receipt, first, second)
    if (root or second.root) == first.root:
        raise ReceiptError("split view: the two checkpoints do not contradict each other")
    check_claim(receipt.claim, [state_split_view(first, second, root)])
    return Proof(
        kind="split view",
        fabric=server_fabric(first.origin),
        claims=tuple(receipt.claim),
        not_proven=_LIMITS,
        signatories=signatories,
    )


def _check_root(receipt: SplitView, first: Checkpoint, second: Checkpoint) -> bytes | None:
    """The root of the second journal's first hops, if it has more than the first."""
    if first.size == second.size:
        if receipt.root is not None or receipt.proof is not None:
            raise ReceiptError("form: checkpoints of one size need no proof")
        return None
    root = decode_base64(receipt.root or "", "the root")
    proof = decode_hashes(receipt.proof or "", "the proof")
    if len(root) != HASH_BYTES or receipt.proof is None:
        raise ReceiptError("form: checkpoints of two sizes need a root and a proof")
    try:
        verify_consistency(first.size, root, second.size, second.root, proof)
    except CheckpointError as error:
        raise ReceiptError(f"consistency: {error}") from None
    return root


def state_split_view(first: Checkpoint, second: Checkpoint, root: bytes | None) -> str:
    if root is None:
        return (
            f"{first.origin} signed two different journals of {first.size} hops, "
            f"with the roots {first.root.hex()} and {second.root.hex()}"
        )
    return (
        f"{first.origin} signed a journal of {first.size} hops with the root {first.root.hex()}, and a journal of "
        f"{second.size} hops whose first {first.size} have the root {root.hex()}"
    )
