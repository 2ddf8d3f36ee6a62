"""An owner's copy of its conversations: chains, references and states, checked as they come.

A response is taken only if everything it names is known and right: the message it responds to, the sockets, the
earlier SuccessResponses of the same container. s2 may come before m and s1: it is kept aside until they are there.
"""

from __future__ import annotations

from dovetail.model.errors import RemoteProtocolError
from dovetail.model.hop import Reason
from dovetail.won import vocabulary as v
from dovetail.won.chain import Chain, ChainState, Role, is_first, role_of
from dovetail.won.connection import ConnectionState, next_state
from dovetail.won.message import Message
from dovetail.won.rules import UNLOGGED_TYPES, is_first_failure, is_genuine
from dovetail.won.vocabulary import MessageType

MAX_EARLY_RESPONSES = 1024
_REASONS = {reason.value: reason for reason in Reason}


class Conversation:
    """The channel between a socket of ours and one of another atom."""

    __slots__ = ("connection", "socket", "state", "successes", "target_socket", "uris")

    def __init__(self, socket: str, target_socket: str) -> None:
        self.socket = socket
        self.target_socket = target_socket
        self.state: ConnectionState | None = None
        self.connection: str | None = None
        self.uris: list[str] = []
        self.successes: set[str] = set()


class Thread:
    """One message of ours or for us, and what is known of its delivery."""

    __slots__ = ("chain", "conversation", "detail", "is_own", "sockets", "type")

    def __init__(self, message: Message, conversation: Conversation | None, *, is_own: bool) -> None:
        self.chain = Chain(type=message.type)
        self.conversation = conversation
        self.is_own = is_own
        self.sockets = (message.sender_socket, message.recipient_socket)
        self.type = message.type
        self.detail: str | None = None

    @property
    def is_settled(self) -> bool:
        """True if the owner's own node has answered."""
        return self.chain.first is not None or self.chain.failure is not None


class Conversations:
    """Everything an owner knows about its atom's messages."""

    def __init__(self, atom: str) -> None:
        self.atom = atom
        self.threads: dict[str, Thread] = {}
        self.by_sockets: dict[tuple[str, str], Conversation] = {}
        self.entries = 0
        self._known: set[str] = set()
        self._atom_successes: set[str] = set()
        self._early: dict[str, Message] = {}

    def knows(self, uri: str) -> bool:
        """True if the message was taken before."""
        return uri in self._known

    def state_of(self, uri: str) -> ChainState | None:
        """How far a message got."""
        thread = self.threads.get(uri)
        return thread.chain.state if thread else None

    def take(self, message: Message) -> list[Message]:
        """Take a genuine message; gives those taken by it, early responses included; raises RemoteProtocolError."""
        if self.knows(message.uri):
            return []
        subject = message.responding_to or message.uri
        if message.is_response:
            thread = self.threads.get(subject)
            if thread is None or (role_of(message) is Role.SECOND and thread.chain.first is None):
                self._keep_aside(message, subject)
                return []
            self._take_response(message, thread)
        else:
            self._take_message(message)
        early = self._early.pop(subject, None)
        return [message, *(self.take(early) if early is not None else ())]

    def _keep_aside(self, response: Message, subject: str) -> None:
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
            conversation = self._conversation(*(pair if is_own else reversed(pair)))
            conversation.uris.append(message.uri)
        self.threads[message.uri] = Thread(message, conversation, is_own=is_own)
        self._known.add(message.uri)

    def _conversation(self, socket: str, target_socket: str) -> Conversation:
        found = self.by_sockets.get((socket, target_socket))
        if found is None:
            found = self.by_sockets[socket, target_socket] = Conversation(socket, target_socket)
        return found

    def _take_response(self, response: Message, thread: Thread) -> None:
        role = role_of(response)
        self._check_place(response, thread)
        self._check_conflict(response, role, thread.chain)
        successes = thread.conversation.successes if thread.conversation else self._atom_successes
        for uri in response.previous:
            if uri not in successes:
                raise RemoteProtocolError(Reason.BAD_REFERENCE, f"{response.uri} references {uri}, which is not known")
        if role is Role.SECOND and thread.chain.first not in response.previous:
            raise RemoteProtocolError(Reason.BAD_REFERENCE, f"{response.uri} does not reference {thread.chain.first}")
        match role:
            case Role.FIRST | Role.ATOM:
                thread.chain.first = response.uri
            case Role.SECOND:
                thread.chain.second = response.uri
            case Role.FAILURE:
                thread.chain.failure = response.uri
                thread.detail = response.text
        if response.type is MessageType.SUCCESS:
            successes.add(response.uri)
        if thread.conversation is not None:
            thread.conversation.uris.append(response.uri)
            self._move(response, role, thread, thread.conversation)
        self._known.add(response.uri)
        self.entries += self._ends_entry(response, thread)

    def _check_place(self, response: Message, thread: Thread) -> None:
        sender, recipient = thread.sockets
        places = {(sender, sender), (recipient, sender)} if sender else {(None, None)}
        if (response.sender_socket, response.recipient_socket) not in places or (
            not sender and response.atom != self.atom
        ):
            raise RemoteProtocolError(Reason.WRONG_SIGNER, f"{response.uri} does not come from a node of this message")

    def _check_conflict(self, response: Message, role: Role, chain: Chain) -> None:
        before = chain.second if role is Role.SECOND else chain.first if role is not Role.FAILURE else chain.failure
        # A failure of the other node may follow s1; after a success of the same node it contradicts.
        contradicts = role is Role.FAILURE and (chain.first if is_first(response) else chain.second) is not None
        if before is not None or contradicts or (role is not Role.FAILURE and chain.failure is not None):
            raise RemoteProtocolError(
                Reason.CONFLICTING_RESPONSE, f"{response.responding_to} had a different response before"
            )

    def _move(self, response: Message, role: Role, thread: Thread, conversation: Conversation) -> None:
        """Follow the connection's state: our messages count when our node stored them, the partner's with s2."""
        if role is (Role.FIRST if thread.is_own else Role.SECOND):
            conversation.state = next_state(conversation.state, thread.type, from_partner=not thread.is_own)
            conversation.connection = response.connection

    def _ends_entry(self, response: Message, thread: Thread) -> bool:
        """True if the response is the last of one entry of the node's log: all but the s1 of a partner's message."""
        if not thread.is_own and role_of(response) is Role.FIRST:
            return False
        return not is_unlogged_failure(response)


def is_unlogged_failure(response: Message) -> bool:
    """True for failures that a node tells only to the client that sent the message, not proven to be its sender's."""
    if response.type is not MessageType.FAILURE or not is_first_failure(response):
        return False
    reason = _REASONS.get((response.text or "").partition(":")[0])
    is_unproven = reason is not None and not is_genuine(reason, is_first=True)
    return is_unproven or response.responding_to_type in UNLOGGED_TYPES


def partner_of(conversation: Conversation) -> str:
    """The other atom."""
    return v.atom_of_socket(conversation.target_socket)
