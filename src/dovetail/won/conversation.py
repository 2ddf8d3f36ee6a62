"""An owner's copy of its conversations: chains, references and states, checked on arrival.

A response is accepted only if everything it names is known and correct: the message it responds to, the sockets, the
earlier SuccessResponses of the same container. s2 may arrive before m and s1: it is held until they arrive.
"""

from __future__ import annotations

from dovetail.model.errors import RemoteProtocolError
from dovetail.model.hop import Reason
from dovetail.won.chain import Chain, ChainState, Role, is_answer, is_by_senders_node, is_undeliverable_notice, role_of
from dovetail.won.connection import ConnectionState, next_state
from dovetail.won.message import Message
from dovetail.won.rules import UNLOGGED_TYPES, is_genuine
from dovetail.won.vocabulary import MessageType

MAX_EARLY_RESPONSES = 1024
_REASONS = {reason.value: reason for reason in Reason}


class Conversation:
    """The channel between a socket of ours and one of another atom."""

    __slots__ = ("state", "successes")

    def __init__(self) -> None:
        self.state: ConnectionState | None = None
        self.successes: set[str] = set()


class Delivery:
    """One message sent or received, and what is known about its delivery."""

    __slots__ = ("atom", "chain", "conversation", "detail", "is_own", "recipient_socket", "sender_socket", "type")
    responding_to_type = None

    def __init__(self, message: Message, conversation: Conversation | None, *, is_own: bool) -> None:
        self.type = message.type
        self.atom = message.atom
        self.sender_socket = message.sender_socket
        self.recipient_socket = message.recipient_socket
        self.conversation = conversation
        self.is_own = is_own
        self.chain = Chain(type=message.type)
        self.detail: str | None = None


class Conversations:
    """Everything an owner knows about its atom's messages; `entries` counts the entries taken from its node's log."""

    def __init__(self, atom: str) -> None:
        self.atom = atom
        self.deliveries: dict[str, Delivery] = {}
        self.by_sockets: dict[tuple[str, str], Conversation] = {}
        self.entries = 0
        self._known: set[str] = set()
        self._atom_successes: set[str] = set()
        self._early: dict[str, Message] = {}

    def knows(self, uri: str) -> bool:
        """True if the message was already taken."""
        return uri in self._known

    def state_of(self, uri: str) -> ChainState | None:
        """How far a message got."""
        delivery = self.deliveries.get(uri)
        return delivery.chain.state if delivery else None

    def take(self, message: Message) -> list[Message]:
        """Take a genuine message; returns all taken with it, early responses included; raises RemoteProtocolError."""
        if self.knows(message.uri):
            return []
        subject = message.responding_to or message.uri
        if message.is_response:
            delivery = self.deliveries.get(subject)
            if delivery is None or (role_of(message) is Role.SECOND and delivery.chain.first is None):
                self._keep_early(message, subject)
                return []
            self._take_response(message, delivery)
        else:
            self._take_message(message)
        early = self._early.pop(subject, None)
        return [message, *(self.take(early) if early is not None else ())]

    def _keep_early(self, response: Message, subject: str) -> None:
        if len(self._early) >= MAX_EARLY_RESPONSES or self._early.get(subject, response) != response:
            raise RemoteProtocolError(Reason.ORPHAN_RESPONSE, f"{response.uri} responds to nothing known here")
        self._early[subject] = response

    def _take_message(self, message: Message) -> None:
        is_own = message.sender == self.atom
        if not is_own and message.recipient != self.atom:
            raise RemoteProtocolError(Reason.UNKNOWN_ATOM, f"{message.uri} is neither from nor for {self.atom}")
        conversation = None
        if message.sender_socket and message.recipient_socket:
            pair = (message.sender_socket, message.recipient_socket)
            conversation = self.by_sockets.setdefault(pair if is_own else pair[::-1], Conversation())
        self.deliveries[message.uri] = Delivery(message, conversation, is_own=is_own)
        self._known.add(message.uri)

    def _take_response(self, response: Message, delivery: Delivery) -> None:
        chain, conversation = delivery.chain, delivery.conversation
        if not is_answer(response, delivery):
            raise RemoteProtocolError(Reason.WRONG_SIGNER, f"{response.uri} does not come from a node of this message")
        if chain.contradicts(response):
            raise RemoteProtocolError(
                Reason.CONFLICTING_RESPONSE, f"{response.responding_to} had a different response before"
            )
        successes = conversation.successes if conversation else self._atom_successes
        for uri in response.previous:
            if uri not in successes:
                raise RemoteProtocolError(Reason.BAD_REFERENCE, f"{response.uri} references {uri}, which is not known")
        role = role_of(response)
        if role is Role.SECOND and chain.first not in response.previous:
            raise RemoteProtocolError(Reason.BAD_REFERENCE, f"{response.uri} does not reference {chain.first}")
        chain.add(role, response.uri)
        if role is Role.FAILURE:
            chain.is_undeliverable = is_undeliverable_notice(response)
            delivery.detail = response.text
        else:
            successes.add(response.uri)
            delivery.detail = None if role is Role.SECOND else delivery.detail
        # The connection state follows our messages when our node has stored them, the partner's with s2.
        if conversation is not None and role is (Role.FIRST if delivery.is_own else Role.SECOND):
            conversation.state = next_state(conversation.state, delivery.type, from_partner=not delivery.is_own)
        self._known.add(response.uri)
        # The s1 of a partner's message does not complete an entry of the node's log: s2 follows in the same entry.
        if (delivery.is_own or role is not Role.FIRST) and not is_unlogged_failure(response):
            self.entries += 1


def is_unlogged_failure(response: Message) -> bool:
    """True for failures that a node reports only to the client that sent the message, not proven to be its sender's."""
    if response.type is not MessageType.FAILURE or not is_by_senders_node(response):
        return False
    reason = _REASONS.get((response.text or "").partition(":")[0])
    is_unproven = reason is not None and not is_genuine(reason, is_first=True)
    return is_unproven or response.responding_to_type in UNLOGGED_TYPES
