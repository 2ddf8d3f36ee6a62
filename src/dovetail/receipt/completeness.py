"""Completeness: these are all hops of a server in a time range; nothing is missing, nothing was added.

A journal's hops are numbered without gaps and their times never decrease. So a run of consecutive hops that starts with
a hop before the time range (or the start of the journal) and ends with one after it (or the end of the journal)
contains all hops in it. One proof covers the whole run: the roots of the subtrees beside it, left to right, combine
with the leaves to the root of the checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dovetail.journal.hop_source import CommittedHop, HopSource
from dovetail.model.address import Address
from dovetail.model.errors import ReceiptError
from dovetail.model.hop import Hop
from dovetail.model.times import time_text
from dovetail.receipt.claims import check_claim, describe_commitment
from dovetail.receipt.consistency import View
from dovetail.receipt.delivery import read_hop
from dovetail.receipt.format import (
    MAX_HOPS,
    Completeness,
    Exchange,
    HopRecord,
    NoteRecord,
    RangeHop,
    carry_note,
    check_note,
    decode_hashes,
    decode_receipt,
    encode_hashes,
    encode_receipt,
)
from dovetail.receipt.proof import Policy, Proof, Signatory, check_clock, check_trust, server_fabric
from dovetail.receipt.sources import check_covers
from dovetail.tlog.checkpoint import Checkpoint, SignedCheckpoint
from dovetail.tlog.keys import Verifier
from dovetail.tlog.leaf import NO_DIGEST, encode_entry
from dovetail.tlog.tree import NodeSource, aligned_ranges, hash_children, hash_leaf


@dataclass(frozen=True, slots=True)
class Range:
    """Consecutive hops of one server around a time range, and the hashes that prove them."""

    signed: SignedCheckpoint
    journal: NoteRecord
    first: int
    kept: Sequence[CommittedHop]
    hashes: str

    @property
    def records(self) -> list[RangeHop]:
        """The hops as receipt records."""
        return [_record(each) for each in self.kept]


@dataclass(frozen=True, slots=True)
class CheckedRange:
    """All hops in a time range, with the digests that their leaves commit to."""

    signatory: Signatory
    fabric: str
    inside: tuple[tuple[Hop, bytes], ...]
    limits: tuple[str, ...]

    @property
    def checkpoint(self) -> Checkpoint:
        """The checkpoint that commits to them."""
        return self.signatory.checkpoint


def build_completeness(
    source: HopSource,
    since_us: int,
    until_us: int,
    *,
    signed: SignedCheckpoint | None = None,
    witnesses: Sequence[Verifier] = (),
) -> bytes:
    """Build the statement for one server, from a checkpoint or its latest; ReceiptError if it has none."""
    part = cut_range(source, since_us, until_us, signed=signed, witnesses=witnesses)
    inside = [each.hop for each in part.kept if since_us <= each.hop.at_us < until_us]
    receipt = Completeness(
        claim=_state(part.signed.checkpoint, inside, since_us, until_us),
        journal=part.journal,
        first=part.first,
        since=since_us,
        until=until_us,
        hashes=part.hashes,
        hops=part.records,
    )
    data = encode_receipt(receipt)
    decode_receipt(data)
    check_completeness(receipt, frozenset([source.verifier]), Policy())
    return data


def cut_range(
    source: HopSource, since_us: int, until_us: int, *, signed: SignedCheckpoint | None, witnesses: Sequence[Verifier]
) -> Range:
    """The hops in a time range with one before and one after it; ReceiptError if they cannot be proven."""
    signed = source.latest_checkpoint() if signed is None else check_covers(source, signed)
    if signed is None or signed.size == 0:
        raise ReceiptError(f"{source.server} has no signed checkpoint")
    if not since_us < until_us:
        raise ReceiptError("the period ends before it begins")
    first = max(0, min(source.seq_at(since_us), signed.size) - 1)
    end = min(source.seq_at(until_us) + 1, signed.size)
    if end - first > MAX_HOPS:
        raise ReceiptError(f"{end - first} hops in this time, expected at most {MAX_HOPS}")
    return Range(
        signed=signed,
        journal=carry_note(signed.note, [*witnesses, source.verifier]),
        first=first,
        kept=source.hops_between(first, end),
        hashes=encode_hashes(list(_beside(0, signed.size, first, end, source.node))),
    )


def check_completeness(receipt: Completeness, trusted: frozenset[Verifier], policy: Policy) -> Proof:
    """Check that these are all hops in the time range."""
    part = check_range(receipt, trusted, policy)
    hops = tuple(hop for hop, _ in part.inside)
    check_claim(receipt.claim, _state(part.checkpoint, hops, receipt.since, receipt.until))
    return Proof(
        kind="completeness",
        fabric=part.fabric,
        claims=tuple(receipt.claim),
        not_proven=part.limits,
        signatories=(part.signatory,),
        views=(View(part.checkpoint),),
        hops=hops,
    )


def check_range(receipt: Completeness | Exchange, trusted: frozenset[Verifier], policy: Policy) -> CheckedRange:
    """Check that the hops of a receipt are all in its time range."""
    note = check_note(receipt.journal)
    signatory = check_trust(note, trusted, policy)
    checkpoint = note.checkpoint
    hops, leaves = [], []
    fabric = server_fabric(checkpoint.origin)
    for seq, record in enumerate(receipt.hops, receipt.first):
        hop, digest = read_hop(
            _numbered(record, seq), checkpoint.origin, fabric, Address(bytes.fromhex(record.message))
        )
        check_clock(hop.at_us, f"hop {seq} of {checkpoint.origin}", policy)
        hops.append((hop, digest))
        leaves.append(hash_leaf(encode_entry(hop, digest)))
    if receipt.first + len(hops) > checkpoint.size:
        raise ReceiptError(f"inclusion: hops beyond the {checkpoint.size} of the checkpoint")
    hashes = iter(decode_hashes(receipt.hashes, "the hashes"))
    root = _root_of_range(0, checkpoint.size, receipt.first, leaves, hashes)
    if next(hashes, None) is not None:
        raise ReceiptError("inclusion: more hashes than the range needs")
    if root != checkpoint.root:
        raise ReceiptError(f"inclusion: these are not hops {receipt.first} and following of {checkpoint.origin}")
    _check_borders(receipt, [hop for hop, _ in hops], checkpoint)
    return CheckedRange(
        signatory=signatory,
        fabric=fabric,
        inside=tuple(pair for pair in hops if receipt.since <= pair[0].at_us < receipt.until),
        limits=tuple(_limits(receipt, hops[-1][0], is_witnessed=bool(signatory.witnesses))),
    )


def _check_borders(receipt: Completeness | Exchange, hops: Sequence[Hop], checkpoint: Checkpoint) -> None:
    """Exactly one hop before the time range and one after it, unless the journal starts or ends there."""
    times = [hop.at_us for hop in hops]
    if times != sorted(times):
        raise ReceiptError("completeness: time goes back inside the range")
    if not receipt.since < receipt.until:
        raise ReceiptError("form: the period ends before it begins")
    before = sum(at_us < receipt.since for at_us in times)
    behind = sum(at_us >= receipt.until for at_us in times)
    if before > 1 or (before == 0 and receipt.first > 0):
        raise ReceiptError("completeness: no proof that no hop is missing at the start")
    if behind > 1 or (behind == 0 and receipt.first + len(hops) < checkpoint.size):
        raise ReceiptError("completeness: no proof that no hop is missing at the end")


def _root_of_range(start: int, end: int, first: int, leaves: Sequence[bytes], hashes: Iterator[bytes]) -> bytes:
    """The root over `[start, end)`, from the leaves starting at `first` and the roots beside them."""
    if end <= first or start >= first + len(leaves):
        beside = next(hashes, None)
        if beside is None:
            raise ReceiptError("inclusion: too few hashes beside the range")
        return beside
    if end - start == 1:
        return leaves[start - first]
    split = start + (1 << ((end - start - 1).bit_length() - 1))
    left = _root_of_range(start, split, first, leaves, hashes)
    return hash_children(left, _root_of_range(split, end, first, leaves, hashes))


def _beside(start: int, end: int, first: int, stop: int, node: NodeSource) -> Iterator[bytes]:
    """The hashes that `_root_of_range` consumes, in that order."""
    if end <= first or start >= stop:
        parts = [node(level, place >> level) for place, level in aligned_ranges(start, end)]
        root = parts.pop()
        while parts:
            root = hash_children(parts.pop(), root)
        yield root
    elif end - start > 1:
        split = start + (1 << ((end - start - 1).bit_length() - 1))
        yield from _beside(start, split, first, stop, node)
        yield from _beside(split, end, first, stop, node)


def _record(kept: CommittedHop) -> RangeHop:
    hop = kept.hop
    return RangeHop(
        at=hop.at_us,
        message=hop.message.hex(),
        stage=str(hop.stage),
        counterpart=hop.counterpart,
        reason=None if hop.reason is None else str(hop.reason),
        digest=None if kept.digest == NO_DIGEST else kept.digest.hex(),
        size=hop.size or None,
    )


def _numbered(record: RangeHop, seq: int) -> HopRecord:
    return HopRecord(
        at=record.at,
        seq=seq,
        stage=record.stage,
        counterpart=record.counterpart,
        reason=record.reason,
        digest=record.digest,
        size=record.size,
        path=[],
    )


def _state(checkpoint: Checkpoint, inside: Sequence[Hop], since_us: int, until_us: int) -> list[str]:
    messages = len({hop.message for hop in inside})
    saw = f"{checkpoint.origin} saw {len(inside)} hops of {messages} messages"
    return [f"{saw} {describe_period(since_us, until_us)}, and these are all", describe_commitment(View(checkpoint))]


def describe_period(since_us: int, until_us: int) -> str:
    """Format a time range for claims."""
    return f"from {time_text(since_us)} up to and without {time_text(until_us)}"


def _limits(receipt: Completeness | Exchange, last: Hop, *, is_witnessed: bool) -> Iterator[str]:
    if last.at_us < receipt.until:
        yield "that no hop of this time came later: the checkpoint has no hop behind the end of the period"
    yield "that the server noted everything it saw, and at the right time: its journal has what it wrote down"
    if not is_witnessed:
        yield "that the server shows everybody the same journal: no trusted witness cosigned it"
