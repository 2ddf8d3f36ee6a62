"""Delivery chains: the role of a response, how far a message got, and which responses contradict each other.

These rules are decided only here. A connection-specific message m goes from its sender's socket S to the socket R. The
response of the sender's node (s1) has S as both of its sockets; that of the recipient's node (s2) goes from R to S. The
response to an atom-specific message has no sockets, and neither has the notice that m is undeliverable.
"""

from __future__ import annotations

import enum
from collections.abc import Hashable
from typing import Protocol

import msgspec

from dovetail.won.vocabulary import ATOM_TYPES, CONNECTION_TYPES, MessageType, atom_of_socket


class ChainState(enum.StrEnum):
    """How far a message got."""

    COMPLETE = "complete"
    AWAITING_RECIPIENT = "awaiting_recipient"
    AWAITING_SENDER = "awaiting_sender"
    FAILED = "failed"
    ATOM = "atom"


class Role(enum.StrEnum):
    """The role of a response to its message."""

    FIRST = "s1"
    SECOND = "s2"
    FAILURE = "failure"
    ATOM = "s"


class Sockets(Protocol):
    """The sockets a message goes between."""

    @property
    def sender_socket(self) -> str | None: ...
    @property
    def recipient_socket(self) -> str | None: ...


class Response(Sockets, Protocol):
    """The fields that determine the role of a response."""

    @property
    def type(self) -> str: ...


class Envelope(Response, Protocol):
    """The fields that determine whether a message answers another."""

    @property
    def atom(self) -> str | None: ...
    @property
    def responding_to_type(self) -> str | None: ...


def is_by_senders_node(response: Sockets) -> bool:
    """True if a response was made by the node of m's sender (s, s1 or a failure there), not by the recipient's."""
    return response.sender_socket == response.recipient_socket


def role_of(response: Response) -> Role:
    """The role of a valid response."""
    if response.type == MessageType.FAILURE:
        return Role.FAILURE
    if response.sender_socket is None:
        return Role.ATOM
    return Role.FIRST if is_by_senders_node(response) else Role.SECOND


def is_undeliverable_notice(response: Envelope) -> bool:
    """True if the sender's node, after making s1, tells its owner that the recipient's node did not answer in time.

    It has no sockets, so it is not taken for a second s1.
    """
    return (
        response.type == MessageType.FAILURE
        and response.sender_socket is None
        and response.responding_to_type in CONNECTION_TYPES
    )


def is_answer(response: Envelope, message: Envelope) -> bool:
    """True if the type and sockets of a response are those of an answer to this message."""
    if response.responding_to_type != message.type:
        return False
    sender, recipient = message.sender_socket, message.recipient_socket
    if sender is None or is_undeliverable_notice(response):
        atom = message.atom if sender is None else atom_of_socket(sender)
        return response.sender_socket is response.recipient_socket is None and response.atom == atom
    return response.recipient_socket == sender and response.sender_socket in (sender, recipient)


def answer_key(responding_to: Hashable, response: Sockets) -> Hashable:
    """Key of a response: two different responses of one signer with the same key contradict each other."""
    return responding_to, response.sender_socket, response.recipient_socket


class Chain(msgspec.Struct, kw_only=True):
    """A message with the responses that acknowledge it."""

    type: str | None
    first: str | None = None
    second: str | None = None
    failure: str | None = None
    is_undeliverable: bool = False

    def add(self, role: Role, uri: str) -> str | None:
        """Add a response; returns the previous one with this role."""
        match role:
            case Role.FIRST | Role.ATOM:
                before, self.first = self.first, uri
            case Role.SECOND:
                before, self.second = self.second, uri
            case Role.FAILURE:
                before, self.failure = self.failure, uri
        return before

    def contradicts(self, response: Envelope) -> bool:
        """True if another response is inconsistent with the existing ones.

        A node answers once. A failure of the recipient's node may follow s1, and so may the undeliverable notice;
        the recipient's node may still answer after that, and an s1 that waited for a key may be taken after it.
        """
        role = role_of(response)
        has_failed = self.failure is not None and not self.is_undeliverable
        if role is Role.SECOND:
            return self.second is not None or has_failed
        if role is not Role.FAILURE:
            return self.first is not None or has_failed
        if is_undeliverable_notice(response):
            return self.second is not None or self.failure is not None
        if not is_by_senders_node(response):
            return self.second is not None or has_failed
        return self.first is not None or self.failure is not None

    @property
    def state(self) -> ChainState:
        """How far the message got; an incomplete chain is a normal state."""
        if self.first is not None and self.second is not None:
            return ChainState.COMPLETE
        if self.failure is not None:
            return ChainState.FAILED
        if self.type in ATOM_TYPES:
            return ChainState.ATOM
        return ChainState.AWAITING_SENDER if self.first is None else ChainState.AWAITING_RECIPIENT

    @property
    def is_stored(self) -> bool:
        """True if every node that has to store the message did."""
        return self.state is ChainState.COMPLETE or (self.state is ChainState.ATOM and self.first is not None)

    @property
    def is_answered(self) -> bool:
        """True if the sender's node has answered, or the message failed."""
        return self.first is not None or self.failure is not None
