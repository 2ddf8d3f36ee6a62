"""What the bytes of a message say of themselves: its address, and the messages it names; one reader for each fabric.

pcp and swarm: the address is the SHA-256 of the bytes, and messages do not name each other by address. won: the
address is that of the message's canonical dataset, so the bytes are read as RDF; bytes that cannot be read as a message
have the SHA-256 of the bytes as their address.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from dovetail.model.address import Address, address_of, won_uri
from dovetail.model.errors import RemoteProtocolError
from dovetail.model.hop import Fabric, Relation


@dataclass(frozen=True, slots=True)
class Reading:
    """The address that bytes have, None where they contradict themselves, and the parents that they name by URI.

    `text` is the address as people see it.
    """

    address: Address | None
    text: str
    names: frozenset[tuple[Relation, str]] = frozenset()


def read_hashed(raw: bytes) -> Reading:
    """A message whose address is the hash of its bytes."""
    address = address_of(raw)
    return Reading(address, address.hex())


def read_won(raw: bytes) -> Reading:
    """A won message, or bytes that are none."""
    from dovetail.won.message import decode_message
    from dovetail.won.readers.head import read_head

    head = read_head(raw)
    if head is not None:
        return _name(head.uri, head.address, head.previous, head.responding_to)
    try:
        message = decode_message(raw)
    except RemoteProtocolError:
        address = address_of(raw)
        return Reading(address, won_uri(address))
    return _name(message.uri, message.address, message.previous, message.responding_to)


def _name(uri: str, address: Address, previous: Iterable[str], responding_to: str | None) -> Reading:
    names = [(Relation.PREVIOUS, each) for each in previous]
    if responding_to is not None:
        names.append((Relation.RESPONDING_TO, responding_to))
    return Reading(address if uri == won_uri(address) else None, uri, frozenset(names))


READERS: Mapping[Fabric, Callable[[bytes], Reading]] = {
    Fabric.PCP: read_hashed,
    Fabric.WON: read_won,
    Fabric.SWARM: read_hashed,
}
