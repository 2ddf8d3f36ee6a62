"""What a fabric tells the packages above it: the interface that the `fabric.py` of each core implements.

`dovetail.fabrics` lists the fabrics. Everything above it reads messages through this interface and names no fabric.
"""

from __future__ import annotations

import enum
from collections.abc import Hashable, Mapping
from types import MappingProxyType
from typing import Literal, NamedTuple, Protocol

import msgspec

from dovetail.model.address import Address, address_of
from dovetail.model.hop import Reason, Relation, Stage


class Role(enum.StrEnum):
    """What a response is to the message that it answers."""

    FIRST = "first"
    SECOND = "second"
    FAILURE = "failure"


class Thread(enum.StrEnum):
    """How messages that belong together name each other, and so how a receipt proves that none of them is missing."""

    EXCHANGE = "exchange"
    """A reply names the id of its request: only the journal of the server that had them shows that these are all."""
    CONVERSATION = "conversation"
    """A response names the messages before it by their addresses: the newest responses lead to all of them."""


class Link(msgspec.Struct, frozen=True, gc=False):
    """A reference to an earlier message: `parent` is that message's key, or another name where it has none.

    From `parent_expires_us` on the parent is certainly expired; None is unknown.
    """

    parent: bytes
    relation: Relation
    parent_expires_us: int | None = None


class Channel(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Between which two sockets a message goes, who made it, and what kind of message it answers."""

    direction: str
    connection: str | None = None
    sender_socket: str | None = None
    recipient_socket: str | None = None
    responding_to_type: str | None = None


class Signed(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Who signed a message, and what it takes to verify that.

    `entitled` is who may sign for the sender, None where nobody may. `signature` is None where it is unusable: not in
    its canonical form, or beside a stated hash that is not that of the signed content. `claims_valid`: the signer is
    entitled and the hash is right. `key_owner` and `public_key` are a key that the message publishes.
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

    `address` is that of the content; `address_valid` is False where the message calls itself otherwise. `key` is how
    links of other messages name it, `id` how people do. `role` is what it is to the message it answers.
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
        """The first message that it names with this relation."""
        return next((link.parent for link in self.links if link.relation is relation), None)


class Refused(msgspec.Struct, frozen=True, gc=False):
    """Why bytes are not a message of the fabric."""

    reason: Reason
    detail: str


class Agreement(msgspec.Struct, frozen=True, kw_only=True):
    """What the servers of a community agreed on, as far as it decides what bytes mean: lifetimes and work."""

    epoch_ms: int
    work_target: int


class Conflict(NamedTuple):
    """A way in which two messages contradict each other, for people: what it is, and what to do about it."""

    severity: Literal["error", "warning"]
    title: str
    sentence: str
    advice: str


class Identified(NamedTuple):
    """The address of bytes, None where they state another one; and the messages that they name by their whole address.

    These are in the form of `Fabric.show_address`.
    """

    address: Address | None
    names: frozenset[tuple[Relation, str]] = frozenset()


class Fabric(Protocol):
    """One way to deliver messages. Methods are pure, and never raise for what is in `raw`."""

    name: str
    """The value of `fabric` in journals, in the lake and in tables; letters a-z only."""
    hashes_bytes: bool
    """The address is the SHA-256 of the bytes as they are kept."""
    key_bytes: int | None
    """How many leading bytes of the address are the key; None where only the bytes of the message tell it."""
    is_signed: bool = False
    """Messages carry signatures of their authors: `MessageInfo.signed` and `verify`."""
    thread: Thread | None = None
    """What messages of this fabric form; None where they form neither."""
    conflicts: Mapping[str, Conflict] = MappingProxyType({})
    """The kinds of contradiction that `conflict_keys` tells."""
    default_agreement: Agreement | None = None
    """For communities whose agreement is not given; None where messages need none."""

    def read(self, raw: bytes, agreement: Agreement | None = None) -> MessageInfo | Refused:
        """What bytes mean. Without an agreement, what depends on it is None."""

    def explain(self, raw: bytes) -> dict[str, object]:
        """Every field in the words of the specification, for people; `error` and `detail` where it cannot be read."""

    def not_proven(self, stage: Stage) -> str | None:
        """What a receipt with such a hop leaves open."""

    def identify(self, raw: bytes) -> Identified:
        """The address of bytes, also of those that are no message, and what they name; cheaper than `read`."""
        return Identified(address_of(raw))

    def show_address(self, address: Address) -> str:
        """The form that people see."""
        return address.hex()

    def show_key(self, key: bytes) -> str:
        """A message as links name it, in the form that people see."""
        return key.hex()

    def key_of(self, address: Address) -> bytes | None:
        """The key of a message, where the address alone tells it."""
        return None if self.key_bytes is None else address[: self.key_bytes]

    def needle(self, key: bytes) -> bytes:
        """Lower-case bytes that the lower-cased bytes of every message with a link to `key` contain."""
        return key.lower()

    def show_uri(self, uri: str) -> str:
        """What is particular in the URI of a server or a party, for a small place."""
        return uri.partition("://")[2]

    def community(self, server: str) -> str:
        """Which servers are to hold the same messages, by name; empty where each server has its own."""
        del server
        return ""

    def conflict_keys(self, message: MessageInfo) -> Mapping[str, Hashable]:
        """By kind of contradiction a key: two messages of one signer with the same one contradict each other."""
        del message
        return {}

    def verify(self, signed: Signed, public_key: bytes) -> bool:
        """True if the signature was made with this key; `claims_valid` is not looked at."""
        del signed, public_key
        return False

    def parse_agreements(self, document: bytes) -> dict[str, Agreement]:
        """The agreement in a file, by every name that the community goes by; ValueError says what is wrong."""
        del document
        raise ValueError(f"messages of {self.name} need no agreement")
