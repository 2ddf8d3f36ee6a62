"""Builds the statement of a conversation: collects its messages from journals or the lake, then verifies it.

Earlier messages are found by following references: what a response names is looked up by address. Later ones are found
by search: messages further on that name one of the two sockets.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dovetail.fabrics import fabric_named
from dovetail.journal.hop_source import CommittedHop, HopSource
from dovetail.model.address import ADDRESS_BYTES, Address
from dovetail.model.errors import ReceiptError
from dovetail.model.fabric import Fabric, MessageInfo, Refused, Thread
from dovetail.receipt.build import BuildOptions, Holder, common_fabric, first_raw, pin_sources, record_journal
from dovetail.receipt.consistency import check_since
from dovetail.receipt.conversation import answered_by, check_closed, names_of, sockets_of, state_conversation
from dovetail.receipt.format import MAX_CONVERSATION, Conversation, check_note, encode_receipt, record_message
from dovetail.receipt.proof import ProvenMessage
from dovetail.receipt.verify import verify_receipt
from dovetail.tlog.keys import Verifier
from dovetail.tlog.leaf import NO_DIGEST


def build_conversation(
    sources: Sequence[HopSource], address: Address, keys: Sequence[Verifier] = (), options: BuildOptions | None = None
) -> bytes:
    """Build the statement about this message's conversation; ReceiptError if it cannot be built.

    Verifies the responses' signatures with `keys` and with the keys that the sources contain.
    """
    options = options or BuildOptions()
    pinned = pin_sources(sources, options)
    fabric = fabric_named(common_fabric(pinned, [address]))
    if fabric.thread is not Thread.CONVERSATION:
        raise ReceiptError(f"messages of {fabric.name} form no conversations")
    holders = [holder for holder in pinned if holder.source.fabric == fabric.name]
    found = _Gathering(fabric, holders, options.search_hops).gather(address)
    infos = sorted(found, key=lambda info: info.address)
    sockets = check_closed(fabric, infos)
    messages = [
        ProvenMessage(address=info.address, name=f"message {number}", raw=first_raw(holders, info.address))
        for number, info in enumerate(infos, 1)
    ]
    journals, stated = [], []
    for holder in holders:
        kept = sorted(_one_hop_each(holder, infos), key=lambda each: each.hop.seq)
        if kept:
            record = record_journal(holder, kept, messages, options)
            journals.append(record)
            stated.append((check_since(record.since, check_note(record).checkpoint), len(kept)))
    receipt = Conversation(
        claim=state_conversation(sockets, infos, stated),
        messages=[record_message(message.address, message.raw, None) for message in messages],
        journals=journals,
    )
    data = encode_receipt(receipt)
    verify_receipt(data, [*keys, *(holder.source.verifier for holder in holders)])
    return data


class _Gathering:
    """Collects the messages of a conversation from journals."""

    def __init__(self, fabric: Fabric, holders: Sequence[Holder], search_hops: int) -> None:
        self._fabric = fabric
        self._holders = holders
        self._search_hops = search_hops

    def gather(self, address: Address) -> list[MessageInfo]:
        """Return the given message, those after it, and those that they name."""
        subject = self._read(address)
        asked = subject if subject.role is None else self._read(answered_by(subject) or b"")
        sockets = sockets_of(asked, {asked.key: asked})
        if sockets is None:
            raise ReceiptError(f"{asked.id} belongs to no conversation of two sockets")
        found = {asked.key: asked}
        pending: list[MessageInfo] = []
        for message in (subject, *self._search(address, sockets)):
            answered = answered_by(message)
            if answered is not None and answered not in found:
                found[answered] = self._read(answered)
            if message.key not in found and sockets_of(message, found) == sockets:
                found[message.key] = message
                pending.append(message)
        while pending:
            for key in names_of(pending.pop()):
                if key not in found:
                    found[key] = self._read(key)
                    pending.append(found[key])
            if len(found) > MAX_CONVERSATION:
                raise ReceiptError(f"more than {MAX_CONVERSATION} messages in this conversation")
        answers = {answered_by(message) for message in found.values()}
        if len(answers) == 1:
            raise ReceiptError(f"no successful response to {asked.id} lies within {self._search_hops} hops behind it")
        return [message for key, message in found.items() if message.role is not None or key in answers]

    def _search(self, address: Address, sockets: frozenset[str]) -> Iterator[MessageInfo]:
        """Messages between the two sockets, and responses to them, on the signed hops after a message."""
        marks = [socket.encode() for socket in sockets]
        for holder in self._holders:
            hops = holder.signed_hops(address)
            first = hops[0].hop.seq if hops else holder.signed.size
            for _, raw in holder.source.bodies_between(first, min(first + self._search_hops, holder.signed.size)):
                # cheap test first: decoding every message would take minutes
                if not any(mark in raw for mark in marks):
                    continue
                message = self._fabric.read(raw)
                if isinstance(message, Refused) or message.channel is None:
                    continue
                pair = {message.channel.sender_socket, message.channel.recipient_socket}
                if pair == sockets or (message.role is not None and pair <= sockets):
                    yield message

    def _read(self, key: bytes) -> MessageInfo:
        name = self._fabric.show_key(key)
        if len(key) != ADDRESS_BYTES:
            raise ReceiptError(f"{name[:100]} is no address")
        raw = first_raw(self._holders, Address(key))
        if raw is None:
            raise ReceiptError(f"no journal here has signed bytes of {name}")
        info = self._fabric.read(raw)
        if isinstance(info, Refused):
            raise ReceiptError(f"{name} cannot be read: {info.detail}")
        return info


def _one_hop_each(holder: Holder, messages: Sequence[MessageInfo]) -> Iterator[CommittedHop]:
    """For each message, the signed hop with which the journal stores its bytes, else its first hop."""
    for message in messages:
        hops = holder.signed_hops(message.address)
        if hops:
            yield next((kept for kept in hops if kept.digest != NO_DIGEST), hops[0])
