"""How the bytes of a message lead to its address, and which message they name as their parent: one row for each fabric.

pcp and swarm: the address is the SHA-256 of the bytes. won: it is that of the message's canonical dataset, so the bytes
are read as RDF; bytes that were refused because they cannot be read have the SHA-256 of the bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dovetail.errors import RemoteProtocolError
from dovetail.hop import Address, Fabric, Relation, address_of, won_uri

AddressCheck = Callable[[bytes, Address], bool]
RelationCheck = Callable[[bytes, Address, Relation], bool]


def is_hash_address(raw: bytes, address: Address) -> bool:
    """Whether the address is the SHA-256 of the bytes."""
    return address_of(raw) == address


def is_won_address(raw: bytes, address: Address) -> bool:
    """Whether the bytes are a message whose URI and content have this address, or unreadable bytes with this hash."""
    from dovetail.won.message import decode_message, verify_address

    if is_hash_address(raw, address):
        return True
    try:
        message = decode_message(raw)
    except RemoteProtocolError:
        return False
    return message.address == address and verify_address(message)


def is_won_child(raw: bytes, parent: Address, relation: Relation) -> bool:
    """Whether the bytes are a message that names `parent` in this relation."""
    from dovetail.won.message import decode_message

    try:
        message = decode_message(raw)
    except RemoteProtocolError:
        return False
    match relation:
        case Relation.RESPONDING_TO:
            return message.responding_to == won_uri(parent)
        case Relation.PREVIOUS:
            return won_uri(parent) in message.previous
        case _:
            return False


ADDRESS_CHECKS: Mapping[Fabric, AddressCheck] = {
    Fabric.PCP: is_hash_address,
    Fabric.WON: is_won_address,
    Fabric.SWARM: is_hash_address,
}
RELATION_CHECKS: Mapping[Fabric, RelationCheck] = {Fabric.WON: is_won_child}
"""Fabrics whose messages name their parents by address, so that a relation can be proven from bytes."""
