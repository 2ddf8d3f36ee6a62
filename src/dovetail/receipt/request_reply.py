"""Exchanges: these are all messages of one request and its replies in a time range of one server.

A reply names the id of its request, but nothing leads from a request to its replies. So the proof is the server's
journal itself: all hops in the time range, as in a completeness statement, and the bytes of every message that has a
hop with one of the request's participants (its sender and its recipients). Nobody else sent or received any message of
the exchange here. Of the messages with bytes, those that reply to the request or to one of its replies belong to the
exchange; the others are included to show that they do not.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from dovetail.fabrics import fabric_named
from dovetail.journal.hop_source import HopSource
from dovetail.model.address import Address
from dovetail.model.errors import ReceiptError
from dovetail.model.fabric import Fabric, MessageInfo, Refused, Thread
from dovetail.model.hop import Hop, Relation
from dovetail.receipt.claims import check_claim, describe_commitment
from dovetail.receipt.completeness import check_range, cut_range, describe_period
from dovetail.receipt.consistency import View
from dovetail.receipt.format import (
    MAX_CONVERSATION,
    Exchange,
    bytes_of,
    decode_receipt,
    encode_receipt,
    record_message,
)
from dovetail.receipt.proof import Policy, Proof, ProvenMessage, check_order
from dovetail.tlog.checkpoint import Checkpoint, SignedCheckpoint
from dovetail.tlog.keys import Verifier
from dovetail.tlog.leaf import NO_DIGEST

_LIMITS = ("that nothing was said another way: it shows what went through this broker",)


@dataclass(slots=True)
class Traffic:
    """What the hops in a time range say about one message."""

    counterparts: set[str] = field(default_factory=set)
    digests: set[bytes] = field(default_factory=set)


def build_exchange(
    source: HopSource,
    request: Address,
    until_us: int | None = None,
    *,
    signed: SignedCheckpoint | None = None,
    witnesses: Sequence[Verifier] = (),
) -> bytes:
    """Build the statement about the exchange that this request starts, up to a time or to the last signed hop."""
    seen = source.hops_of(request)
    latest = source.latest_checkpoint() if signed is None else signed
    if not seen or latest is None or seen[0].hop.seq >= latest.size:
        raise ReceiptError(f"no signed hop of {source.server} is of {request.hex()}")
    since_us = seen[0].hop.at_us
    if until_us is None:
        until_us = source.hops_between(latest.size - 1, latest.size)[0].hop.at_us + 1
    part = cut_range(source, since_us, until_us, signed=signed, witnesses=witnesses)
    inside = [(each.hop, each.digest) for each in part.kept if since_us <= each.hop.at_us < until_us]
    traffic = _sort_traffic(inside)
    if request not in traffic:
        raise ReceiptError(f"no hop of {request.hex()} is in this time range")
    wanted = [request, *sorted(_involved(traffic, request) - {request})]
    if len(wanted) > MAX_CONVERSATION:
        raise ReceiptError(f"{len(wanted)} messages of its participants, expected at most {MAX_CONVERSATION}")
    # in one pass: single lookups would rescan the unindexed part of a journal each time
    bodies = dict(source.bodies_between(inside[0][0].seq, inside[-1][0].seq + 1))
    raws = {address: bodies.get(address) for address in wanted}
    fabric = fabric_named(source.fabric)
    infos = {address: _read(fabric, address, raw) for address, raw in raws.items()}
    members = _find_members(request, traffic, infos)
    receipt = Exchange(
        claim=_state(part.signed.checkpoint, members, infos, (since_us, until_us)),
        journal=part.journal,
        first=part.first,
        since=since_us,
        until=until_us,
        hashes=part.hashes,
        hops=part.records,
        messages=[record_message(address, raw, None) for address, raw in raws.items()],
    )
    data = encode_receipt(receipt)
    decode_receipt(data)
    check_exchange(receipt, frozenset([source.verifier]), Policy())
    return data


def check_exchange(receipt: Exchange, trusted: frozenset[Verifier], policy: Policy) -> Proof:
    """Check that these are all messages of the exchange in the time range."""
    part = check_range(receipt, trusted, policy)
    fabric = fabric_named(part.fabric)
    if fabric.thread is not Thread.EXCHANGE:
        raise ReceiptError(f"form: messages of {fabric.name} form no exchanges")
    if any(record.relation is not None for record in receipt.messages):
        raise ReceiptError("form: the messages of an exchange have no relation")
    check_order((record.address for record in receipt.messages[1:]), "the messages")
    request = Address(bytes.fromhex(receipt.messages[0].address))
    traffic = _sort_traffic(part.inside)
    raws = {Address(bytes.fromhex(record.address)): bytes_of(record) for record in receipt.messages}
    if request not in traffic:
        raise ReceiptError("completeness: no hop of the period is of the request")
    involved = _involved(traffic, request)
    for address in sorted(involved - raws.keys()):
        raise ReceiptError(f"completeness: {address.hex()} is missing: one of the request's participants had it")
    for address in raws:
        if address not in involved:
            raise ReceiptError(f"completeness: {address.hex()} was added: none of the request's participants had it")
    for address, raw in raws.items():
        _check_bytes(address, raw, traffic[address])
    infos = {address: _read(fabric, address, raw) for address, raw in raws.items()}
    members = _find_members(request, traffic, infos)
    claims = _state(part.checkpoint, members, infos, (receipt.since, receipt.until))
    check_claim(receipt.claim, claims)
    return Proof(
        kind="exchange",
        fabric=fabric.name,
        claims=tuple(claims),
        not_proven=(*_LIMITS, *part.limits),
        signatories=(part.signatory,),
        views=(View(part.checkpoint),),
        messages=tuple(
            ProvenMessage(address=address, name=name, raw=raws[address])
            for address, name in zip(members, _names(members), strict=True)
        ),
        hops=tuple(hop for hop, _ in part.inside if hop.message in members),
    )


def _sort_traffic(inside: Sequence[tuple[Hop, bytes]]) -> dict[Address, Traffic]:
    """Group by message, in order of first appearance."""
    traffic: dict[Address, Traffic] = {}
    for hop, digest in inside:
        seen = traffic.setdefault(hop.message, Traffic())
        if hop.counterpart is not None:
            seen.counterparts.add(hop.counterpart)
        if digest != NO_DIGEST:
            seen.digests.add(digest)
    return traffic


def _involved(traffic: Mapping[Address, Traffic], request: Address) -> set[Address]:
    """Messages that have a hop with a participant of the request, and the request itself."""
    participants = traffic[request].counterparts
    return {request} | {address for address, seen in traffic.items() if seen.counterparts & participants}


def _check_bytes(address: Address, raw: bytes | None, seen: Traffic) -> None:
    """Check that the bytes are those the journal stored; they are omitted only if it stored none here."""
    if raw is None:
        if seen.digests:
            raise ReceiptError(f"completeness: the bytes of {address.hex()} are missing, which the journal kept")
    elif hashlib.sha256(raw).digest() not in seen.digests:
        raise ReceiptError(f"address: the journal did not keep these bytes of {address.hex()}")


def _find_members(
    request: Address, traffic: Iterable[Address], infos: Mapping[Address, MessageInfo | None]
) -> dict[Address, str]:
    """The request, then all replies to it or to a reply, in order of their hops; each with its id."""
    first = infos[request]
    if first is None:
        raise ReceiptError("completeness: the bytes of the request are not here, or are no message")
    replies: dict[bytes, list[tuple[Address, MessageInfo]]] = {}
    for address, info in infos.items():
        if info is not None and (answered := info.parent(Relation.IN_REPLY_TO)) is not None:
            replies.setdefault(answered, []).append((address, info))
    members = {request: first.id}
    pending = [first.key]
    while pending:
        for address, info in replies.pop(pending.pop(), ()):
            if address not in members:
                members[address] = info.id
                pending.append(info.key)
    return {request: first.id} | {address: members[address] for address in traffic if address in members}


def _read(fabric: Fabric, address: Address, raw: bytes | None) -> MessageInfo | None:
    """None if the full bytes are not here or are not a message."""
    info = None if raw is None else fabric.read(raw)
    return None if info is None or isinstance(info, Refused) or info.address != address else info


def _names(members: Collection[Address]) -> list[str]:
    return ["the request", *(f"reply {number}" for number in range(1, len(members)))]


def _state(
    checkpoint: Checkpoint,
    members: Mapping[Address, str],
    infos: Mapping[Address, MessageInfo | None],
    period: tuple[int, int],
) -> list[str]:
    """The claim: how many messages, in which time range, each of them, and what else was checked."""
    request = next(iter(members))
    saw = f"{checkpoint.origin} saw {len(members)} messages of the exchange that {request.hex()} begins"
    sentences = [f"{saw} {describe_period(*period)}, and these are all"]
    sentences += [
        f"{name} is {address.hex()} with the id {own}"
        for (address, own), name in zip(members.items(), _names(members), strict=True)
    ]
    others = [info for address, info in infos.items() if address not in members]
    looked_at = f"{len(others)} other messages of its participants are here"
    sentences.append(f"{looked_at}, {others.count(None)} of them without whole bytes of a message")
    return [*sentences, describe_commitment(View(checkpoint))]
