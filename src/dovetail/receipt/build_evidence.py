"""Builds evidence of split views by servers and forks by authors; verified before it is returned, like a receipt."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from dovetail.fabrics import fabric_named
from dovetail.journal.hop_source import HopSource
from dovetail.model.address import Address
from dovetail.model.canonical_base64 import encode_base64
from dovetail.model.errors import ReceiptError
from dovetail.model.fabric import Fabric
from dovetail.receipt.build import BuildOptions, common_fabric, first_raw, pin_sources, record_journal
from dovetail.receipt.consistency import View
from dovetail.receipt.fork import NAMES, find_contradiction, read_signed, state_fork
from dovetail.receipt.format import (
    Fork,
    NoteRecord,
    SplitView,
    carry_note,
    encode_hashes,
    encode_receipt,
    record_message,
)
from dovetail.receipt.proof import ProvenMessage
from dovetail.receipt.sources import check_covers
from dovetail.receipt.split_view import state_split_view
from dovetail.receipt.verify import verify_receipt
from dovetail.tlog.checkpoint import SignedCheckpoint
from dovetail.tlog.keys import Verifier
from dovetail.tlog.tree import Frontier, NodeSource, aligned_ranges, prove_consistency


def build_split_view(
    one: SignedCheckpoint, other: SignedCheckpoint, keys: Sequence[Verifier], source: HopSource | None = None
) -> bytes:
    """Build evidence against a server that signed both; ReceiptError if they do not contradict each other.

    If the sizes differ, `source` must have the hops of the larger one.
    """
    first, second = sorted((one, other), key=lambda each: (each.size, each.note))
    origin = first.checkpoint.origin
    if origin != second.checkpoint.origin:
        raise ReceiptError(f"{origin} and {second.checkpoint.origin} are two servers")
    root: bytes | None = None
    proof: list[bytes] | None = None
    if first.size != second.size:
        if source is None:
            raise ReceiptError(f"to compare {first.size} with {second.size} hops, the journal of the larger is needed")
        check_covers(source, second)
        root = root_of_first(first.size, source.node)
        proof = prove_consistency(first.size, second.size, source.node)
    if (root or second.root) == first.root:
        raise ReceiptError(f"the checkpoints of {first.size} and {second.size} hops do not contradict each other")
    own = [key for key in keys if key.name == origin]
    receipt = SplitView(
        claim=[state_split_view(first.checkpoint, second.checkpoint, root)],
        first=_without_witnesses(first, own),
        second=_without_witnesses(second, own),
        root=None if root is None else encode_base64(root),
        proof=None if proof is None else encode_hashes(proof),
    )
    data = encode_receipt(receipt)
    verify_receipt(data, own)
    return data


def build_fork(sources: Sequence[HopSource], addresses: tuple[Address, Address], keys: Sequence[Verifier]) -> bytes:
    """Build evidence against the author of two signed messages; the author's key must be in `keys`."""
    options = BuildOptions()
    pinned = pin_sources(sources, options)
    fabric = fabric_named(common_fabric(pinned, addresses))
    holders = [holder for holder in pinned if holder.source.fabric == fabric.name]
    messages = [
        ProvenMessage(address=address, name=name, raw=first_raw(holders, address))
        for address, name in zip(sorted(addresses), NAMES, strict=True)
    ]
    for message in messages:
        if message.raw is None:
            raise ReceiptError(f"no journal here has signed bytes of {fabric.show_address(message.address)}")
    trusted = frozenset([*keys, *(holder.source.verifier for holder in holders)])
    contradiction, author = _contradiction_of(fabric, messages)
    journals, stated = [], []
    for holder in holders:
        kept = [each for message in messages for each in holder.signed_hops(message.address)]
        if kept:
            kept.sort(key=lambda each: each.hop.seq)
            record = record_journal(holder, kept, messages, options)
            journals.append(record)
            stated.append((View(holder.signed.checkpoint), [each.hop for each in kept]))
    receipt = Fork(
        claim=state_fork(fabric, contradiction, author, messages, stated),
        contradiction=contradiction,
        messages=[record_message(message.address, message.raw, None) for message in messages],
        journals=journals,
    )
    data = encode_receipt(receipt)
    verify_receipt(data, trusted)
    return data


def _contradiction_of(fabric: Fabric, messages: Sequence[ProvenMessage]) -> tuple[str, str]:
    """The kind of contradiction and its author."""
    info, _ = read_signed(fabric, messages[0])
    for kind in fabric.conflict_keys(info):
        with contextlib.suppress(ReceiptError):
            return kind, find_contradiction(fabric, kind, messages)
    raise ReceiptError("the messages do not contradict each other")


def root_of_first(size: int, node: NodeSource) -> bytes:
    """The root over the first `size` leaves of a tree."""
    tree = Frontier()
    for start, level in aligned_ranges(0, size):
        tree.append(node(level, start >> level), level)
    return tree.root()


def _without_witnesses(signed: SignedCheckpoint, own: Sequence[Verifier]) -> NoteRecord:
    """A note with only the server's own signature."""
    note = carry_note(signed.note, own)
    body = signed.checkpoint.body()
    first = note.checkpoint[len(body) + 1 :].partition("\n")[0]
    return NoteRecord(checkpoint=f"{body}\n{first}\n", keys=note.keys[:1])
