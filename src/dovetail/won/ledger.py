"""What a node has stored: atoms, connections, containers, and which response answers which message.

Every change is one `store_*` call with genuine messages. The running node and recovery from the journal use the same
calls, so a node rebuilt from its journal equals the node that wrote it. Nothing here is scanned: a step takes the same
time in a conversation of a hundred thousand messages as in one of a hundred.
"""

from __future__ import annotations

from collections import Counter, OrderedDict

import msgspec

from dovetail.model.address import Address
from dovetail.won import vocabulary as v
from dovetail.won.archive import Archive
from dovetail.won.atom import Atom
from dovetail.won.chain import ChainState
from dovetail.won.compose import sockets_of
from dovetail.won.connection import Connection, next_state
from dovetail.won.message import Message, decode_stored
from dovetail.won.signing import extract_keys
from dovetail.won.vocabulary import MessageType

MAX_UNDELIVERABLE = 10_000


class Sent(msgspec.Struct, frozen=True, gc=False):
    """A connection-specific message of an atom of this node that still awaits its second response."""

    uri: str
    type: MessageType
    connection: Connection
    message: Address
    first: str
    first_address: Address
    since_ms: int

    @property
    def destination(self) -> str:
        """The recipient's node."""
        return v.node_of_atom(v.atom_of_socket(self.connection.target_socket))


class Ledger:
    """All durable state of a node, in memory; `archive` holds the bytes."""

    def __init__(self, archive: Archive) -> None:
        self.archive = archive
        self.atoms: dict[str, Atom] = {}
        self.connections: dict[str, Connection] = {}
        self.sent: dict[str, Sent] = {}
        # given up; a response may still come if the message was in flight
        self.undeliverable: OrderedDict[str, Sent] = OrderedDict()
        self.last_signed_ms = 0
        self.refused: set[Address] = set()
        # messages whose bytes were lost: others may keep referencing them
        self.unreadable: set[str] = set()
        # message -> response: of its own node (s, s1, failure), of ours as the recipient's node, of the other node
        self.first: dict[Address, Address] = {}
        self.second: dict[Address, Address] = {}
        self.acknowledged: dict[Address, Address] = {}
        # how far the messages of our atoms got; those still awaiting the recipient's node are in `sent`
        self.chains: Counter[ChainState] = Counter()

    def store_atom_specific(self, message: Message, response: Message) -> Atom:
        """Store an atom-specific message that was answered with a SuccessResponse."""
        assert message.atom is not None
        if message.type is MessageType.CREATE:
            atom = Atom(message.atom, extract_keys(message)[message.atom], sockets_of(message), message.address)
            self.atoms[atom.uri] = atom
        else:
            atom = self.atoms[message.atom]
            atom.state = atom.next_state(message.type)
            if message.type in (MessageType.REPLACE, MessageType.DELETE):
                atom.document = message.address
            if message.type is MessageType.REPLACE:
                atom.sockets = sockets_of(message) or atom.sockets
        atom.confirmations.append(response.uri, response.previous)
        atom.messages += (message.address, response.address)
        self.first[message.address] = response.address
        self._keep(response, message)
        atom.log.append((message.address, response.address))
        self.chains[ChainState.ATOM] += 1
        return atom

    def store_first(self, message: Message, response: Message) -> Connection:
        """Store a message of one of our atoms with its s1; the other node's response is now awaited."""
        connection = self._connection_of(response, message.sender_socket, message.recipient_socket)
        connection.state = next_state(connection.state, message.type, from_partner=False)
        connection.confirmations.append_own(response.uri, response.previous, is_second=False)
        connection.messages += (message.address, response.address)
        self.first[message.address] = response.address
        self.sent[message.uri] = Sent(
            message.uri,
            message.type,
            connection,
            message.address,
            response.uri,
            response.address,
            response.timestamp_ms,
        )
        self._keep(response, message)
        self.atoms[connection.atom].log.append((message.address, response.address))
        return connection

    def store_second(self, message: Message, first: Message, response: Message) -> Connection:
        """Store a message for one of our atoms with its s1 and our s2."""
        connection = self._connection_of(response, message.recipient_socket, message.sender_socket)
        connection.state = next_state(connection.state, message.type, from_partner=True)
        connection.confirmations.append_other(first.uri, first.previous)
        connection.confirmations.append_own(response.uri, response.previous, is_second=True)
        connection.messages += (message.address, first.address, response.address)
        self.second[message.address] = response.address
        self._keep(response, message, first)
        self.atoms[connection.atom].log.append((message.address, first.address, response.address))
        return connection

    def store_acknowledgement(self, response: Message) -> Sent:
        """Store the other node's response to a message that awaited it: s2, or a failure."""
        assert response.responding_to is not None
        late = self.undeliverable.pop(response.responding_to, None)
        if late is not None:
            self.chains[ChainState.FAILED] -= 1
        sent = late or self.sent.pop(response.responding_to)
        is_success = response.type is MessageType.SUCCESS
        self.chains[ChainState.COMPLETE if is_success else ChainState.FAILED] += 1
        if is_success:
            sent.connection.confirmations.append_other(response.uri, response.previous)
        sent.connection.messages.append(response.address)
        self.acknowledged[sent.message] = response.address
        self.archive.put(response.address, response.raw)
        self.atoms[sent.connection.atom].log.append((response.address,))
        return sent

    def store_undeliverable(self, response: Message) -> Sent:
        """Store that a message was given up: the other node did not answer within its lifetime."""
        assert response.responding_to is not None
        sent = self.undeliverable[response.responding_to] = self.sent.pop(response.responding_to)
        if len(self.undeliverable) > MAX_UNDELIVERABLE:
            self.undeliverable.popitem(last=False)
        self.chains[ChainState.FAILED] += 1
        sent.connection.messages.append(response.address)
        self._keep(response)
        self.atoms[sent.connection.atom].log.append((response.address,))
        return sent

    def store_refusal(self, message: Address, response: Message, *, is_first: bool) -> Atom | None:
        """Store the refusal of a genuine message; owners get it with the log, and a resend gets the same failure."""
        (self.first if is_first else self.second)[message] = response.address
        self._keep(response)
        atom = self.atoms.get(response.sender or "") if is_first else None
        if atom is not None:
            self.refused.add(message)
            self.chains[ChainState.FAILED] += 1
            atom.log.append((message, response.address))
        return atom

    def find_connection(self, socket: str, target_socket: str) -> Connection | None:
        """Our side of the channel between two sockets."""
        atom = self.atoms.get(v.atom_of_socket(socket))
        return atom.connections.get((socket, target_socket)) if atom else None

    def read_pair(self, sent: Sent) -> bytes | None:
        """m and s1 as one dataset, unless their bytes are gone."""
        message, first = self.archive.raw(sent.message), self.archive.raw(sent.first_address)
        return message + first if message is not None and first is not None else None

    def read_messages(self, sent: Sent) -> tuple[Message, Message] | None:
        """m and s1, unless their bytes are gone."""
        message, first = self.archive.raw(sent.message), self.archive.raw(sent.first_address)
        return (decode_stored(message), decode_stored(first)) if message and first else None

    def _connection_of(self, response: Message, socket: str | None, target: str | None) -> Connection:
        assert socket is not None
        assert target is not None
        assert response.connection is not None
        atom = self.atoms[v.atom_of_socket(socket)]
        connection = atom.connections.get((socket, target))
        if connection is None:
            connection = Connection(response.connection, socket, target)
            atom.connections[socket, target] = connection
            self.connections[connection.uri] = connection
        return connection

    def _keep(self, response: Message, *messages: Message) -> None:
        self.last_signed_ms = max(self.last_signed_ms, response.timestamp_ms)
        for message in (response, *messages):
            self.archive.put(message.address, message.raw)
