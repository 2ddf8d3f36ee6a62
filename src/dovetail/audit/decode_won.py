"""won: the message's own graphs as canonical N-Quads, read with the node's own codec.

The signature is not verified here: it needs the signer's key, which may be published by a message of another batch.
What `signatures` needs for that is kept: digest, signature, fingerprint, and keys that Create messages publish.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from dovetail.audit.decode import Batches, Row, decode_rows, link, rejected
from dovetail.model.errors import RemoteProtocolError
from dovetail.model.hop import Relation
from dovetail.won.message import Message, decode_message, uri_address, verify_address
from dovetail.won.signing import SIGNATURE_BYTES, decode_base64, encode_base64, expected_signer, extract_keys


def decode_won(batches: Batches) -> Iterator[pa.RecordBatch]:
    """Decode batches of won messages."""
    return decode_rows(batches, decode_won_row)


def decode_won_row(raw: bytes, given: Row) -> Row:  # noqa: ARG001 - the signature all row decoders share
    """The fields of one message; its address is computed from its content."""
    try:
        message = decode_message(raw)
    except RemoteProtocolError as error:
        return rejected(error.reason.value, error.detail)
    keys = extract_keys(message)
    key = keys.get(message.atom) if message.atom else None
    return {
        "message": message.address,
        "key": message.address,
        "id": message.uri,
        "type": message.type.value,
        "sender": message.sender,
        "recipients": [message.recipient] if message.recipient else [],
        "created_us": message.timestamp_ms * 1000,
        "version": "1.0",
        "direction": message.direction.value,
        "connection": message.connection,
        "sender_socket": message.sender_socket,
        "recipient_socket": message.recipient_socket,
        "responding_to_type": message.responding_to_type.value if message.responding_to_type else None,
        "signer": message.signer,
        "address_valid": verify_address(message),
        "claims_valid": _has_valid_claims(message),
        "signed_digest": message.signed_digest,
        "signature": decode_base64(message.signature, SIGNATURE_BYTES),
        "fingerprint": message.fingerprint,
        "key_owner": message.atom if key else None,
        "public_key": key.raw if key else None,
        "links": _links(message),
    }


def _has_valid_claims(message: Message) -> bool:
    """Whether the signer may speak for the sender, and the stated hash is that of the signed graphs."""
    try:
        expected = expected_signer(message)
    except RemoteProtocolError:
        return False
    return message.signer == expected and message.hash == encode_base64(message.signed_digest)


def _links(message: Message) -> list[Row]:
    links = []
    if message.responding_to is not None:
        links.append(link(_parent(message.responding_to), Relation.RESPONDING_TO))
    links += [link(_parent(uri), Relation.PREVIOUS) for uri in message.previous]
    links += [link(_parent(uri), Relation.REFERS) for uri in message.forwarded]
    return links


def _parent(uri: str) -> bytes:
    """The address in a message URI, or the URI itself where it is of another kind of hash."""
    return uri_address(uri) or uri.encode()
