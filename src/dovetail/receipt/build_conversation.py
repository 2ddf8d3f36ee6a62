"""Building the statement of a conversation: its messages gathered from journals or the lake, then verified.

From one message of it, the way back goes along references: what a response names is looked up by its address. The way
forward is a search: messages behind it that name one of its two sockets.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from dovetail.journal.hop_source import CommittedHop, HopSource
from dovetail.model.address import Address, parse_address
from dovetail.model.errors import ReceiptError, RemoteProtocolError
from dovetail.model.hop import Fabric, address_text
from dovetail.receipt.build import BuildOptions, Holder, first_raw, pin_sources, record_journal
from dovetail.receipt.consistency import check_since
from dovetail.receipt.conversation import check_closed, names_of, sockets_of, state_conversation
from dovetail.receipt.format import MAX_CONVERSATION, Conversation, check_note, encode_receipt, record_message
from dovetail.receipt.proof import ProvenMessage
from dovetail.receipt.verify import verify_receipt
from dovetail.tlog.keys import Verifier
from dovetail.tlog.leaf import NO_DIGEST

if TYPE_CHECKING:
    from dovetail.won.message import Message


def build_conversation(
    sources: Sequence[HopSource], address: Address, keys: Sequence[Verifier] = (), options: BuildOptions | None = None
) -> bytes:
    """The statement about the conversation that this message belongs to; ReceiptError where it cannot be made.

    The responses' signatures are checked with `keys` and with those that the sources carry.
    """
    options = options or BuildOptions()
    holders = [holder for holder in pin_sources(sources, options) if holder.source.fabric is Fabric.WON]
    found = _gather(holders, address, options.search_hops)
    decoded = sorted(found.values(), key=lambda message: message.address)
    sockets = check_closed(decoded)
    messages = [
        ProvenMessage(address=message.address, name=f"message {number}", raw=message.raw)
        for number, message in enumerate(decoded, 1)
    ]
    journals, stated = [], []
    for holder in holders:
        kept = sorted(_one_hop_each(holder, decoded), key=lambda each: each.hop.seq)
        if kept:
            record = record_journal(holder, kept, messages, options)
            journals.append(record)
            stated.append((check_since(record.since, check_note(record).checkpoint), len(kept)))
    receipt = Conversation(
        claim=state_conversation(sockets, decoded, stated),
        messages=[record_message(message.address, message.raw, None) for message in messages],
        journals=journals,
    )
    data = encode_receipt(receipt)
    verify_receipt(data, [*keys, *(holder.source.verifier for holder in holders)])
    return data


def _gather(holders: Sequence[Holder], address: Address, search_hops: int) -> dict[str, Message]:
    """All messages of the conversation by URI: the one asked for, what lies behind it, and what these name."""
    subject = _read(holders, address)
    asked = subject if subject.responding_to is None else _read(holders, _address_of(subject.responding_to))
    sockets = sockets_of(asked, {asked.uri: asked})
    if sockets is None:
        raise ReceiptError(f"{asked.uri} belongs to no conversation of two sockets")
    found = {asked.uri: asked}
    pending: list[Message] = []
    for message in (subject, *_search(holders, subject.address, sockets, search_hops)):
        uri = message.responding_to
        if uri is not None and uri not in found:
            found[uri] = _read(holders, _address_of(uri))
        if message.uri not in found and sockets_of(message, found) == sockets:
            found[message.uri] = message
            pending.append(message)
    while pending:
        for uri in names_of(pending.pop()):
            if uri not in found:
                found[uri] = _read(holders, _address_of(uri))
                pending.append(found[uri])
        if len(found) > MAX_CONVERSATION:
            raise ReceiptError(f"more than {MAX_CONVERSATION} messages in this conversation")
    answered = {message.responding_to for message in found.values()}
    if len(answered) == 1:
        raise ReceiptError(f"no successful response to {asked.uri} lies within {search_hops} hops behind it")
    return {uri: message for uri, message in found.items() if message.is_response or uri in answered}


def _search(
    holders: Sequence[Holder], address: Address, sockets: frozenset[str | None], search_hops: int
) -> Iterator[Message]:
    """Messages between the two sockets, and responses of them, on the signed hops behind a message."""
    from dovetail.won.message import decode_message

    marks = [f"<{socket}>".encode() for socket in sockets]
    for holder in holders:
        hops = holder.signed_hops(address)
        first = hops[0].hop.seq if hops else holder.signed.size
        for _, raw in holder.source.bodies_between(first, min(first + search_hops, holder.signed.size)):
            # the cheap look first: decoding every message would take minutes
            if not any(mark in raw for mark in marks):
                continue
            try:
                message = decode_message(raw)
            except RemoteProtocolError:
                continue
            pair = frozenset((message.sender_socket, message.recipient_socket))
            if pair == sockets or (message.is_response and pair <= sockets):
                yield message


def _one_hop_each(holder: Holder, messages: Sequence[Message]) -> Iterator[CommittedHop]:
    """For each message the signed hop on which the journal keeps its bytes, else its first."""
    for message in messages:
        hops = holder.signed_hops(message.address)
        if hops:
            yield next((kept for kept in hops if kept.digest != NO_DIGEST), hops[0])


def _read(holders: Sequence[Holder], address: Address) -> Message:
    from dovetail.won.message import decode_message

    raw = first_raw(holders, address)
    if raw is None:
        raise ReceiptError(f"no journal here has signed bytes of {address_text(address, Fabric.WON)}")
    try:
        return decode_message(raw)
    except RemoteProtocolError as error:
        raise ReceiptError(f"{address_text(address, Fabric.WON)} cannot be read: {error.detail}") from None


def _address_of(uri: str) -> Address:
    try:
        return Address(parse_address(uri))
    except ValueError as error:
        raise ReceiptError(f"{uri[:100]} is no address: {error}") from None
