"""Building a receipt from the journals or the lake of the servers that saw the message.

Every receipt is verified before it is handed out, with the keys that the sources themselves carry: a journal that was
tampered with gives an error, never a false receipt.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from dovetail.errors import CheckpointError, ReceiptError
from dovetail.hop import Address, Fabric, Relation, address_text
from dovetail.journal.checkpoint import Checkpoint, SignedCheckpoint, Verifier, parse_checkpoint
from dovetail.journal.layout import NO_DIGEST
from dovetail.journal.merkle import prove_consistency, prove_inclusion, verify_consistency
from dovetail.receipt.address import ADDRESS_CHECKS, RELATION_CHECKS
from dovetail.receipt.claims import name_messages
from dovetail.receipt.format import (
    MAX_HOPS,
    MAX_MESSAGES,
    Delivery,
    HopRecord,
    JournalRecord,
    MessageRecord,
    SinceRecord,
    encode_base64,
    encode_hashes,
    encode_receipt,
)
from dovetail.receipt.note import carry_note
from dovetail.receipt.proof import ProvenMessage
from dovetail.receipt.source import KeptHop, Source
from dovetail.receipt.verify import state_delivery, verify_receipt

SEARCH_HOPS = 100_000
"""How many hops behind a message are searched for the responses to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildOptions:
    """What a receipt is to hold.

    `counterparts` limits it to hops with these and to the hops without which there is no delivery: the first of each
    journal. `notes` are checkpoints to use instead of the latest, for example cosigned ones, and `witnesses` the keys of
    their cosigners. `since` are older checkpoints from which consistency is to be proven.
    """

    redact: bool = False
    counterparts: frozenset[str] = frozenset()
    related: Sequence[Address] | None = None
    search_hops: int = SEARCH_HOPS
    notes: Sequence[SignedCheckpoint] = ()
    witnesses: Sequence[Verifier] = ()
    since: Sequence[Checkpoint] = ()


@dataclass(frozen=True, slots=True)
class BuiltReceipt:
    """The bytes of a receipt file, and what a person should know about how it was built."""

    data: bytes
    remarks: list[str] = field(default_factory=list)


def find_address(sources: Iterable[Source], prefix: bytes) -> Address:
    """The one address that begins with `prefix`."""
    found = {address for source in sources for address in source.find(prefix)}
    if not found:
        raise ReceiptError(f"no journal here knows a message {prefix.hex()}")
    if len(found) > 1:
        examples = ", ".join(sorted(address.hex()[:16] for address in found)[:4])
        raise ReceiptError(f"{len(found)} messages begin with {prefix.hex()}: {examples}")
    return found.pop()


def build_receipt(sources: Sequence[Source], address: Address, options: BuildOptions | None = None) -> BuiltReceipt:
    """The receipt of one message from all sources that saw it; ReceiptError where nothing can be proven."""
    options = options or BuildOptions()
    remarks: list[str] = []
    pinned = {source.server: _pin(source, options) for source in sources}
    holders = [source for source in sorted(sources, key=lambda source: source.server) if pinned[source.server]]
    fabrics = {source.fabric for source in holders if source.hops_of(address)}
    if len(fabrics) != 1:
        raise ReceiptError(f"{len(fabrics)} fabrics have a signed hop of {address.hex()}, expected one")
    fabric = fabrics.pop()
    holders = [source for source in holders if source.fabric is fabric]
    children = _find_children(holders, address, fabric, options)
    messages = [_carry_message(holders, address, fabric, None, options.redact, remarks)]
    messages += [_carry_message(holders, child, fabric, children[child], False, remarks) for child in sorted(children)]
    names = name_messages([message.relation for message in messages])
    proven = [
        ProvenMessage(address=m.address, name=name, raw=m.raw, relation=m.relation)
        for m, name in zip(messages, names, strict=True)
    ]
    parts: list[tuple[Checkpoint, list[KeptHop]]] = []
    records: list[JournalRecord] = []
    for source in holders:
        checkpoint = pinned[source.server]
        assert checkpoint is not None
        kept = _select_hops(source, proven, checkpoint.size, options, remarks)
        if kept:
            parts.append((checkpoint.checkpoint, kept))
            records.append(_carry_journal(source, checkpoint, kept, [m.address for m in proven], options))
    seen = {kept.hop.message for _, hops in parts for kept in hops}
    if address not in seen:
        raise ReceiptError(f"no signed checkpoint covers message {address_text(address, fabric)} yet")
    if any(message.address not in seen for message in proven):
        # a response that no checkpoint covers yet: begin again without it
        rest = [m.address for m in proven[1:] if m.address in seen]
        remarks.append("responses that no checkpoint covers yet are left out")
        again = build_receipt(sources, address, _with_related(options, rest))
        return BuiltReceipt(again.data, remarks + again.remarks)
    if sum(len(hops) for _, hops in parts) > MAX_HOPS:
        raise ReceiptError(f"more than {MAX_HOPS} hops; choose counterparts")
    receipt = Delivery(
        claim=state_delivery(proven, [(checkpoint, [k.hop for k in hops]) for checkpoint, hops in parts], fabric),
        messages=[
            MessageRecord(
                address=m.address.hex(),
                bytes=None if m.raw is None else encode_base64(m.raw),
                relation=m.relation and str(m.relation),
            )
            for m in proven
        ],
        journals=records,
    )
    data = encode_receipt(receipt)
    verify_receipt(data, [source.verifier for source in holders])
    return BuiltReceipt(data, remarks)


def _with_related(options: BuildOptions, related: Sequence[Address]) -> BuildOptions:
    return BuildOptions(
        redact=options.redact,
        counterparts=options.counterparts,
        related=related,
        notes=options.notes,
        witnesses=options.witnesses,
        since=options.since,
    )


def _pin(source: Source, options: BuildOptions) -> SignedCheckpoint | None:
    """The checkpoint to prove against: one that was asked for, else the latest."""
    asked = [note for note in options.notes if note.checkpoint.origin == source.server]
    return max(asked, key=lambda note: note.size) if asked else source.latest_checkpoint()


def _find_children(
    sources: Sequence[Source], address: Address, fabric: Fabric, options: BuildOptions
) -> dict[Address, Relation]:
    """Messages that respond to `address`: those that were named, or those found on the hops behind it."""
    check = RELATION_CHECKS.get(fabric)
    if check is None:
        if options.related:
            raise ReceiptError(f"the relation of {fabric} messages cannot be proven from their bytes")
        return {}
    children: dict[Address, Relation] = {}
    relation = Relation.RESPONDING_TO
    if options.related is not None:
        for child in options.related:
            raw = _first_raw(sources, child)
            if raw is None or not check(raw, address, relation):
                raise ReceiptError(f"{address_text(child, fabric)} does not respond to the message, or has no bytes")
            children[child] = relation
        return children
    mark = address_text(address, fabric).encode()
    for source in sources:
        hops = source.hops_of(address)
        if not hops:
            continue
        for child, raw in source.bodies_after(hops[0].hop.seq, options.search_hops):
            if child not in children and child != address and mark in raw and check(raw, address, relation):
                children[child] = relation
    if len(children) >= MAX_MESSAGES:
        raise ReceiptError(f"{len(children)} messages respond to it, expected fewer than {MAX_MESSAGES}")
    return children


@dataclass(frozen=True, slots=True)
class _Carried:
    address: Address
    raw: bytes | None
    relation: Relation | None


def _carry_message(
    sources: Sequence[Source],
    address: Address,
    fabric: Fabric,
    relation: Relation | None,
    redact: bool,
    remarks: list[str],
) -> _Carried:
    raw = None if redact else _first_raw(sources, address)
    if not redact and raw is None:
        remarks.append(f"the bytes of {address_text(address, fabric)} are not kept any more, only its address")
    elif raw is not None and not ADDRESS_CHECKS[fabric](raw, address):
        remarks.append(f"the bytes kept of {address_text(address, fabric)} are cut, so they are left out")
        raw = None
    return _Carried(address, raw, relation)


def _first_raw(sources: Sequence[Source], address: Address) -> bytes | None:
    return next((raw for source in sources if (raw := source.raw(address)) is not None), None)


def _select_hops(
    source: Source, messages: Sequence[ProvenMessage], size: int, options: BuildOptions, remarks: list[str]
) -> list[KeptHop]:
    """The hops to show, in order: below the checkpoint, and of the chosen counterparts."""
    selected: list[KeptHop] = []
    for message in messages:
        hops = source.hops_of(message.address)
        signed = [kept for kept in hops if kept.hop.seq < size]
        if len(signed) < len(hops):
            remarks.append(f"{len(hops) - len(signed)} hops of {source.server} are not signed yet and left out")
        if options.counterparts:
            signed = [
                kept
                for number, kept in enumerate(signed)
                if number == 0 or kept.hop.counterpart in options.counterparts
            ]
        selected += signed
    return sorted(selected, key=lambda kept: kept.hop.seq)


def _carry_journal(
    source: Source,
    signed: SignedCheckpoint,
    kept: Sequence[KeptHop],
    messages: Sequence[Address],
    options: BuildOptions,
) -> JournalRecord:
    numbers: dict[bytes, int] = {}
    index_of: Mapping[Address, int] = {address: index for index, address in enumerate(messages)}
    hops = []
    for each in kept:
        path = prove_inclusion(each.hop.seq, signed.size, source.node)
        hops.append(carry_hop(each, index_of[each.hop.message], [numbers.setdefault(h, len(numbers)) for h in path]))
    note = carry_note(signed.note, [*options.witnesses, source.verifier])
    return JournalRecord(
        checkpoint=note.checkpoint,
        keys=note.keys,
        hashes=encode_hashes(list(numbers)),
        hops=hops,
        since=_prove_since(source, signed.checkpoint, options.since),
    )


def carry_hop(kept: KeptHop, message: int, path: list[int]) -> HopRecord:
    """A hop as a receipt has it."""
    hop = kept.hop
    return HopRecord(
        at=hop.at_us,
        seq=hop.seq,
        stage=str(hop.stage),
        message=message,
        counterpart=hop.counterpart,
        reason=hop.reason and str(hop.reason),
        digest=None if kept.digest == NO_DIGEST else kept.digest.hex(),
        size=hop.size or None,
        path=path,
    )


def _prove_since(source: Source, checkpoint: Checkpoint, olders: Sequence[Checkpoint]) -> SinceRecord | None:
    """The proof from the newest of the older checkpoints of this server that is not newer than `checkpoint`."""
    own = [older for older in olders if older.origin == source.server and 0 < older.size <= checkpoint.size]
    if not own:
        return None
    older = max(own, key=lambda each: each.size)
    proof = prove_consistency(older.size, checkpoint.size, source.node)
    try:
        verify_consistency(older.size, older.root, checkpoint.size, checkpoint.root, proof)
    except CheckpointError as error:
        raise ReceiptError(
            f"{source.server} did not only grow since its checkpoint of {older.size} hops: {error}; "
            "`dovetail receipt accuse` makes evidence of it"
        ) from None
    return SinceRecord(size=older.size, root=encode_base64(older.root), proof=encode_hashes(proof))


def read_note(text: str) -> SignedCheckpoint:
    """A checkpoint from the text of a note."""
    try:
        return parse_checkpoint(text)
    except CheckpointError as error:
        raise ReceiptError(f"checkpoint: {error}") from None
