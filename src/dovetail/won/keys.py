"""Other parties' public keys: cached, bounded, fetched when needed; each message is verified once."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from dovetail.model.address import Address
from dovetail.model.errors import RemoteProtocolError
from dovetail.model.hop import Reason
from dovetail.won import vocabulary as v
from dovetail.won.canonical import Quad, read_quads
from dovetail.won.message import Message, decode_quads, verify_address
from dovetail.won.signing import PublicKey, expected_signer, find_declared_key, find_key, verify_signature
from dovetail.won.vocabulary import MessageType


class KeyRing:
    """Keys by URI: pinned ones for ever, fetched ones until they expire, at most `capacity` of the latter."""

    def __init__(self, *, capacity: int, lifetime_us: int) -> None:
        self._pinned: dict[str, PublicKey] = {}
        self._fetched: OrderedDict[str, tuple[PublicKey, int]] = OrderedDict()
        self._capacity = capacity
        self._lifetime_us = lifetime_us

    @property
    def pinned(self) -> int:
        """Number of pinned keys."""
        return len(self._pinned)

    @property
    def fetched(self) -> int:
        """Number of fetched keys."""
        return len(self._fetched)

    def pin(self, uri: str, key: PublicKey) -> None:
        """Keep a key that this party itself vouches for."""
        self._pinned[uri] = key

    def add(self, uri: str, key: PublicKey, now: int) -> None:
        """Keep a fetched key, evicting the oldest."""
        self._fetched.pop(uri, None)
        self._fetched[uri] = (key, now)
        if len(self._fetched) > self._capacity:
            self._fetched.popitem(last=False)

    def is_pinned(self, uri: str) -> bool:
        """True if this party itself vouches for the key."""
        return uri in self._pinned

    def find(self, uri: str, now: int) -> PublicKey | None:
        """The key of `uri`; None if it must be fetched."""
        pinned = self._pinned.get(uri)
        if pinned is not None:
            return pinned
        fetched = self._fetched.get(uri)
        if fetched is None or now - fetched[1] > self._lifetime_us:
            return None
        return fetched[0]


class Verifier:
    """Decides whether a message is genuine; an address that passed with a key is not checked again."""

    def __init__(self, capacity: int) -> None:
        self._passed: OrderedDict[Address, str] = OrderedDict()
        self._capacity = capacity

    def trust(self, message: Message) -> None:
        """Remember a message signed by this party."""
        self._passed[message.address] = message.fingerprint
        if len(self._passed) > self._capacity:
            self._passed.popitem(last=False)

    def verify(self, message: Message, key: PublicKey) -> None:
        """Raise RemoteProtocolError unless the message was made by its expected signer with `key`."""
        check_claims(message)
        if self._passed.get(message.address) == key.fingerprint:
            return
        if not verify_signature(message, key):
            raise RemoteProtocolError(
                Reason.BAD_SIGNATURE, f"{message.uri} is not signed with the key of {message.signer}"
            )
        self.trust(message)


def check_address(message: Message) -> None:
    """Raise RemoteProtocolError unless the URI is the content's address."""
    if not verify_address(message):
        raise RemoteProtocolError(Reason.WRONG_ADDRESS, f"{message.uri} is not the address of its content")


def check_claims(message: Message) -> None:
    """Raise RemoteProtocolError unless the URI is the content's address and the signer may sign for the sender."""
    check_address(message)
    expected = expected_signer(message)
    if message.signer != expected:
        raise RemoteProtocolError(
            Reason.WRONG_SIGNER, f"{message.uri} is signed by {message.signer}, expected {expected}"
        )


_DECLARING_TYPES = (MessageType.CREATE, MessageType.REPLACE, MessageType.DELETE)


def read_key_document(uri: str, data: bytes) -> PublicKey | None:
    """The key in the document of a node or atom; an atom's only from a self-certifying message."""
    try:
        quads = read_quads(data)
    except RemoteProtocolError:
        return None
    if "/atom/" not in uri:
        return find_key(uri, quads)
    for message in _messages_in(quads):
        if message.type in _DECLARING_TYPES and message.atom == uri and verify_address(message):
            key = find_declared_key(message, uri)
            if key is not None and message.signer == uri and verify_signature(message, key):
                return key
    return None


def _messages_in(quads: Iterable[Quad]) -> Iterable[Message]:
    groups: dict[str, list[Quad]] = {}
    for quad in quads:
        if quad[3].startswith("<" + v.MESSAGE_SCHEME):
            groups.setdefault(v.message_of_graph(quad[3][1:-1]), []).append(quad)
    for uri, group in groups.items():
        try:
            yield decode_quads(uri, group)
        except RemoteProtocolError:
            continue
