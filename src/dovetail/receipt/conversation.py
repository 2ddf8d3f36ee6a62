"""Conversations: these are all messages between two sockets, up to the newest responses of their servers.

A server's response names by hash the message it answers and the responses of the other server that it has seen. So all
earlier messages are reachable from the newest responses, by hashes that the servers signed. A set of messages is the
whole conversation up to its newest responses if

    every message that one of them names is present       else one is missing
    every message is answered by a response in the set    else one was added
    all of them are between the same two sockets          else one was added
    every response is signed by its server                else it was forged

Messages that no later response names yet can be omitted unnoticed: that is the limit of this proof, and the claim says
up to which responses it holds. The holder of another receipt of the same journals can look for omissions
(`find_left_out`). Refused messages and failures are never named, so they are not covered.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence

from dovetail.fabrics import fabric_named
from dovetail.model.address import Address
from dovetail.model.errors import ReceiptError
from dovetail.model.fabric import Fabric, MessageInfo, Refused, Role, Signed, Thread
from dovetail.model.hop import Relation, Stage
from dovetail.model.times import time_text
from dovetail.receipt.claims import check_claim, quote
from dovetail.receipt.consistency import View
from dovetail.receipt.delivery import CheckedJournal, check_journals, single_fabric
from dovetail.receipt.format import Conversation, bytes_of
from dovetail.receipt.proof import Policy, Proof, ProvenMessage, check_order
from dovetail.tlog.keys import Verifier

Known = Mapping[bytes, MessageInfo]
"""Messages by key."""

_LIMITS = (
    "that nothing came after the newest responses: what none of them names could be left out (--against finds it)",
    "that nothing was refused: refused messages and failure responses are no part of a conversation",
    "who wrote the messages: the signatures inside their bytes need the authors' keys",
    "that the times are right: they are those of each server's own clock",
)


def check_conversation(receipt: Conversation, trusted: frozenset[Verifier], policy: Policy) -> Proof:
    """Check that these are all messages of one conversation up to its newest responses."""
    check_order((record.address for record in receipt.messages), "the messages")
    if any(record.relation is not None for record in receipt.messages):
        raise ReceiptError("form: the messages of a conversation have no relation")
    messages = [
        ProvenMessage(address=Address(bytes.fromhex(record.address)), name=f"message {number}", raw=bytes_of(record))
        for number, record in enumerate(receipt.messages, 1)
    ]
    journals = check_journals(receipt.journals, messages, trusted, policy)
    fabric = fabric_named(single_fabric(journals))
    if fabric.thread is not Thread.CONVERSATION:
        raise ReceiptError(f"completeness: messages of {fabric.name} do not name each other by their content")
    infos = _check_bytes(fabric, messages, journals)
    sockets = check_closed(fabric, infos)
    unsigned = _check_signatures(fabric, infos, trusted, policy)
    claims = state_conversation(sockets, infos, [(j.view, len(j.hops)) for j in journals])
    check_claim(receipt.claim, claims)
    unwitnessed = [journal.signatory.server for journal in journals if not journal.signatory.witnesses]
    return Proof(
        kind="conversation",
        fabric=fabric.name,
        claims=tuple(claims),
        not_proven=(
            *_LIMITS,
            *(f"that {name} signed its messages here: none of the given keys fits" for name in unsigned),
            *(f"that {name} shows everybody the same journal: no trusted witness cosigned it" for name in unwitnessed),
        ),
        signatories=tuple(journal.signatory for journal in journals),
        views=tuple(journal.view for journal in journals),
        messages=tuple(messages),
        hops=tuple(hop for journal in journals for hop in journal.hops),
    )


def check_closed(fabric: Fabric, messages: Sequence[MessageInfo]) -> tuple[str, str]:
    """Return the two sockets of all messages; ReceiptError says which message is missing or was added."""
    known = {message.key: message for message in messages}
    answered = {answered_by(message) for message in messages}
    sockets: frozenset[str] | None = None
    for message in messages:
        for named in names_of(message):
            if named not in known:
                raise ReceiptError(f"completeness: {fabric.show_key(named)} is missing, which {message.id} names")
    for message in messages:
        if message.role is None and message.key not in answered:
            raise ReceiptError(f"completeness: {message.id} was added: no response here answers it")
        sockets = sockets or sockets_of(message, known)
        if sockets is None or sockets_of(message, known) != sockets:
            raise ReceiptError(f"completeness: {message.id} was added: it is of another conversation")
    first, second = sorted(sockets or ())
    return first, second


def answered_by(response: MessageInfo) -> bytes | None:
    """The message that a response answers."""
    return response.parent(Relation.RESPONDING_TO)


def names_of(message: MessageInfo) -> list[bytes]:
    """The earlier messages of its conversation that a response names; other messages name none."""
    if message.role is None:
        return []
    return [link.parent for link in message.links if link.relation in (Relation.RESPONDING_TO, Relation.PREVIOUS)]


def sockets_of(message: MessageInfo, known: Known) -> frozenset[str] | None:
    """The two sockets of the conversation that a message belongs to; None if it belongs to none.

    A response belongs to the conversation of the message it answers, if it is from one of its sockets and to its
    sender's.
    """
    if message.role is None:
        return _pair(message)
    asked = known.get(answered_by(message) or b"")
    if asked is None or asked.role is not None or message.role is Role.FAILURE:
        return None
    sockets = _pair(asked)
    if sockets is None or asked.channel is None or message.channel is None:
        return None
    is_theirs = message.channel.recipient_socket == asked.channel.sender_socket
    return sockets if is_theirs and message.channel.sender_socket in sockets else None


def _pair(message: MessageInfo) -> frozenset[str] | None:
    """The two sockets that a message goes between."""
    if message.channel is None or message.channel.sender_socket is None or message.channel.recipient_socket is None:
        return None
    pair = frozenset((message.channel.sender_socket, message.channel.recipient_socket))
    return pair if len(pair) == 2 else None


def state_conversation(
    sockets: tuple[str, str], messages: Sequence[MessageInfo], journals: Iterable[tuple[View, int]]
) -> list[str]:
    """The claim: whose conversation, up to where it is complete, and who commits to how much of it."""
    named = {key for message in messages for key in names_of(message)}
    first, second = (quote(socket) for socket in sockets)
    whose = f"the conversation of {first} and {second}"
    sentences = [f"{whose} has {len(messages)} messages up to its newest responses, and these are all"]
    for message in messages:
        if message.key not in named:
            at, signer = time_text(message.created_us or 0), _signed(message).signer
            sentences.append(f"a newest response is {message.id}, which {signer} signed for {at}")
    for view, count in journals:
        origin, size = view.checkpoint.origin, view.checkpoint.size
        sentence = f"{origin} commits to {count} of them: its signed journal of {size} hops contains them"
        if view.grown_from is not None:
            sentence += f", and begins with its journal of {view.grown_from.size} hops"
        sentences.append(sentence)
    return sentences


def find_left_out(statement: Proof, other: Proof) -> None:
    """Raise ReceiptError if `other` shows a message of the conversation from the same journals that is missing here."""
    fabric = fabric_named(statement.fabric)
    infos = [_read(fabric, message) for message in statement.messages]
    known = {message.key: message for message in infos}
    sockets = frozenset(check_closed(fabric, infos))
    sizes = {signatory.server: signatory.checkpoint.size for signatory in statement.signatories}
    shown = {message.address: _try_read(fabric, message) for message in other.messages}
    everything = known | {message.key: message for message in shown.values() if message is not None}
    for hop in other.hops:
        message = shown.get(hop.message)
        if message is None or message.key in known or hop.stage is Stage.REJECTED:
            continue
        if hop.seq < sizes.get(hop.server, 0) and sockets_of(message, everything) == sockets:
            raise ReceiptError(
                f"against: {message.id} was left out: {hop.server} had it at hop {hop.seq} of {sizes[hop.server]}"
            )


def _check_bytes(
    fabric: Fabric, messages: Sequence[ProvenMessage], journals: Sequence[CheckedJournal]
) -> list[MessageInfo]:
    """Decode the messages; the bytes of each must be stored by a journal here, which has one hop of it."""
    digests: dict[Address, set[bytes]] = {}
    for journal in journals:
        if len({hop.message for hop in journal.hops}) != len(journal.hops):
            raise ReceiptError(f"form: {journal.signatory.server} has two hops of one message")
        for hop, digest in zip(journal.hops, journal.digests, strict=True):
            digests.setdefault(hop.message, set()).add(digest)
    infos = []
    for message in messages:
        infos.append(_read(fabric, message))
        if hashlib.sha256(message.raw or b"").digest() not in digests.get(message.address, ()):
            raise ReceiptError(f"address: no journal here kept these bytes of {message.name}")
    return infos


def _check_signatures(
    fabric: Fabric, messages: Sequence[MessageInfo], trusted: frozenset[Verifier], policy: Policy
) -> list[str]:
    """Check that every response is signed by the server of its sender socket, with a trusted key of that server.

    Returns the servers for which no trusted key was found, if the policy allows that.
    """
    unsigned: set[str] = set()
    keys: dict[str, list[bytes]] = {}
    for verifier in trusted:
        keys.setdefault(verifier.name, []).append(verifier.public_key)
    for message in messages:
        if message.role is None:
            continue
        signed = _signed(message)
        if signed.entitled != signed.signer:
            raise ReceiptError(f"signature: {message.id} must be signed by {signed.entitled or 'a server'}")
        if not any(fabric.verify(signed, key) for key in keys.get(signed.signer, ())):
            if policy.needs_authors_keys:
                raise ReceiptError(f"signature: {message.id} is not signed with a trusted key of {signed.signer}")
            unsigned.add(signed.signer)
    return sorted(unsigned)


def _signed(message: MessageInfo) -> Signed:
    if message.signed is None:
        raise ReceiptError(f"signature: {message.id} is not signed")
    return message.signed


def _read(fabric: Fabric, message: ProvenMessage) -> MessageInfo:
    if message.raw is None:
        raise ReceiptError(f"form: the bytes of {message.name} are left out")
    info = fabric.read(message.raw)
    if isinstance(info, Refused):
        raise ReceiptError(f"address: {message.name}: {info.detail}")
    if info.address != message.address or not info.address_valid:
        raise ReceiptError(f"address: the bytes of {message.name} do not have its address")
    return info


def _try_read(fabric: Fabric, message: ProvenMessage) -> MessageInfo | None:
    try:
        return _read(fabric, message)
    except ReceiptError:
        return None
