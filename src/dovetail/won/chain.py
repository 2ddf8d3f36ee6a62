"""Delivery chains: which responses a new SuccessResponse references, and how far a message got.

Atom container: a list of unconfirmed responses. A new response references all of it, takes its place in it.
Connection container: each side keeps a list C of the other side's responses. When a response s of the other side is
appended, then for each p in s.previousMessage that is one of ours, p's own previousMessage set leaves C: the other
side has seen that we saw them. Then s enters C. A new response of ours references all of C and never enters it.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable

import msgspec

from dovetail.model.fabric import Channel
from dovetail.won.message import Message
from dovetail.won.vocabulary import ATOM_TYPES, MessageType


class AtomConfirmations:
    """The unconfirmed responses of an atom's message container."""

    __slots__ = ("_unconfirmed",)

    def __init__(self) -> None:
        self._unconfirmed: dict[str, None] = {}

    @property
    def unconfirmed(self) -> tuple[str, ...]:
        """What the next SuccessResponse must reference."""
        return tuple(self._unconfirmed)

    def append(self, response: str, previous: Iterable[str]) -> None:
        """A SuccessResponse entered the container."""
        for uri in previous:
            self._unconfirmed.pop(uri, None)
        self._unconfirmed[response] = None


class ConnectionConfirmations:
    """One side's list C of the other side's responses; each step costs only what is still unconfirmed."""

    __slots__ = ("_others", "_own_previous", "own")

    def __init__(self) -> None:
        self._others: dict[str, None] = {}
        self._own_previous: dict[str, tuple[str, ...]] = {}
        self.own: set[str] = set()

    @property
    def unconfirmed(self) -> tuple[str, ...]:
        """C: what the next SuccessResponse of this side must reference."""
        return tuple(self._others)

    def preview_other(self, response: str, previous: Iterable[str]) -> tuple[str, ...]:
        """C as it will be after `append_other` with the same arguments."""
        gone = {confirmed for uri in previous for confirmed in self._own_previous.get(uri, ())}
        return (*(uri for uri in self._others if uri not in gone), response)

    def append_own(self, response: str, previous: Iterable[str]) -> None:
        """This side made a SuccessResponse; it never enters its own C."""
        self.own.add(response)
        self._own_previous[response] = tuple(previous)

    def append_other(self, response: str, previous: Iterable[str]) -> None:
        """A SuccessResponse of the other side entered this container."""
        for uri in previous:
            # Once confirmed, p's set can never matter again: each response enters C only once.
            for confirmed in self._own_previous.pop(uri, ()):
                self._others.pop(confirmed, None)
        self._others[response] = None


class ChainState(enum.StrEnum):
    """How far a message got."""

    COMPLETE = "complete"
    AWAITING_RECIPIENT = "awaiting_recipient"
    AWAITING_SENDER = "awaiting_sender"
    FAILED = "failed"
    ATOM = "atom"


class Role(enum.StrEnum):
    """What a response is to its message."""

    FIRST = "s1"
    SECOND = "s2"
    FAILURE = "failure"
    ATOM = "s"


class Chain(msgspec.Struct, kw_only=True):
    """A message with the responses that acknowledge it."""

    type: MessageType | None
    first: str | None = None
    second: str | None = None
    failure: str | None = None

    @property
    def state(self) -> ChainState:
        """How far it got: an incomplete chain is a normal state."""
        if self.failure is not None:
            return ChainState.FAILED
        if self.type in ATOM_TYPES:
            return ChainState.ATOM
        if self.first is None:
            return ChainState.AWAITING_SENDER
        return ChainState.COMPLETE if self.second is not None else ChainState.AWAITING_RECIPIENT


def role_of(response: Message) -> Role:
    """The role of a valid response: s1 speaks to m's own sender, s2 comes from the other socket."""
    if response.type is MessageType.FAILURE:
        return Role.FAILURE
    if response.sender_socket is None:
        return Role.ATOM
    return Role.FIRST if is_first(response) else Role.SECOND


def is_first(response: Message | Channel) -> bool:
    """True if a connection-specific response was made by the node of m's sender."""
    return response.sender_socket is not None and response.sender_socket == response.recipient_socket
