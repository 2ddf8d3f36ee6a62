"""A connection: one side of the channel between two sockets, its state table and its containers."""

from __future__ import annotations

import enum

from dovetail.model.address import Address
from dovetail.model.errors import RemoteProtocolError
from dovetail.model.hop import Reason
from dovetail.won.confirmation import ConnectionConfirmations
from dovetail.won.vocabulary import MessageType, atom_of_socket


class ConnectionState(enum.StrEnum):
    """The states of one side of a connection."""

    REQUEST_SENT = "RequestSent"
    REQUEST_RECEIVED = "RequestReceived"
    CONNECTED = "Connected"
    CLOSED = "Closed"


class Input(enum.Enum):
    """Inputs of the connection state machine."""

    OWNER_CONNECT = enum.auto()
    PARTNER_CONNECT = enum.auto()
    CLOSE = enum.auto()
    TALK = enum.auto()


_S = ConnectionState
# A missing pair is a refusal.
TRANSITIONS: dict[tuple[ConnectionState | None, Input], ConnectionState] = {
    (None, Input.OWNER_CONNECT): _S.REQUEST_SENT,
    (None, Input.PARTNER_CONNECT): _S.REQUEST_RECEIVED,
    (_S.REQUEST_SENT, Input.OWNER_CONNECT): _S.REQUEST_SENT,
    (_S.REQUEST_SENT, Input.PARTNER_CONNECT): _S.CONNECTED,
    (_S.REQUEST_SENT, Input.CLOSE): _S.CLOSED,
    (_S.REQUEST_RECEIVED, Input.OWNER_CONNECT): _S.CONNECTED,
    (_S.REQUEST_RECEIVED, Input.PARTNER_CONNECT): _S.REQUEST_RECEIVED,
    (_S.REQUEST_RECEIVED, Input.CLOSE): _S.CLOSED,
    (_S.CONNECTED, Input.OWNER_CONNECT): _S.CONNECTED,
    (_S.CONNECTED, Input.PARTNER_CONNECT): _S.CONNECTED,
    (_S.CONNECTED, Input.CLOSE): _S.CLOSED,
    (_S.CONNECTED, Input.TALK): _S.CONNECTED,
    (_S.CLOSED, Input.OWNER_CONNECT): _S.REQUEST_SENT,
    (_S.CLOSED, Input.PARTNER_CONNECT): _S.REQUEST_RECEIVED,
    (_S.CLOSED, Input.CLOSE): _S.CLOSED,
}


def input_of(kind: MessageType, *, from_partner: bool) -> Input:
    """The input of a connection-specific message for one side."""
    if kind is MessageType.CONNECT:
        return Input.PARTNER_CONNECT if from_partner else Input.OWNER_CONNECT
    return Input.CLOSE if kind is MessageType.CLOSE else Input.TALK


def next_state(state: ConnectionState | None, kind: MessageType, *, from_partner: bool) -> ConnectionState:
    """The state after a message; raises RemoteProtocolError if the table has no entry."""
    after = TRANSITIONS.get((state, input_of(kind, from_partner=from_partner)))
    if after is None:
        raise RemoteProtocolError(Reason.WRONG_STATE, f"{kind} is not allowed in state {state or 'none'}")
    return after


class Connection:
    """One side of a connection. There is one per (socket, target socket)."""

    __slots__ = ("confirmations", "messages", "socket", "state", "target_socket", "uri")

    def __init__(self, uri: str, socket: str, target_socket: str) -> None:
        self.uri = uri
        self.socket = socket
        self.target_socket = target_socket
        self.state: ConnectionState | None = None
        self.confirmations = ConnectionConfirmations()
        self.messages: list[Address] = []

    @property
    def atom(self) -> str:
        """The atom on this side."""
        return atom_of_socket(self.socket)
