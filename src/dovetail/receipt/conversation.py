"""Conversations: these are all messages between two sockets, up to the newest responses of their nodes (won).

A node's SuccessResponse names by hash the message it answers and the responses of the other node that it has seen
(`msg:respondingTo`, `msg:previousMessage`). So the newest responses lead, by hashes that the nodes have signed, to
everything before them. A set of messages is the whole conversation up to its newest responses where

    every message that one of them names is there     else one is missing
    every message is answered by a response in it     else one was added
    all of them lie between the same two sockets      else one was added
    every response is signed by the node it is of     else it was made up

What no later response names yet may be left out unseen: that is the limit of this proof, and the claim says up to which
responses it reaches. Who holds another receipt of the same journals can look for what was left out
(`find_left_out`). Refused messages and FailureResponses are never named, so they are no part of it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from dovetail.model.address import Address
from dovetail.model.errors import ReceiptError, RemoteProtocolError
from dovetail.model.hop import Fabric, Stage
from dovetail.model.times import time_text
from dovetail.receipt.claims import quote
from dovetail.receipt.consistency import View
from dovetail.receipt.delivery import CheckedJournal, check_journals, single_fabric
from dovetail.receipt.format import Conversation, bytes_of
from dovetail.receipt.proof import Policy, Proof, ProvenMessage, check_order
from dovetail.tlog.keys import Verifier

if TYPE_CHECKING:
    from dovetail.won.message import Message

_LIMITS = (
    "that nothing came after the newest responses: what none of them names could be left out (--against finds it)",
    "that nothing was refused: refused messages and failure responses are no part of a conversation",
    "who wrote the messages: the signatures inside their bytes need the authors' keys",
    "that the times are right: they are those of each server's own clock",
)


def check_conversation(receipt: Conversation, trusted: frozenset[Verifier], policy: Policy) -> Proof:
    """That these are all messages of one conversation up to its newest responses."""
    check_order((record.address for record in receipt.messages), "the messages")
    if any(record.relation is not None for record in receipt.messages):
        raise ReceiptError("form: the messages of a conversation have no relation")
    messages = [
        ProvenMessage(address=Address(bytes.fromhex(record.address)), name=f"message {number}", raw=bytes_of(record))
        for number, record in enumerate(receipt.messages, 1)
    ]
    journals = check_journals(receipt.journals, messages, trusted, policy)
    if single_fabric(journals) is not Fabric.WON:
        raise ReceiptError("completeness: only won messages name each other by their content")
    decoded = _check_bytes(messages, journals)
    sockets = check_closed(decoded)
    unsigned = _check_signatures(decoded, trusted, policy)
    claims = state_conversation(sockets, decoded, [(j.view, len(j.hops)) for j in journals])
    if claims != receipt.claim:
        raise ReceiptError("claim: the words in the file are not what its proofs say")
    unwitnessed = [journal.signatory.server for journal in journals if not journal.signatory.witnesses]
    return Proof(
        kind="conversation",
        fabric=Fabric.WON,
        claims=tuple(claims),
        not_proven=(
            *_LIMITS,
            *(f"that {name} signed its messages here: no key at hand fits" for name in unsigned),
            *(f"that {name} shows everybody the same journal: no trusted witness cosigned it" for name in unwitnessed),
        ),
        signatories=tuple(journal.signatory for journal in journals),
        views=tuple(journal.view for journal in journals),
        messages=tuple(messages),
        hops=tuple(hop for journal in journals for hop in journal.hops),
    )


def check_closed(messages: Sequence[Message]) -> tuple[str, str]:
    """The two sockets between which all messages lie; ReceiptError tells which message is missing or was added."""
    by_uri = {message.uri: message for message in messages}
    answered = {message.responding_to for message in messages if message.is_response}
    sockets: frozenset[str | None] | None = None
    for message in messages:
        for named in names_of(message):
            if named not in by_uri:
                raise ReceiptError(f"completeness: {named} is missing, which {message.uri} names")
    for message in messages:
        if not message.is_response and message.uri not in answered:
            raise ReceiptError(f"completeness: {message.uri} was added: no response here answers it")
        sockets = sockets or sockets_of(message, by_uri)
        if sockets is None or sockets_of(message, by_uri) != sockets:
            raise ReceiptError(f"completeness: {message.uri} was added: it is of another conversation")
    first, second = sorted(str(socket) for socket in sockets or ())
    return first, second


def names_of(message: Message) -> tuple[str, ...]:
    """The earlier messages of its conversation that a message names."""
    if message.responding_to is None:
        return ()
    return (message.responding_to, *message.previous)


def sockets_of(message: Message, by_uri: dict[str, Message]) -> frozenset[str | None] | None:
    """The two sockets of the conversation that a message belongs to; None where it belongs to none.

    A response belongs to that of the message it answers, if it comes from one of its sockets and goes to its sender's.
    """
    from dovetail.won.vocabulary import MessageType

    asked = message
    if message.is_response:
        answers = by_uri.get(message.responding_to or "")
        if answers is None or answers.is_response or message.type is not MessageType.SUCCESS:
            return None
        if message.recipient_socket != answers.sender_socket:
            return None
        if message.sender_socket not in (answers.sender_socket, answers.recipient_socket):
            return None
        asked = answers
    if asked.sender_socket is None or asked.recipient_socket is None or asked.sender_socket == asked.recipient_socket:
        return None
    return frozenset((asked.sender_socket, asked.recipient_socket))


def state_conversation(
    sockets: tuple[str, str], messages: Sequence[Message], journals: Iterable[tuple[View, int]]
) -> list[str]:
    """The claim: whose conversation, up to where it is whole, and who commits to how much of it."""
    named = {uri for message in messages for uri in names_of(message)}
    first, second = (quote(socket) for socket in sockets)
    whose = f"the conversation of {first} and {second}"
    sentences = [f"{whose} has {len(messages)} messages up to its newest responses, and these are all"]
    for message in messages:
        if message.uri not in named:
            at = time_text(message.timestamp_ms * 1000)
            sentences.append(f"a newest response is {message.uri}, which {message.signer} signed for {at}")
    for view, count in journals:
        origin, size = view.checkpoint.origin, view.checkpoint.size
        sentence = f"{origin} commits to {count} of them: its signed journal of {size} hops contains them"
        if view.grown_from is not None:
            sentence += f", and begins with its journal of {view.grown_from.size} hops"
        sentences.append(sentence)
    return sentences


def find_left_out(statement: Proof, other: Proof) -> None:
    """ReceiptError where `other` shows a message of the conversation that a journal had, and the statement has not."""
    decoded = [_decode(message) for message in statement.messages]
    known = {message.uri: message for message in decoded}
    sockets = frozenset(check_closed(decoded))
    sizes = {signatory.server: signatory.checkpoint.size for signatory in statement.signatories}
    shown = {message.address: _try_decode(message) for message in other.messages}
    everything = known | {message.uri: message for message in shown.values() if message is not None}
    for hop in other.hops:
        message = shown.get(hop.message)
        if message is None or message.uri in known or hop.stage is Stage.REJECTED:
            continue
        if hop.seq < sizes.get(hop.server, 0) and sockets_of(message, everything) == sockets:
            raise ReceiptError(
                f"against: {message.uri} was left out: {hop.server} had it at hop {hop.seq} of {sizes[hop.server]}"
            )


def _check_bytes(messages: Sequence[ProvenMessage], journals: Sequence[CheckedJournal]) -> list[Message]:
    """The messages decoded: each has the bytes of its address, a journal here that kept them, and one hop in each."""
    digests: dict[Address, set[bytes]] = {}
    for journal in journals:
        if len({hop.message for hop in journal.hops}) != len(journal.hops):
            raise ReceiptError(f"form: {journal.signatory.server} has two hops of one message")
        for hop, digest in zip(journal.hops, journal.digests, strict=True):
            digests.setdefault(hop.message, set()).add(digest)
    decoded = []
    for message in messages:
        decoded.append(_decode(message))
        if hashlib.sha256(message.raw or b"").digest() not in digests.get(message.address, ()):
            raise ReceiptError(f"address: no journal here kept these bytes of {message.name}")
    return decoded


def _check_signatures(messages: Sequence[Message], trusted: frozenset[Verifier], policy: Policy) -> list[str]:
    """That every response is signed by the node of the socket it comes from, with a trusted key of that node.

    Gives the nodes of whom that could not be found, where the policy lets them pass.
    """
    from dovetail.won.signing import PublicKey, expected_signer, verify_signature

    unsigned: set[str] = set()
    keys: dict[str, list[PublicKey]] = {}
    for verifier in trusted:
        keys.setdefault(verifier.name, []).append(PublicKey(verifier.public_key))
    for message in messages:
        if not message.is_response:
            continue
        try:
            signer = expected_signer(message)
        except RemoteProtocolError as error:
            raise ReceiptError(f"signature: {message.uri}: {error.detail}") from None
        if signer != message.signer:
            raise ReceiptError(f"signature: {message.uri} must be signed by {signer}")
        if not any(verify_signature(message, key) for key in keys.get(signer, ())):
            if policy.needs_authors_keys:
                raise ReceiptError(f"signature: {message.uri} is not signed with a trusted key of {signer}")
            unsigned.add(signer)
    return sorted(unsigned)


def _decode(message: ProvenMessage) -> Message:
    from dovetail.won.message import decode_message

    if message.raw is None:
        raise ReceiptError(f"form: the bytes of {message.name} are left out")
    try:
        decoded = decode_message(message.raw)
    except RemoteProtocolError as error:
        raise ReceiptError(f"address: {message.name}: {error.detail}") from None
    if decoded.address != message.address or decoded.uri != decoded.true_uri:
        raise ReceiptError(f"address: the bytes of {message.name} do not have its address")
    return decoded


def _try_decode(message: ProvenMessage) -> Message | None:
    try:
        return _decode(message)
    except ReceiptError:
        return None
