"""An atom: its state table, sockets, key, connections, and the log sent to its owners."""

from __future__ import annotations

import enum

from dovetail.model.address import Address
from dovetail.model.errors import RemoteProtocolError
from dovetail.model.hop import Reason
from dovetail.won.confirmation import AtomConfirmations
from dovetail.won.connection import Connection
from dovetail.won.signing import PublicKey
from dovetail.won.vocabulary import MessageType

LogEntry = tuple[Address, ...]
"""The messages sent to the owners in one dataset."""


class AtomState(enum.StrEnum):
    """The states of an atom."""

    ACTIVE = "Active"
    INACTIVE = "Inactive"
    DELETED = "Deleted"


_ANY = (AtomState.ACTIVE, AtomState.INACTIVE)
# A missing pair is a refusal.
TRANSITIONS: dict[tuple[AtomState, MessageType], AtomState] = {
    **{(state, MessageType.REPLACE): state for state in _ANY},
    **{(state, MessageType.ACTIVATE): AtomState.ACTIVE for state in _ANY},
    **{(state, MessageType.DEACTIVATE): AtomState.INACTIVE for state in _ANY},
    **{(state, MessageType.DELETE): AtomState.DELETED for state in _ANY},
}


class Delivered:
    """Which entries of a log were handed to a client: all below a watermark, and a few above it."""

    __slots__ = ("_beyond", "mark")

    def __init__(self) -> None:
        self.mark = 0
        self._beyond: set[int] = set()

    def add(self, position: int) -> bool:
        """Mark an entry as handed over; False if it already was."""
        if position < self.mark or position in self._beyond:
            return False
        self._beyond.add(position)
        while self.mark in self._beyond:
            self._beyond.remove(self.mark)
            self.mark += 1
        return True


class Atom:
    """One atom of this node.

    `document` is the message that currently describes it: its Create, the last Replace, or its Delete. `links` maps the
    registered clients to the entries each has; `followers` are those that only sent something.
    """

    __slots__ = (
        *("confirmations", "connections", "delivered", "document", "followers", "key"),
        *("links", "log", "messages", "sockets", "state", "uri"),
    )

    def __init__(self, uri: str, key: PublicKey, sockets: frozenset[str], document: Address) -> None:
        self.uri = uri
        self.key = key
        self.sockets = sockets
        self.document = document
        self.state = AtomState.ACTIVE
        self.confirmations = AtomConfirmations()
        self.connections: dict[tuple[str, str], Connection] = {}
        self.messages: list[Address] = []
        self.log: list[LogEntry] = []
        self.delivered = Delivered()
        self.links: dict[str, int] = {}
        self.followers: set[str] = set()

    @property
    def is_deleted(self) -> bool:
        """True after its owner deleted it; its log stays."""
        return self.state is AtomState.DELETED

    def has_client(self, link: str) -> bool:
        """True if new log entries go to this link."""
        return link in self.links or link in self.followers

    def next_state(self, kind: MessageType) -> AtomState:
        """The state after an atom-specific message; raises RemoteProtocolError."""
        after = TRANSITIONS.get((self.state, kind))
        if after is None:
            raise RemoteProtocolError(Reason.ATOM_DELETED, f"{self.uri} was deleted")
        return after

    def check_open(self) -> None:
        """New connections need an Active atom; raises RemoteProtocolError."""
        if self.is_deleted:
            raise RemoteProtocolError(Reason.ATOM_DELETED, f"{self.uri} was deleted")
        if self.state is not AtomState.ACTIVE:
            raise RemoteProtocolError(Reason.ATOM_INACTIVE, f"{self.uri} is not active")

    def check_socket(self, socket: str) -> None:
        """The atom must have declared the socket; raises RemoteProtocolError."""
        if socket not in self.sockets:
            raise RemoteProtocolError(Reason.UNKNOWN_SOCKET, f"{self.uri} has no socket {socket}")
