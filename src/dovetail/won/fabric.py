"""won for the packages above the core: a message's own graphs as canonical N-Quads, as stored in journals."""

from __future__ import annotations

import functools
from collections.abc import Hashable, Iterable, Mapping
from types import MappingProxyType
from typing import Final

from dovetail.model.address import ADDRESS_BYTES, Address, address_of, won_uri
from dovetail.model.canonical_base64 import encode_base64
from dovetail.model.errors import RemoteProtocolError
from dovetail.model.fabric import (
    Agreement,
    Channel,
    Conflict,
    Fabric,
    Identified,
    Link,
    MessageInfo,
    Refused,
    Role,
    Signed,
    Thread,
)
from dovetail.model.hop import Relation, Stage
from dovetail.won import chain
from dovetail.won.message import Message, decode_message, uri_address, verify_address
from dovetail.won.readers.head import read_head
from dovetail.won.signing import (
    SIGNATURE_BYTES,
    SIGNATURE_DOMAIN,
    PublicKey,
    decode_base64,
    expected_signer,
    extract_keys,
)
from dovetail.won.vocabulary import NODE_PATH, PROTOCOL_VERSION, MessageType

CONFLICTING_RESPONSE: Final = "conflicting_response"
FORKED_LOG: Final = "forked_log"
TWO_CREATES: Final = "two_creates"

_CACHED_KEYS = 4096
_ROLES = {
    chain.Role.FIRST: Role.FIRST,
    chain.Role.ATOM: Role.FIRST,
    chain.Role.SECOND: Role.SECOND,
    chain.Role.FAILURE: Role.FAILURE,
}
_NOT_PROVEN: Mapping[Stage, str] = {
    Stage.DELIVERED: "that a client received it or a person read it: the node handed it to a connection of the owner",
    Stage.FORWARDED: "that a forwarded message arrived, unless the other node's hop is here too",
    Stage.ACCEPTED: "who wrote it: the signature inside its bytes needs the author's key",
}


class WonFabric(Fabric):
    """Messages are named by the address of their canonical dataset, and signed."""

    name = "won"
    hashes_bytes = False
    key_bytes = ADDRESS_BYTES
    is_signed = True
    thread = Thread.CONVERSATION
    conflicts = MappingProxyType(
        {
            CONFLICTING_RESPONSE: Conflict(
                "error",
                "Conflicting responses",
                "A node sent two different responses of the same kind to one message.",
                "The node contradicts itself. Both messages are signed: keep them as evidence.",
            ),
            FORKED_LOG: Conflict(
                "error",
                "Forked log",
                "A node continued the log of an atom twice from the same position.",
                "The author presents two different histories. Both messages are signed: keep them as evidence.",
            ),
            TWO_CREATES: Conflict(
                "error", "Created twice", "An atom was created twice.", "At most one of the two is genuine."
            ),
        }
    )

    def read(self, raw: bytes, agreement: Agreement | None = None) -> MessageInfo | Refused:
        """Compute the address from the content. Checking the signature needs the signer's key: see `verify`."""
        del agreement
        try:
            message = decode_message(raw)
        except RemoteProtocolError as error:
            return Refused(error.reason, error.detail)
        return MessageInfo(
            address=message.address,
            address_valid=verify_address(message),
            key=message.address,
            id=message.uri,
            type=message.type.value,
            version=PROTOCOL_VERSION,
            sender=message.sender,
            recipients=(message.recipient,) if message.recipient else (),
            created_us=message.timestamp_ms * 1000,
            links=_links(message),
            role=_ROLES[chain.role_of(message)] if message.is_response else None,
            channel=Channel(
                direction=message.direction.value,
                connection=message.connection,
                sender_socket=message.sender_socket,
                recipient_socket=message.recipient_socket,
                responding_to_type=message.responding_to_type.value if message.responding_to_type else None,
            ),
            signed=_signed(message),
        )

    def explain(self, raw: bytes) -> dict[str, object]:
        """The one message in `raw`."""
        try:
            return explain_message(decode_message(raw))
        except RemoteProtocolError as error:
            return {"error": error.reason.value, "detail": error.detail}

    def not_proven(self, stage: Stage) -> str | None:
        """A node reports connections and does not vouch for authors."""
        return _NOT_PROVEN.get(stage)

    def identify(self, raw: bytes) -> Identified:
        """The most common messages need no RDF parsing; bytes that are not a message are named by their hash."""
        head = read_head(raw)
        if head is not None:
            return _identify(head.uri, head.address, head.previous, head.responding_to)
        try:
            message = decode_message(raw)
        except RemoteProtocolError:
            return Identified(address_of(raw))
        return _identify(message.uri, message.address, message.previous, message.responding_to)

    def show_address(self, address: Address) -> str:
        """The message URI."""
        return won_uri(address)

    def show_key(self, key: bytes) -> str:
        """The message URI, even one with another kind of hash."""
        return won_uri(Address(key)) if len(key) == ADDRESS_BYTES else key.decode(errors="replace")

    def needle(self, key: bytes) -> bytes:
        """The message URI."""
        return self.show_key(key).lower().encode()

    def show_uri(self, uri: str) -> str:
        """Without the path that all nodes share."""
        return super().show_uri(uri).replace(NODE_PATH, "", 1)

    def conflict_keys(self, message: MessageInfo) -> dict[str, Hashable]:
        """A node answers a message once in each role, continues an atom's log once, and an atom is created once."""
        keys: dict[str, Hashable] = {}
        answered = message.parent(Relation.RESPONDING_TO)
        channel = message.channel
        if answered is not None and channel is not None:
            keys[CONFLICTING_RESPONSE] = chain.answer_key(answered, channel)
            previous = frozenset(link.parent for link in message.links if link.relation is Relation.PREVIOUS)
            if channel.sender_socket is None and previous:
                keys[FORKED_LOG] = message.sender, previous
        if message.type == MessageType.CREATE.value:
            keys[TWO_CREATES] = message.sender
        return keys

    def verify(self, signed: Signed, public_key: bytes) -> bool:
        """Check Ed25519 over the domain mark and the digest of the signed graphs, with the key named by the message."""
        key = _public_key(public_key)
        return (
            key is not None
            and signed.signature is not None
            and signed.fingerprint == key.fingerprint
            and key.verifies(signed.signature, SIGNATURE_DOMAIN + signed.signed_digest)
        )


FABRIC: Final = WonFabric()


def explain_message(message: Message) -> dict[str, object]:
    """The fields of a message as plain data; absent fields are omitted."""
    fields: dict[str, object] = {
        "uri": message.uri,
        "address": "ok" if verify_address(message) else "broken",
        "computed": message.true_uri,
        "type": message.type.value,
        "direction": message.direction.value,
        "timestamp_ms": message.timestamp_ms,
        "atom": message.atom,
        "senderSocket": message.sender_socket,
        "recipientSocket": message.recipient_socket,
        "connection": message.connection,
        "respondingTo": message.responding_to,
        "respondingToMessageType": message.responding_to_type.value if message.responding_to_type else None,
        "previousMessage": list(message.previous),
        "forwardedMessage": list(message.forwarded),
        "content": list(message.contents),
        "text": message.text,
        "signer": message.signer,
        "publicKeyFingerprint": message.fingerprint,
        "quads": len(message.quads),
    }
    return {name: value for name, value in fields.items() if value not in (None, [])}


def _links(message: Message) -> tuple[Link, ...]:
    named = [(Relation.PREVIOUS, uri) for uri in message.previous]
    named += [(Relation.REFERS, uri) for uri in message.forwarded]
    if message.responding_to is not None:
        named.insert(0, (Relation.RESPONDING_TO, message.responding_to))
    return tuple([Link(_parent(uri), relation) for relation, uri in named])


def _parent(uri: str) -> bytes:
    """The address in a message URI, or the URI itself if it has another kind of hash."""
    return uri_address(uri) or uri.encode()


def _signed(message: Message) -> Signed:
    try:
        entitled = expected_signer(message)
    except RemoteProtocolError:
        entitled = None
    is_hash_right = message.hash == encode_base64(message.signed_digest)
    key = extract_keys(message).get(message.atom) if message.atom else None
    return Signed(
        signer=message.signer,
        entitled=entitled,
        signed_digest=message.signed_digest,
        signature=decode_base64(message.signature, SIGNATURE_BYTES) if is_hash_right else None,
        fingerprint=message.fingerprint,
        claims_valid=is_hash_right and message.signer == entitled,
        key_owner=message.atom if key else None,
        public_key=key.raw if key else None,
    )


def _identify(uri: str, address: Address, previous: Iterable[str], responding_to: str | None) -> Identified:
    named = [(Relation.PREVIOUS, each) for each in previous]
    if responding_to is not None:
        named.append((Relation.RESPONDING_TO, responding_to))
    return Identified(address if uri == won_uri(address) else None, frozenset(named))


@functools.lru_cache(maxsize=_CACHED_KEYS)
def _public_key(raw: bytes) -> PublicKey | None:
    try:
        return PublicKey(raw)
    except ValueError:
        return None
