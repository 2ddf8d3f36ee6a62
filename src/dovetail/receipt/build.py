"""Builds a receipt from the journals or lake of the servers that saw the message.

Every receipt is verified before it is returned, with the keys that the sources contain: a journal that was tampered
with gives an error, never a false receipt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dovetail.fabrics import address_text, fabric_named
from dovetail.journal.hop_source import CommittedHop, HopSource
from dovetail.model.address import ADDRESS_BYTES, Address
from dovetail.model.errors import ReceiptError
from dovetail.model.hop import Relation
from dovetail.receipt.claims import name_messages
from dovetail.receipt.consistency import check_since, prove_since
from dovetail.receipt.delivery import state_delivery
from dovetail.receipt.format import (
    MAX_HOPS,
    MAX_MESSAGES,
    Delivery,
    HopRecord,
    JournalRecord,
    carry_note,
    check_note,
    encode_hashes,
    encode_receipt,
    record_message,
)
from dovetail.receipt.proof import ProvenMessage
from dovetail.receipt.sources import check_covers
from dovetail.receipt.verify import verify_receipt
from dovetail.tlog.checkpoint import Checkpoint, SignedCheckpoint
from dovetail.tlog.keys import Verifier
from dovetail.tlog.leaf import NO_DIGEST
from dovetail.tlog.tree import prove_inclusion

SEARCH_HOPS = 100_000
"""How many hops after a message are searched for responses to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildOptions:
    """What to include in a receipt.

    `redact` omits the bytes of the subject. `counterparts` keeps only hops with these, plus the first hop of each
    message in a journal. `related` lists the responses to include; by default they are searched for. `notes` are
    checkpoints to use instead of the latest, for example cosigned ones, and `witnesses` the keys of their cosigners.
    `since` lists older checkpoints from which to prove consistency.
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
    """The bytes of a receipt file, and remarks for people on how it was built."""

    data: bytes
    remarks: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Holder:
    """A source that has the message, with the checkpoint to prove against."""

    source: HopSource
    signed: SignedCheckpoint

    def signed_hops(self, address: Address) -> list[CommittedHop]:
        """The hops of a message that the checkpoint covers."""
        return [kept for kept in self.source.hops_of(address) if kept.hop.seq < self.signed.size]


def build_receipt(sources: Sequence[HopSource], address: Address, options: BuildOptions | None = None) -> BuiltReceipt:
    """Build the receipt of one message from all sources that saw it; ReceiptError if nothing can be proven."""
    options = options or BuildOptions()
    remarks: list[str] = []
    holders = pin_sources(sources, options)
    fabric = common_fabric(holders, [address])
    holders = [holder for holder in holders if holder.source.fabric == fabric]
    children = _find_children(holders, address, fabric, options)
    messages = _carry_messages(holders, address, children, fabric, options, remarks)
    parts: list[tuple[Holder, list[CommittedHop]]] = []
    for holder in holders:
        kept = _select_hops(holder, [message.address for message in messages], options, remarks)
        if kept:
            parts.append((holder, kept))
    shown = {each.hop.counterpart for _, kept in parts for each in kept}
    remarks += [f"no hop here is from or to {name}" for name in sorted(options.counterparts) if name not in shown]
    if sum(len(kept) for _, kept in parts) > MAX_HOPS:
        raise ReceiptError(f"more than {MAX_HOPS} hops; choose counterparts")
    journals = [record_journal(holder, kept, messages, options) for holder, kept in parts]
    stated = []
    for journal, (_, kept) in zip(journals, parts, strict=True):
        view = check_since(journal.since, check_note(journal).checkpoint)
        stated.append((view, [each.hop for each in kept]))
    receipt = Delivery(
        claim=state_delivery(messages, [address_text(message.address, fabric) for message in messages], stated),
        messages=[
            record_message(message.address, message.raw, message.relation and str(message.relation))
            for message in messages
        ],
        journals=journals,
    )
    data = encode_receipt(receipt)
    verify_receipt(data, [holder.source.verifier for holder in holders])
    return BuiltReceipt(data, remarks)


def pin_sources(sources: Sequence[HopSource], options: BuildOptions) -> list[Holder]:
    """The sources sorted by server, each with the requested checkpoint, else its latest."""
    holders = []
    for source in sorted(sources, key=lambda source: source.server):
        asked = [note for note in options.notes if note.checkpoint.origin == source.server]
        signed = source.latest_checkpoint()
        if asked:
            signed = check_covers(source, max(asked, key=lambda note: note.size))
        if signed is not None:
            holders.append(Holder(source, signed))
    return holders


def common_fabric(holders: Sequence[Holder], addresses: Sequence[Address]) -> str:
    """The name of the one fabric that has signed hops of these messages."""
    found: set[str] = set()
    for address in addresses:
        fabrics = {holder.source.fabric for holder in holders if holder.signed_hops(address)}
        if not fabrics:
            raise ReceiptError(f"no signed checkpoint covers a hop of message {address.hex()}")
        found |= fabrics
    if len(found) > 1:
        named = " and ".join(address.hex() for address in addresses)
        raise ReceiptError(f"message {named} is known to several fabrics; name the journals of one")
    return found.pop()


def _find_children(
    holders: Sequence[Holder], address: Address, fabric: str, options: BuildOptions
) -> list[tuple[Address, Relation]]:
    """Messages that respond to `address`: the given ones, or those found on the signed hops after it."""
    reader, link = fabric_named(fabric), (Relation.RESPONDING_TO, address_text(address, fabric))
    found: dict[Address, Relation] = {}
    if options.related is not None:
        for child in options.related:
            raw = first_raw(holders, child)
            if raw is None or link not in reader.identify(raw).names:
                raise ReceiptError(f"{address_text(child, fabric)} has no bytes here that respond to the message")
            found[child] = Relation.RESPONDING_TO
    elif reader.key_bytes == ADDRESS_BYTES:
        mark = reader.needle(address)
        for holder in holders:
            hops = holder.signed_hops(address)
            first = hops[0].hop.seq if hops else holder.signed.size
            end = min(first + options.search_hops, holder.signed.size)
            for child, raw in holder.source.bodies_between(first, end):
                # cheap test first: decoding every message would take minutes
                if child not in found and mark in raw.lower() and link in reader.identify(raw).names:
                    found[child] = Relation.RESPONDING_TO
    if len(found) >= MAX_MESSAGES:
        raise ReceiptError(f"{len(found)} messages respond to it, expected fewer than {MAX_MESSAGES}")
    return sorted(found.items())


def _carry_messages(
    holders: Sequence[Holder],
    address: Address,
    children: Sequence[tuple[Address, Relation]],
    fabric: str,
    options: BuildOptions,
    remarks: list[str],
) -> list[ProvenMessage]:
    """The subject and its responses, with their bytes."""
    names = name_messages([None, *(relation for _, relation in children)])
    raw = None if options.redact else first_raw(holders, address)
    if raw is None and not options.redact:
        remarks.append("the bytes of the message are not kept any more: the receipt has only its address")
    elif raw is not None and fabric_named(fabric).identify(raw).address != address:
        remarks.append("the bytes kept of the message are not all of it: the receipt has only its address")
        raw = None
    messages = [ProvenMessage(address=address, name=names[0], raw=raw)]
    for (child, relation), name in zip(children, names[1:], strict=True):
        messages.append(
            ProvenMessage(address=child, name=name, raw=first_raw(holders, child), relation=relation),
        )
    return messages


def first_raw(holders: Sequence[Holder], address: Address) -> bytes | None:
    """The bytes from the first source that has them on a signed hop."""
    for holder in holders:
        if any(kept.digest != NO_DIGEST for kept in holder.signed_hops(address)):
            raw = holder.source.raw(address)
            if raw is not None:
                return raw
    return None


def _select_hops(
    holder: Holder, addresses: Sequence[Address], options: BuildOptions, remarks: list[str]
) -> list[CommittedHop]:
    """The hops to include, in order: covered by the checkpoint, and of the selected counterparts."""
    selected: list[CommittedHop] = []
    unsigned = 0
    for address in addresses:
        signed = holder.signed_hops(address)
        unsigned += len(holder.source.hops_of(address)) - len(signed)
        if options.counterparts:
            signed = [kept for kept in signed if kept is signed[0] or kept.hop.counterpart in options.counterparts]
        selected += signed
    if unsigned:
        remarks.append(f"{unsigned} hops of {holder.source.server} are not signed yet and left out")
    return sorted(selected, key=lambda kept: kept.hop.seq)


def record_journal(
    holder: Holder, kept: Sequence[CommittedHop], messages: Sequence[ProvenMessage], options: BuildOptions
) -> JournalRecord:
    """Record the hops of these messages in one journal, with proofs."""
    source, signed = holder.source, holder.signed
    numbers: dict[bytes, int] = {}
    index_of: Mapping[Address, int] = {message.address: index for index, message in enumerate(messages)}
    hops = []
    for each in kept:
        path = prove_inclusion(each.hop.seq, signed.size, source.node)
        hops.append(record_hop(each, index_of[each.hop.message], [numbers.setdefault(h, len(numbers)) for h in path]))
    note = carry_note(signed.note, [*options.witnesses, source.verifier])
    return JournalRecord(
        checkpoint=note.checkpoint,
        keys=note.keys,
        hashes=encode_hashes(list(numbers)),
        hops=hops,
        since=prove_since(signed.checkpoint, options.since, source.node),
    )


def record_hop(kept: CommittedHop, message: int, path: list[int]) -> HopRecord:
    """Record a hop for a receipt."""
    hop = kept.hop
    return HopRecord(
        at=hop.at_us,
        seq=hop.seq,
        stage=str(hop.stage),
        message=message,
        counterpart=hop.counterpart,
        reason=None if hop.reason is None else str(hop.reason),
        digest=None if kept.digest == NO_DIGEST else kept.digest.hex(),
        size=hop.size or None,
        path=path,
    )
