"""The hand of a node: makes its responses and its own messages, signed, with the references they must carry."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from dovetail.model.errors import RemoteProtocolError
from dovetail.model.hop import Reason
from dovetail.won import vocabulary as v
from dovetail.won.atom import Atom
from dovetail.won.compose import compose, respond, socket_pair
from dovetail.won.connection import ConnectionState
from dovetail.won.ledger import Ledger
from dovetail.won.message import Message
from dovetail.won.signing import PublicKey, SigningKey, extract_keys
from dovetail.won.vocabulary import Direction, MessageType

if TYPE_CHECKING:
    from dovetail.won.node import Randomness
    from dovetail.won.rules import Refusal

CONNECTION_ID_BYTES = 12


class ResponseBuilder:
    """Writes in the name of one node; changes nothing itself."""

    def __init__(self, uri: str, key: SigningKey, ledger: Ledger, random: Randomness) -> None:
        self._uri = uri
        self._key = key
        self._ledger = ledger
        self._random = random

    def key_for(self, message: Message) -> PublicKey:
        """The key that must have signed an owner's message: a Create brings its own; raises RemoteProtocolError."""
        atom = self._ledger.atoms.get(message.sender or "")
        if message.type is MessageType.CREATE:
            key = extract_keys(message).get(message.atom or "")
            if key is None:
                raise RemoteProtocolError(Reason.UNKNOWN_KEY, f"{message.uri} publishes no key for {message.atom}")
            return key
        if atom is None:
            raise RemoteProtocolError(Reason.UNKNOWN_ATOM, f"{message.sender} does not exist here")
        return atom.key

    def build_for_atom(self, message: Message, now: int) -> Message:
        """s: references all unconfirmed responses of the atom's container."""
        atom = self._ledger.atoms.get(message.atom or "")
        return respond(
            message,
            success=True,
            signer=self._uri,
            key=self._key,
            timestamp_ms=self._timestamp(now),
            atom=message.atom,
            previous=atom.confirmations.unconfirmed if atom else (),
        )

    def build_first(self, message: Message, now: int) -> Message:
        """s1: the sender's connection; both sockets are the sender's."""
        socket = message.sender_socket or ""
        connection = self._ledger.find_connection(socket, message.recipient_socket or "")
        return respond(
            message,
            success=True,
            signer=self._uri,
            key=self._key,
            timestamp_ms=self._timestamp(now),
            connection=connection.uri if connection else self._name_connection(socket),
            sender_socket=socket,
            recipient_socket=socket,
            previous=connection.confirmations.unconfirmed if connection else (),
        )

    def build_second(self, message: Message, first: Message, now: int) -> Message:
        """s2: the recipient's connection; the sockets are those of m, exchanged; references what C is with s1."""
        socket = message.recipient_socket or ""
        connection = self._ledger.find_connection(socket, message.sender_socket or "")
        uri = connection.uri if connection else self._name_connection(socket)
        previous: tuple[str, ...] = (first.uri,)
        if connection is not None:
            previous = connection.confirmations.preview_other(first.uri, first.previous)
        return respond(
            message,
            success=True,
            signer=self._uri,
            key=self._key,
            timestamp_ms=self._timestamp(now),
            connection=uri,
            sender_socket=socket,
            recipient_socket=message.sender_socket,
            previous=previous,
        )

    def build_failure(self, message: Message, refusal: Refusal, now: int) -> Message:
        """A FailureResponse with the reason as con:text, addressed like the success it replaces."""
        sender, recipient = message.sender_socket, message.recipient_socket
        if refusal.is_first:
            recipient = sender
        else:
            sender, recipient = recipient, sender
        connection = self._ledger.find_connection(sender or "", message.recipient_socket or "")
        return respond(
            message,
            success=False,
            signer=self._uri,
            key=self._key,
            timestamp_ms=self._timestamp(now),
            atom=message.atom,
            connection=connection.uri if connection and refusal.is_first else None,
            sender_socket=sender,
            recipient_socket=recipient,
            text=f"{refusal.reason.value}: {refusal.detail}",
        )

    def build_follow_ups(self, message: Message, atom: Atom, now: int) -> Iterator[Message]:
        """What the node itself says on the atom's connections after an atom-specific message.

        Deactivate and Delete close connections that are not closed; Replace notifies Connected ones.
        """
        is_closing = message.type in (MessageType.DEACTIVATE, MessageType.DELETE)
        if not is_closing and message.type is not MessageType.REPLACE:
            return
        for connection in list(atom.connections.values()):
            is_wanted = (
                connection.state is not ConnectionState.CLOSED
                if is_closing
                else connection.state is ConnectionState.CONNECTED
            )
            if is_wanted:
                yield compose(
                    type=MessageType.CLOSE if is_closing else MessageType.CHANGE,
                    direction=Direction.SYSTEM,
                    signer=self._uri,
                    key=self._key,
                    # Later than anything said before, so that closing once more is another message.
                    timestamp_ms=max(now // 1000, self._ledger.last_response_ms + 1),
                    envelope=socket_pair(connection.socket, connection.target_socket),
                )

    def _timestamp(self, now: int) -> int:
        """Milliseconds that never run backwards, so that a node's responses have an order even if its clock jumps."""
        return max(now // 1000, self._ledger.last_response_ms)

    def _name_connection(self, socket: str) -> str:
        return f"{v.atom_of_socket(socket)}/c/{self._random.randbytes(CONNECTION_ID_BYTES).hex()}"
