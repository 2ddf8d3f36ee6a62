"""Forks: two messages that one author signed and that contradict each other, with proof that servers hold them.

The forks that the audit finds can be proven to anyone if messages are signed. The fabric defines which messages
contradict each other (`Fabric.conflict_keys`). The author's key must be trusted under the author's URI; a key published
in a message is not enough, since anyone could create two messages in somebody else's name.
"""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.fabrics import fabric_named
from dovetail.model.address import Address
from dovetail.model.errors import ReceiptError
from dovetail.model.fabric import Fabric, MessageInfo, Refused, Signed
from dovetail.model.hop import Hop
from dovetail.receipt.claims import check_claim, describe_commitment, describe_hop
from dovetail.receipt.consistency import View
from dovetail.receipt.delivery import check_journals, check_messages, single_fabric
from dovetail.receipt.format import Fork, Wording, bytes_of
from dovetail.receipt.proof import Policy, Proof, ProvenMessage, check_order
from dovetail.tlog.keys import Verifier

NAMES = ("message 1", "message 2")
_LIMITS = (
    "which of the two is true",
    "whether it was the author or somebody else who holds the author's key",
    "that the times are right: they are those of each server's own clock",
)


def check_fork(receipt: Fork, trusted: frozenset[Verifier], policy: Policy) -> Proof:
    """Check that one author signed both messages, that they contradict each other, and who has them."""
    check_order((message.address for message in receipt.messages), "the messages")
    if any(message.relation is not None for message in receipt.messages):
        raise ReceiptError("form: the messages of a fork have no relation")
    messages = [
        ProvenMessage(address=Address(bytes.fromhex(record.address)), name=name, raw=bytes_of(record))
        for record, name in zip(receipt.messages, NAMES, strict=True)
    ]
    journals = check_journals(receipt.journals, messages, trusted, policy)
    fabric = fabric_named(single_fabric(journals))
    check_messages(messages, journals, fabric.name)
    author = find_contradiction(fabric, receipt.contradiction, messages)
    limits = [*_check_author(fabric, author, messages, trusted, policy), *_LIMITS]
    claims = state_fork(
        fabric, receipt.contradiction, author, messages, [(j.view, j.hops) for j in journals], receipt.wording
    )
    check_claim(receipt.claim, claims)
    return Proof(
        kind="fork",
        fabric=fabric.name,
        claims=tuple(claims),
        not_proven=tuple(limits),
        signatories=tuple(journal.signatory for journal in journals),
        views=tuple(journal.view for journal in journals),
        messages=tuple(messages),
        hops=tuple(hop for journal in journals for hop in journal.hops),
    )


def find_contradiction(fabric: Fabric, kind: str, messages: Sequence[ProvenMessage]) -> str:
    """The author that both name and who contradicts themselves; ReceiptError if there is none."""
    (one, signed), (other, other_signed) = (read_signed(fabric, message) for message in messages)
    common = fabric.conflict_keys(one).get(kind)
    if common is None or common != fabric.conflict_keys(other).get(kind) or signed.signer != other_signed.signer:
        raise ReceiptError(f"fork: the messages are no {kind}")
    return signed.signer


def state_fork(
    fabric: Fabric,
    kind: str,
    author: str,
    messages: Sequence[ProvenMessage],
    journals: Sequence[tuple[View, Sequence[Hop]]],
    wording: Wording = Wording.HANDED_OVER,
) -> list[str]:
    """The claim of a fork."""
    names = {message.address: message.name for message in messages}
    sentences = [f"{author} signed both message 1 and message 2, which contradict each other: {kind}"]
    sentences += [f"{message.name} is {fabric.show_address(message.address)}" for message in messages]
    for view, hops in journals:
        sentences += [describe_hop(names[hop.message], hop, wording) for hop in hops]
        sentences.append(describe_commitment(view))
    return sentences


def read_signed(fabric: Fabric, message: ProvenMessage) -> tuple[MessageInfo, Signed]:
    """Decode a message and its signer; ReceiptError if it is not signed."""
    if message.raw is None:
        raise ReceiptError(f"form: the bytes of {message.name} are left out")
    info = fabric.read(message.raw)
    if isinstance(info, Refused):
        raise ReceiptError(f"address: {message.name}: {info.detail}")
    if info.signed is None:
        raise ReceiptError(f"fork: messages of {fabric.name} do not carry their author's signature")
    return info, info.signed


def _check_author(
    fabric: Fabric, author: str, messages: Sequence[ProvenMessage], trusted: frozenset[Verifier], policy: Policy
) -> list[str]:
    """Check that the author signed both with one key; returns what is not proven, if the policy allows that."""
    keys = [_signing_key(fabric, read_signed(fabric, message)[1], trusted) for message in messages]
    for message, key in zip(messages, keys, strict=True):
        if key is None and policy.needs_authors_keys:
            name = fabric.show_address(message.address)
            raise ReceiptError(f"signature: {name} is not signed with a trusted key of {author}")
    if None in keys:
        return [f"that {author} signed both: none of the given keys fits"]
    if keys[0] != keys[1]:
        raise ReceiptError(f"fork: the messages are signed with two keys of {author}")
    return []


def _signing_key(fabric: Fabric, signed: Signed, trusted: frozenset[Verifier]) -> bytes | None:
    """The trusted key of the author that verifies the message."""
    for verifier in trusted:
        if verifier.name == signed.signer and fabric.verify(signed, verifier.public_key):
            return verifier.public_key
    return None
