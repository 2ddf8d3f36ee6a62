"""Builds the responses and messages of a node, signed, with the required references."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from dovetail.model.errors import RemoteProtocolError
from dovetail.model.hop import Reason
from dovetail.won import vocabulary as v
from dovetail.won.atom import Atom
from dovetail.won.compose import compose, respond, socket_pair
from dovetail.won.connection import ConnectionState
from dovetail.won.ledger import Ledger, Sent
from dovetail.won.message import Message
from dovetail.won.randomness import Randomness
from dovetail.won.rules import Refusal
from dovetail.won.settings import WonSettings
from dovetail.won.signing import PublicKey, SigningKey, extract_keys
from dovetail.won.vocabulary import Direction, MessageType

CONNECTION_ID_BYTES = 12


class ResponseBuilder:
    """Builds messages of one node; changes no state."""

    def __init__(self, uri: str, key: SigningKey, ledger: Ledger, settings: WonSettings, random: Randomness) -> None:
        self._uri = uri
        self._key = key
        self._ledger = ledger
        self._max_references = settings.max_references
        self._random = random

    def key_for(self, message: Message) -> PublicKey:
        """The key that must have signed an owner's message; a Create carries its own; raises RemoteProtocolError."""
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
        previous = atom.confirmations.unconfirmed if atom else ()
        return self._respond(now)(message, success=True, atom=message.atom, previous=previous)

    def build_first(self, message: Message, now: int) -> Message:
        """s1: the sender's connection; both sockets are the sender's."""
        if message.signer == self._uri:  # its time may be ahead of the clock, and the response comes after it
            now = max(now, message.timestamp_ms * 1000)
        socket = message.sender_socket or ""
        connection = self._ledger.find_connection(socket, message.recipient_socket or "")
        return self._respond(now)(
            message,
            success=True,
            connection=connection.uri if connection else self._name_connection(socket),
            sender_socket=socket,
            recipient_socket=socket,
            previous=connection.confirmations.references_of_first(self._max_references) if connection else (),
        )

    def build_second(self, message: Message, first: Message, now: int) -> Message:
        """s2: the recipient's connection; the sockets are those of m, swapped; references C with s1."""
        socket = message.recipient_socket or ""
        connection = self._ledger.find_connection(socket, message.sender_socket or "")
        uri = connection.uri if connection else self._name_connection(socket)
        previous: tuple[str, ...] = (first.uri,)
        if connection is not None:
            previous = connection.confirmations.references_of_second(first.uri, first.previous, self._max_references)
        return self._respond(now)(
            message,
            success=True,
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
        return self._respond(now)(
            message,
            success=False,
            atom=message.atom,
            connection=connection.uri if connection and refusal.is_first else None,
            sender_socket=sender,
            recipient_socket=recipient,
            text=f"{refusal.reason.value}: {refusal.detail}",
        )

    def build_undeliverable(self, sent: Sent, now: int) -> Message:
        """A FailureResponse to the owner alone: it names the atom and no socket."""
        since = self._timestamp(now) - sent.since_ms
        return self._respond(now)(
            sent,
            success=False,
            atom=sent.connection.atom,
            text=f"{Reason.UNREACHABLE_NODE.value}: {sent.destination} did not answer within {since // 1000} s",
        )

    def build_follow_ups(self, message: Message, atom: Atom) -> Iterator[Message]:
        """The node's own messages on the atom's connections after an atom-specific message, which it has answered.

        Deactivate and Delete close open connections. Replace closes those of removed sockets and notifies the others
        that are Connected.
        """
        if message.type in (MessageType.CREATE, MessageType.ACTIVATE):
            return
        for connection in list(atom.connections.values()):
            is_closing = message.type is not MessageType.REPLACE or connection.socket not in atom.sockets
            if connection.state is ConnectionState.CONNECTED or (
                is_closing and connection.state is not ConnectionState.CLOSED
            ):
                yield compose(
                    type=MessageType.CLOSE if is_closing else MessageType.CHANGE,
                    direction=Direction.SYSTEM,
                    signer=self._uri,
                    key=self._key,
                    # Later than any message before, so that closing again is another message.
                    timestamp_ms=self._ledger.last_signed_ms + 1,
                    envelope=socket_pair(connection.socket, connection.target_socket),
                )

    def _respond(self, now: int) -> partial[Message]:
        return partial(respond, signer=self._uri, key=self._key, timestamp_ms=self._timestamp(now))

    def _timestamp(self, now: int) -> int:
        """Milliseconds that never go backwards, so a node's responses are ordered even if its clock jumps."""
        return max(now // 1000, self._ledger.last_signed_ms)

    def _name_connection(self, socket: str) -> str:
        return f"{v.atom_of_socket(socket)}/c/{self._random.randbytes(CONNECTION_ID_BYTES).hex()}"
