"""Deliveries: what happened to one message at the servers that saw it, checked hop by hop."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from dovetail.fabrics import fabric_named
from dovetail.model.address import Address
from dovetail.model.errors import ReceiptError
from dovetail.model.hop import REASONS, STAGES, Hop, Relation
from dovetail.receipt.claims import (
    check_claim,
    describe_commitment,
    describe_hop,
    describe_message,
    name_messages,
    state_limits,
)
from dovetail.receipt.consistency import View, check_since
from dovetail.receipt.format import (
    MAX_HOPS,
    Delivery,
    HopRecord,
    JournalRecord,
    MessageRecord,
    Wording,
    bytes_of,
    check_note,
)
from dovetail.receipt.paths import PathWalker, read_hashes
from dovetail.receipt.proof import (
    Policy,
    Proof,
    ProvenMessage,
    Signatory,
    check_clock,
    check_order,
    check_trust,
    server_fabric,
)
from dovetail.tlog.keys import Verifier
from dovetail.tlog.leaf import NO_DIGEST, encode_entry
from dovetail.tlog.tree import hash_leaf

_RELATIONS: Mapping[str, Relation] = {str(relation): relation for relation in Relation}


@dataclass(frozen=True, slots=True)
class CheckedJournal:
    """One journal's part of a receipt, with proofs and signatures verified."""

    signatory: Signatory
    view: View
    hops: tuple[Hop, ...]
    digests: tuple[bytes, ...]


def check_delivery(receipt: Delivery, trusted: frozenset[Verifier], policy: Policy) -> Proof:
    """Check a delivery; returns what it proves."""
    messages = read_messages(receipt.messages)
    journals = check_journals(receipt.journals, messages, trusted, policy)
    fabric = single_fabric(journals)
    texts = check_messages(messages, journals, fabric)
    claims = state_delivery(messages, texts, ((j.view, j.hops) for j in journals), receipt.wording)
    check_claim(receipt.claim, claims)
    hops = tuple(hop for journal in journals for hop in journal.hops)
    unwitnessed = [journal.signatory.server for journal in journals if not journal.signatory.witnesses]
    return Proof(
        kind="delivery",
        fabric=fabric,
        claims=tuple(claims),
        not_proven=tuple(state_limits(fabric, hops, is_redacted=messages[0].raw is None, unwitnessed=unwitnessed)),
        signatories=tuple(journal.signatory for journal in journals),
        views=tuple(journal.view for journal in journals),
        messages=tuple(messages),
        hops=hops,
    )


def state_delivery(
    messages: Sequence[ProvenMessage],
    texts: Sequence[str],
    journals: Iterable[tuple[View, Sequence[Hop]]],
    wording: Wording = Wording.HANDED_OVER,
) -> list[str]:
    """The claim of a delivery: the messages, then for each journal its hops and who commits to them.

    `texts` are the addresses of the messages as shown to people.
    """
    names = {message.address: message.name for message in messages}
    sentences = [
        describe_message(m.name, text, m.relation, None if m.raw is None else len(m.raw))
        for m, text in zip(messages, texts, strict=True)
    ]
    for view, hops in journals:
        sentences += [describe_hop(names[hop.message], hop, wording) for hop in hops]
        sentences.append(describe_commitment(view))
    return sentences


def read_messages(records: Sequence[MessageRecord]) -> list[ProvenMessage]:
    """The messages of a receipt with their names; the first is the subject."""
    if records[0].relation is not None:
        raise ReceiptError("form: the first message is the subject and has no relation")
    relations: list[Relation | None] = [None]
    for record in records[1:]:
        if record.relation is None or record.relation not in _RELATIONS:
            raise ReceiptError(f"form: unknown relation {record.relation!r}")
        relations.append(_RELATIONS[record.relation])
    check_order((record.address for record in records[1:]), "the related messages")
    if records[0].address in {record.address for record in records[1:]}:
        raise ReceiptError("form: the subject stands among the related messages")
    return [
        ProvenMessage(
            address=Address(bytes.fromhex(record.address)),
            name=name,
            raw=bytes_of(record),
            relation=relation,
        )
        for record, relation, name in zip(records, relations, name_messages(relations), strict=True)
    ]


def check_messages(messages: Sequence[ProvenMessage], journals: Sequence[CheckedJournal], fabric: str) -> list[str]:
    """Check that bytes match addresses, that related messages name the subject, and that each message has a hop.

    Returns the addresses as shown to people.
    """
    digests: dict[Address, set[bytes]] = {message.address: set() for message in messages}
    for journal in journals:
        for hop, digest in zip(journal.hops, journal.digests, strict=True):
            digests[hop.message].add(digest)
    reader = fabric_named(fabric)
    texts = [reader.show_address(message.address) for message in messages]
    for message in messages:
        if not digests[message.address]:
            raise ReceiptError(f"form: no hop is of {message.name}")
        names: frozenset[tuple[Relation, str]] = frozenset()
        if message.raw is not None:
            address, names = reader.identify(message.raw)
            if address != message.address:
                raise ReceiptError(f"address: the bytes of {message.name} do not have its address")
            # if the address is not the hash of the bytes, other bytes can encode the same content
            if not reader.hashes_bytes and hashlib.sha256(message.raw).digest() not in digests[message.address]:
                raise ReceiptError(f"address: no journal here kept these bytes of {message.name}")
        if message.relation is not None and (message.relation, texts[0]) not in names:
            raise ReceiptError(f"address: the bytes of {message.name} do not name the message")
    return texts


def check_journals(
    records: Sequence[JournalRecord], messages: Sequence[ProvenMessage], trusted: frozenset[Verifier], policy: Policy
) -> list[CheckedJournal]:
    """Check that trusted servers signed these hops; each server once, sorted by URI."""
    if sum(len(record.hops) for record in records) > MAX_HOPS:
        raise ReceiptError(f"form: more than {MAX_HOPS} hops")
    journals = [_check_journal(record, messages, trusted, policy) for record in records]
    check_order((journal.signatory.server for journal in journals), "the journals")
    return journals


def _check_journal(
    record: JournalRecord, messages: Sequence[ProvenMessage], trusted: frozenset[Verifier], policy: Policy
) -> CheckedJournal:
    note = check_note(record)
    signatory = check_trust(note, trusted, policy)
    server = note.checkpoint.origin
    fabric = server_fabric(server)
    walker = PathWalker(note.checkpoint, read_hashes(record, server))
    latest_us = policy.latest_us
    hops, digests = [], []
    for hop_record in record.hops:
        if hop_record.message >= len(messages):
            raise ReceiptError(f"form: hop {hop_record.seq} of {server} is about none of its messages")
        hop, digest = read_hop(hop_record, server, fabric, messages[hop_record.message].address)
        walker.check(hop_record, hash_leaf(encode_entry(hop, digest)))
        if hop.at_us > latest_us:
            check_clock(hop.at_us, f"hop {hop.seq} of {server}", policy)
        hops.append(hop)
        digests.append(digest)
    view = check_since(record.since, note.checkpoint)
    return CheckedJournal(signatory, view, tuple(hops), tuple(digests))


def read_hop(record: HopRecord, server: str, fabric: str, address: Address) -> tuple[Hop, bytes]:
    """Decode a hop record of `server`; returns the hop and its digest."""
    if record.stage not in STAGES:
        raise ReceiptError(f"form: hop {record.seq} of {server} has the unknown stage {record.stage!r}")
    if record.reason is not None and record.reason not in REASONS:
        raise ReceiptError(f"form: hop {record.seq} of {server} has the unknown reason {record.reason!r}")
    hop = Hop(
        server=server,
        seq=record.seq,
        at_us=record.at,
        fabric=fabric,
        stage=STAGES[record.stage],
        message=address,
        counterpart=record.counterpart,
        reason=None if record.reason is None else REASONS[record.reason],
        size=record.size,
    )
    digest = NO_DIGEST if record.digest is None else bytes.fromhex(record.digest)
    if record.digest is not None and digest == NO_DIGEST:
        raise ReceiptError(f"form: hop {record.seq} of {server} has a digest of zeros")
    if len((record.counterpart or "").encode()) > 0xFFFF:
        raise ReceiptError(f"form: the counterpart of hop {record.seq} of {server} is too long")
    return hop, digest


def single_fabric(journals: Sequence[CheckedJournal]) -> str:
    """The name of the fabric that all journals share."""
    fabrics = {hop.fabric for journal in journals for hop in journal.hops}
    if len(fabrics) != 1:
        raise ReceiptError(f"form: journals of {len(fabrics)} fabrics, expected one")
    return fabrics.pop()
