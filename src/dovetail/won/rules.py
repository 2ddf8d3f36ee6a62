"""Checks of genuine messages against what a node has stored. Each raises RemoteProtocolError."""

from __future__ import annotations

import msgspec

from dovetail.model.errors import RemoteProtocolError
from dovetail.model.hop import Reason
from dovetail.won import vocabulary as v
from dovetail.won.chain import is_answer
from dovetail.won.compose import sockets_of
from dovetail.won.connection import Connection, ConnectionState, next_state
from dovetail.won.ledger import Ledger
from dovetail.won.message import Message, uri_address
from dovetail.won.settings import WonSettings
from dovetail.won.signing import find_key
from dovetail.won.vocabulary import MessageType

_UNPROVEN = frozenset(
    {Reason.BAD_SIGNATURE, Reason.WRONG_SIGNER, Reason.WRONG_ADDRESS, Reason.WRONG_NODE, Reason.UNKNOWN_KEY}
)
_UNPROVEN_FROM_OWNER = _UNPROVEN | {Reason.UNKNOWN_ATOM, Reason.ATOM_EXISTS}


UNLOGGED_TYPES = frozenset({MessageType.CREATE, MessageType.REGISTER})
"""Their refusal goes only to the client that sent them: a Create proves only that its maker has some key."""


class Refusal(msgspec.Struct, frozen=True, gc=False):
    """Why a message gets a FailureResponse, and at which step: from its owner, or from the other node."""

    reason: Reason
    detail: str
    is_first: bool

    @property
    def is_genuine(self) -> bool:
        """True if the message provably came from its sender; only then does the refusal enter the sender's log."""
        return is_genuine(self.reason, is_first=self.is_first)


def is_genuine(reason: Reason, *, is_first: bool) -> bool:
    """False for reasons that mean the author of the message is unknown."""
    return reason not in (_UNPROVEN_FROM_OWNER if is_first else _UNPROVEN)


def check_registration_clock(message: Message, now: int, settings: WonSettings) -> None:
    """Check the time of a registration: it is not stored, so only its time prevents replay."""
    skew_ms = message.timestamp_ms - now // 1000
    if abs(skew_ms) > settings.max_clock_skew_ms:
        raise RemoteProtocolError(
            Reason.CLOCK_SKEW, f"timestamp is {skew_ms} ms off, expected at most {settings.max_clock_skew_ms}"
        )


def check_clock(message: Message, now: int, settings: WonSettings) -> None:
    """Refuse a message from the future. It may be old, after an outage or written offline.

    Its address prevents storing it twice.
    """
    ahead_ms = message.timestamp_ms - now // 1000
    if ahead_ms > settings.max_clock_skew_ms:
        raise RemoteProtocolError(
            Reason.CLOCK_SKEW, f"timestamp is {ahead_ms} ms ahead, expected at most {settings.max_clock_skew_ms}"
        )


def check_owner_message(message: Message, ledger: Ledger) -> None:
    """Check a genuine message of an owner of this node, not seen before."""
    atom = ledger.atoms.get(message.sender or "")
    if message.type is MessageType.CREATE:
        if atom is not None:
            raise RemoteProtocolError(Reason.ATOM_EXISTS, f"{message.atom} was created before")
        _check_sockets(message)
        return
    if atom is None:
        raise RemoteProtocolError(Reason.UNKNOWN_ATOM, f"{message.sender} does not exist here")
    if message.type in v.ATOM_TYPES:
        atom.next_state(message.type)
        if message.type is MessageType.REPLACE:
            _check_sockets(message)
        key = find_key(atom.uri, message.quads)
        if key is not None and key != atom.key:
            raise RemoteProtocolError(Reason.WRONG_SIGNER, f"the key of {atom.uri} cannot be replaced")
        return
    _check_channel(message, ledger, from_partner=False)


def check_delivery(message: Message, first: Message, ledger: Ledger) -> None:
    """Check a genuine message with its s1 from the sender's node, for an atom of this node, not seen before."""
    if not (
        first.type is MessageType.SUCCESS
        and first.responding_to == message.uri
        and is_answer(first, message)
        and v.atom_of_connection(first.connection or "") == message.sender
    ):
        raise RemoteProtocolError(
            Reason.BAD_REFERENCE, f"{first.uri} is not the sender's node's response to {message.uri}"
        )
    _check_channel(message, ledger, from_partner=True)
    connection = ledger.find_connection(message.recipient_socket or "", message.sender_socket or "")
    _check_previous(first, connection, ledger)


def check_acknowledgement(response: Message, ledger: Ledger) -> bool:
    """Check the other node's response to a message of ours; False if it came before."""
    uri = response.responding_to or ""
    sent = ledger.sent.get(uri) or ledger.undeliverable.get(uri)
    if sent is None:
        address = uri_address(uri)
        before = ledger.acknowledged.get(address) if address else None
        if before is None:
            raise RemoteProtocolError(Reason.ORPHAN_RESPONSE, f"{response.uri} responds to {uri}, which was not sent")
        if before != response.address:
            raise RemoteProtocolError(Reason.CONFLICTING_RESPONSE, f"{uri} had a different response before")
        return False
    connection = sent.connection
    if (response.sender_socket, response.recipient_socket) != (connection.target_socket, connection.socket):
        raise RemoteProtocolError(Reason.WRONG_SIGNER, f"{response.uri} does not come from the recipient of {uri}")
    if response.type is MessageType.SUCCESS:
        if sent.first not in response.previous:
            raise RemoteProtocolError(Reason.BAD_REFERENCE, f"{response.uri} does not reference {sent.first}")
        _check_previous(response, connection, ledger)
    return True


def _check_previous(response: Message, connection: Connection | None, ledger: Ledger) -> None:
    """Check that previousMessage points to an earlier SuccessResponse of the same container."""
    known = connection.confirmations.known if connection else ()
    for uri in response.previous:
        if uri not in known and uri not in ledger.unreadable:
            raise RemoteProtocolError(
                Reason.BAD_REFERENCE, f"{response.uri} references {uri}, no response of this connection"
            )


def _check_channel(message: Message, ledger: Ledger, *, from_partner: bool) -> None:
    """Check that the atom, socket and connection state on our side allow the message."""
    sockets = (message.sender_socket or "", message.recipient_socket or "")
    socket, target = reversed(sockets) if from_partner else sockets
    if message.sender == message.recipient:
        raise RemoteProtocolError(Reason.SELF_CONNECTION, f"{message.sender} cannot be connected to itself")
    atom = ledger.atoms.get(v.atom_of_socket(socket))
    if atom is None:
        raise RemoteProtocolError(Reason.UNKNOWN_ATOM, f"{v.atom_of_socket(socket)} does not exist here")
    atom.check_socket(socket)
    connection = atom.connections.get((socket, target))
    state = connection.state if connection else None
    if message.type is MessageType.CONNECT and state in (None, ConnectionState.CLOSED):
        atom.check_open()
    next_state(state, message.type, from_partner=from_partner)


def _check_sockets(message: Message) -> None:
    for socket in sockets_of(message):
        v.check_socket_uri(socket)
        if v.atom_of_socket(socket) != message.atom:
            raise RemoteProtocolError(Reason.UNKNOWN_SOCKET, f"{socket} is not a socket of {message.atom}")
