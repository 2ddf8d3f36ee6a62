"""The interface between a fabric and the packages above it; the `fabric.py` of each core implements it.

`dovetail.fabrics` lists the fabrics. Everything above it reads messages through this interface and names no fabric.
"""

from __future__ import annotations

import enum
from collections.abc import Hashable, Iterable, Mapping, Set
from types import MappingProxyType
from typing import Literal, NamedTuple, Protocol

import msgspec

from dovetail.model.address import Address, address_of
from dovetail.model.hop import Hop, Reason, Relation, Stage


class Role(enum.StrEnum):
    """What a response is to the message that it answers."""

    FIRST = "first"
    SECOND = "second"
    FAILURE = "failure"


class Thread(enum.StrEnum):
    """How related messages name each other, and thus how a receipt proves that none is missing."""

    EXCHANGE = "exchange"
    """A reply names the id of its request; only the journal of their server shows that the list is complete."""
    CONVERSATION = "conversation"
    """A response names earlier messages by address; all of them are reachable from the newest responses."""


class Link(msgspec.Struct, frozen=True, gc=False):
    """A reference to an earlier message: `parent` is that message's key, or another name if it has none.

    The parent has certainly expired by `parent_expires_us`; None if unknown.
    """

    parent: bytes
    relation: Relation
    parent_expires_us: int | None = None


class Channel(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The two sockets a message goes between, who created it, and the kind of message it answers."""

    direction: str
    connection: str | None = None
    sender_socket: str | None = None
    recipient_socket: str | None = None
    responding_to_type: str | None = None


class Signed(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Who signed a message, and what is needed to verify the signature.

    `entitled` is who may sign for the sender; None if nobody may. `signature` is None if it is unusable: not in
    canonical form, or the stated hash is not that of the signed content. `claims_valid`: the signer is entitled and the
    hash is right. `key_owner` and `public_key` describe a key that the message publishes.
    """

    signer: str
    entitled: str | None
    signed_digest: bytes
    signature: bytes | None
    fingerprint: str
    claims_valid: bool
    key_owner: str | None = None
    public_key: bytes | None = None


class MessageInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What the bytes of one message say.

    `address` is that of the content; `address_valid` is False if the message states a different one. `key` is how links
    of other messages name it, `id` how people do. `role` is its role towards the message it answers.
    """

    address: Address
    key: bytes
    id: str
    type: str
    version: str
    address_valid: bool = True
    sender: str | None = None
    recipients: tuple[str, ...] = ()
    created_us: int | None = None
    expires_us: int | None = None
    work_valid: bool | None = None
    links: tuple[Link, ...] = ()
    role: Role | None = None
    channel: Channel | None = None
    signed: Signed | None = None

    def parent(self, relation: Relation) -> bytes | None:
        """Return the first message it names with this relation."""
        return next((link.parent for link in self.links if link.relation is relation), None)


class Refused(msgspec.Struct, frozen=True, gc=False):
    """Why bytes are not a message of the fabric."""

    reason: Reason
    detail: str


class Agreement(msgspec.Struct, frozen=True, kw_only=True):
    """What the servers of a community agreed on that affects the meaning of bytes: lifetimes and work."""

    epoch_ms: int
    work_target: int


class Conflict(NamedTuple):
    """A way in which two messages contradict each other, described for people: what it is, and what to do about it."""

    severity: Literal["error", "warning"]
    title: str
    sentence: str
    advice: str


class Identified(NamedTuple):
    """The address of bytes, None if they state a different one; and the messages they name by whole address.

    Those are in the form of `Fabric.show_address`.
    """

    address: Address | None
    names: frozenset[tuple[Relation, str]] = frozenset()


class ExpiryTemplate(Protocol):
    """Reads the expiry of messages that share one layout."""

    def expiry(self, message: bytes, /) -> int | None:
        """The expiry a message states, in microseconds since 1970; None if its layout differs."""


class Fabric(Protocol):
    """One way to deliver messages. Methods are pure, and no content of `raw` makes them raise."""

    name: str
    """The value of `fabric` in journals, in the lake and in tables; letters a-z only."""
    hashes_bytes: bool
    """The address is the SHA-256 of the stored bytes."""
    key_bytes: int | None
    """How many leading bytes of the address are the key; None if the key must be read from the message."""
    is_signed: bool = False
    """Messages are signed by their authors: see `MessageInfo.signed` and `verify`."""
    thread: Thread | None = None
    """What messages of this fabric form, if anything."""
    conflicts: Mapping[str, Conflict] = MappingProxyType({})
    """The kinds of contradiction that `conflict_keys` returns."""
    default_agreement: Agreement | None = None
    """Used for communities without a given agreement; None if messages need none."""

    def read(self, raw: bytes, agreement: Agreement | None = None) -> MessageInfo | Refused:
        """Decode a message. Without an agreement, the fields that depend on it are None."""

    def expiry_template(self, raw: bytes) -> ExpiryTemplate | None:
        """Return a reader of the expiry of messages with this layout, equal to `read`; None if there is none."""
        del raw
        return None

    def explain(self, raw: bytes) -> dict[str, object]:
        """Every field, readable and in the terms of the specification; `error` and `detail` if it cannot be read."""

    def not_proven(self, stage: Stage) -> str | None:
        """What a receipt with such a hop does not prove."""

    def identify(self, raw: bytes) -> Identified:
        """The address of bytes, even if they are no message, and the messages they name; cheaper than `read`."""
        return Identified(address_of(raw))

    def show_address(self, address: Address) -> str:
        """Format an address for display."""
        return address.hex()

    def show_key(self, key: bytes) -> str:
        """Format the key by which links name a message for display."""
        return key.hex()

    def key_of(self, address: Address) -> bytes | None:
        """The key of a message, if the address alone determines it."""
        return None if self.key_bytes is None else address[: self.key_bytes]

    def needle(self, key: bytes) -> bytes:
        """Lower-case bytes found in the lower-cased bytes of every message with a link to `key`."""
        return key.lower()

    def show_uri(self, uri: str) -> str:
        """The distinctive part of the URI of a server or party, where space is short."""
        return uri.partition("://")[2]

    def community(self, server: str) -> str:
        """The name shared by the servers that should hold the same messages; empty if each server stands alone."""
        del server
        return ""

    def conflict_keys(self, message: MessageInfo) -> Mapping[str, Hashable]:
        """Keys by kind of contradiction: two messages of one signer with an equal key contradict each other."""
        del message
        return {}

    def verify(self, signed: Signed, public_key: bytes) -> bool:
        """True if the signature was made with this key; does not check `claims_valid`."""
        del signed, public_key
        return False

    def unfinished(self, hops: Iterable[Hop]) -> Set[Address]:
        """Messages of a server's journal whose bytes it needs after a restart, to give each recipient an outcome."""
        del hops
        return frozenset()

    def parse_agreements(self, document: bytes) -> dict[str, Agreement]:
        """Parse an agreement file, keyed by every name of the community; ValueError says what is wrong."""
        del document
        raise ValueError(f"messages of {self.name} need no agreement")
