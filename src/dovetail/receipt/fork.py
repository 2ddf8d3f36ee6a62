"""Forks: two messages that one author signed and that contradict each other, with proof that servers hold them.

What the audit finds in `forks` and can be shown to anybody, because won messages are signed:

    conflicting_response   two different responses of one node, in the same role, to one message
    forked_log             two different responses of one node in an atom's log that continue the same responses
    two_creates            two different Create messages of one atom

The author's key must be trusted under the author's URI, a node's or an atom's. The key that a Create message publishes
is not enough: anybody could make two in somebody else's name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from dovetail.model.address import Address, won_uri
from dovetail.model.errors import ReceiptError, RemoteProtocolError
from dovetail.model.hop import Fabric, Hop
from dovetail.receipt.claims import describe_commitment, describe_hop
from dovetail.receipt.consistency import View
from dovetail.receipt.delivery import check_journals, check_messages, single_fabric
from dovetail.receipt.format import Fork, bytes_of
from dovetail.receipt.proof import Policy, Proof, ProvenMessage, check_order
from dovetail.tlog.keys import Verifier

if TYPE_CHECKING:
    from dovetail.won.message import Message
    from dovetail.won.signing import PublicKey

NAMES = ("message 1", "message 2")
_LIMITS = (
    "which of the two is true",
    "whether it was the author or somebody else who holds the author's key",
    "that the times are right: they are those of each server's own clock",
)


def check_fork(receipt: Fork, trusted: frozenset[Verifier], policy: Policy) -> Proof:
    """That one author signed both messages, that they contradict each other, and who has them."""
    check_order((message.address for message in receipt.messages), "the messages")
    if any(message.relation is not None for message in receipt.messages):
        raise ReceiptError("form: the messages of a fork have no relation")
    messages = [
        ProvenMessage(address=Address(bytes.fromhex(record.address)), name=name, raw=bytes_of(record))
        for record, name in zip(receipt.messages, NAMES, strict=True)
    ]
    journals = check_journals(receipt.journals, messages, trusted, policy)
    if single_fabric(journals) is not Fabric.WON:
        raise ReceiptError("fork: only won messages carry their author's signature")
    check_messages(messages, journals, Fabric.WON)
    author = find_contradiction(receipt.contradiction, messages)
    limits = [*_check_author(author, messages, trusted, policy), *_LIMITS]
    claims = state_fork(receipt.contradiction, author, messages, [(j.view, j.hops) for j in journals])
    if claims != receipt.claim:
        raise ReceiptError("claim: the words in the file are not what its proofs say")
    return Proof(
        kind="fork",
        fabric=Fabric.WON,
        claims=tuple(claims),
        not_proven=tuple(limits),
        signatories=tuple(journal.signatory for journal in journals),
        views=tuple(journal.view for journal in journals),
        messages=tuple(messages),
        hops=tuple(hop for journal in journals for hop in journal.hops),
    )


def find_contradiction(kind: str, messages: Sequence[ProvenMessage]) -> str:
    """The author whom both name and who contradicts himself in them; ReceiptError where nobody does."""
    one, other = (_decode(message) for message in messages)
    if kind not in _KEYS:
        raise ReceiptError(f"fork: unknown contradiction {kind!r}")
    common = _KEYS[kind](one)
    if common is None or common != _KEYS[kind](other) or one.signer != other.signer:
        raise ReceiptError(f"fork: the messages are no {kind}")
    return one.signer


def state_fork(
    kind: str,
    author: str,
    messages: Sequence[ProvenMessage],
    journals: Sequence[tuple[View, Sequence[Hop]]],
) -> list[str]:
    """The claim of a fork."""
    names = {message.address: message.name for message in messages}
    sentences = [f"{author} signed both message 1 and message 2, which contradict each other: {kind}"]
    sentences += [f"{message.name} is {won_uri(message.address)}" for message in messages]
    for view, hops in journals:
        sentences += [describe_hop(names[hop.message], hop) for hop in hops]
        sentences.append(describe_commitment(view))
    return sentences


def _decode(message: ProvenMessage) -> Message:
    from dovetail.won.message import decode_message

    if message.raw is None:
        raise ReceiptError(f"form: the bytes of {message.name} are left out")
    try:
        return decode_message(message.raw)
    except RemoteProtocolError as error:
        raise ReceiptError(f"address: {message.name}: {error.detail}") from None


def _check_author(
    author: str, messages: Sequence[ProvenMessage], trusted: frozenset[Verifier], policy: Policy
) -> list[str]:
    """That the author signed both with one key; what is not proven, where the policy lets that pass."""
    keys = [_signing_key(message, trusted) for message in map(_decode, messages)]
    for message, key in zip(messages, keys, strict=True):
        if key is None and policy.needs_authors_keys:
            raise ReceiptError(f"signature: {won_uri(message.address)} is not signed with a trusted key of {author}")
    if None in keys:
        return [f"that {author} signed both: no key at hand fits"]
    if keys[0] != keys[1]:
        raise ReceiptError(f"fork: the messages are signed with two keys of {author}")
    return []


def _signing_key(message: Message, trusted: frozenset[Verifier]) -> PublicKey | None:
    """The trusted key of the author that verifies the message."""
    from dovetail.won.signing import PublicKey, verify_signature

    for verifier in trusted:
        key = PublicKey(verifier.public_key)
        if verifier.name == message.signer and verify_signature(message, key):
            return key
    return None


def _response_key(message: Message) -> object:
    """Two responses with the same answer the same message in the same role."""
    if message.responding_to is None:
        return None
    return message.responding_to, message.sender_socket == message.recipient_socket


def _log_key(message: Message) -> object:
    """Two responses with the same continue an atom's log from the same place."""
    if not message.is_response or message.sender_socket is not None or not message.previous:
        return None
    return message.atom, frozenset(message.previous)


def _create_key(message: Message) -> object:
    """Two Create messages with the same make the same atom."""
    from dovetail.won.vocabulary import MessageType

    return message.atom if message.type is MessageType.CREATE else None


_KEYS: Mapping[str, Callable[[Message], object]] = {
    "conflicting_response": _response_key,
    "forked_log": _log_key,
    "two_creates": _create_key,
}
CONTRADICTIONS = tuple(_KEYS)
