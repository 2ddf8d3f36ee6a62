"""An owner's client: acts for one atom, keeps its own copy of each conversation, trusts nothing unverified.

The client opens one link to the atom's node and registers with the number of log entries it has; the node answers with
the missing ones. Its own messages stay in the outbox until the node responds; after each reconnect they are sent again,
and the node repeats the response it stored. Several clients of one atom see the same log.

Every log entry is journaled once: taken, refused, or deferred because a key is missing (`owner_inbox`). A deferred
entry is journaled as a refusal for an unknown key with all its bytes, and is taken later.
"""

from __future__ import annotations

from collections.abc import Iterable

from dovetail.model.address import Address
from dovetail.model.errors import LocalProtocolError, RemoteProtocolError
from dovetail.model.hop import Hop, Reason, Stage
from dovetail.model.wire import CloseLink, Frame, LinkId, OpenLink, Outgoing
from dovetail.won import compose as c
from dovetail.won import vocabulary as v
from dovetail.won.canonical import STORED, Quad
from dovetail.won.conversation import Conversations, is_unlogged_failure
from dovetail.won.events import (
    ChainAdvanced,
    Event,
    HopUnreadable,
    MessageReceived,
    RegistrationConfirmed,
)
from dovetail.won.keys import KeyRing
from dovetail.won.links import LinkKind
from dovetail.won.message import Bundle, Message, decode_bundle, decode_stored
from dovetail.won.outbox import pause_us
from dovetail.won.output_buffer import OutputBuffer
from dovetail.won.owner_inbox import OwnerInbox
from dovetail.won.randomness import Randomness
from dovetail.won.settings import WonSettings
from dovetail.won.signing import SigningKey
from dovetail.won.trig import encode_bundle
from dovetail.won.vocabulary import Direction, MessageType


class Owner:
    """The core of an owner's client: no socket, no clock, no file."""

    def __init__(
        self,
        atom: str,
        key: SigningKey,
        random: Randomness,
        *,
        settings: WonSettings | None = None,
        is_created: bool = False,
    ) -> None:
        self.atom = atom
        self.node = v.node_of_atom(atom)
        self.settings = settings or WonSettings()
        self.conversations = Conversations(atom)
        self.keys = KeyRing(capacity=self.settings.max_cached_keys, lifetime_us=self.settings.key_lifetime_ms * 1000)
        self.keys.pin(atom, key.public)
        self.is_created = is_created
        self._key = key
        self._random = random
        self._output = OutputBuffer(self.settings.max_evidence_bytes)
        self._inbox = OwnerInbox(atom, self.keys, self.settings, self._output, self, random.random)
        self._outbox: dict[str, Message] = {}
        self._link: LinkId | None = None
        self._is_open = False
        self._is_started = False
        self._links_opened = 0
        self._attempts = 0
        self._position = 0
        self._read_to = 0
        self._is_registering = True
        self._last_ms = 0
        self._retry_at: int | None = None

    # -- what the application asks for

    def create(self, sockets: Iterable[str], now: int, description: Iterable[Quad] = ()) -> Message:
        """Create the atom with its key and sockets (full URIs)."""
        if self.is_created:
            raise LocalProtocolError(f"{self.atom} exists already")
        return self._describe(MessageType.CREATE, sockets, description, now)

    def replace(self, sockets: Iterable[str], now: int, description: Iterable[Quad] = ()) -> Message:
        """Replace the atom's sockets and description; its key stays."""
        return self._describe(MessageType.REPLACE, sockets, description, now)

    def change(self, kind: MessageType, now: int) -> Message:
        """Activate, deactivate or delete the atom."""
        if kind not in (MessageType.ACTIVATE, MessageType.DEACTIVATE, MessageType.DELETE):
            raise LocalProtocolError(f"{kind} does not change the state of an atom")
        # the key must outlive the description: others verify the atom's old messages with it
        content = c.atom_content(self.atom, (), self._key.public) if kind is MessageType.DELETE else ()
        return self._submit(kind, [(v.P_ATOM, f"<{self.atom}>")], content, now)

    def send_message(
        self,
        kind: MessageType,
        socket: str,
        target_socket: str,
        now: int,
        text: str | None = None,
        forwarded: Iterable[str] = (),
    ) -> Message:
        """Connect, send a message on, or close the connection between two sockets.

        `forwarded` are the URIs of messages that this owner has and refers the other to.
        """
        if kind not in v.CONNECTION_TYPES:
            raise LocalProtocolError(f"{kind} does not travel on a connection")
        if v.atom_of_socket(socket) != self.atom:
            raise LocalProtocolError(f"{socket} is not a socket of {self.atom}")
        envelope = c.socket_pair(socket, target_socket)
        for uri in forwarded:
            if kind is not MessageType.CONNECTION or not self.conversations.knows(uri):
                raise LocalProtocolError(f"{kind} cannot forward {uri}: a ConnectionMessage can, what is known here")
            envelope.append((v.P_FORWARDED, f"<{uri}>"))
        content = c.text_content(text) if text is not None else ()
        return self._submit(kind, envelope, content, now)

    def start(self, now: int) -> None:
        """Keep a link to the node open from now on."""
        del now
        self._is_started = True
        self._open()

    def stop(self) -> None:
        """Close the link and stay closed; nothing durable is lost."""
        self._is_started = False
        self._retry_at = None
        if self._link is not None:
            self._output.send(CloseLink(self._link))
        self._link, self._is_open = None, False
        self._inbox.clear()

    @property
    def log(self) -> str:
        """The name of the node's log of this atom."""
        return f"{self.atom}/msg"

    @property
    def position(self) -> int:
        """Number of entries of the node's log already handled: taken, refused or deferred."""
        return self._position

    @property
    def deferred(self) -> dict[str, int]:
        """Number of entries waiting for keys, by partner."""
        return self._inbox.deferred

    @property
    def left_with_node(self) -> dict[str, int]:
        """Number of entries beyond the local limit that wait for keys in the node's log, by partner."""
        return self._inbox.left

    @property
    def unanswered(self) -> tuple[str, ...]:
        """Messages that the node has not yet confirmed as stored."""
        return tuple(self._outbox)

    # -- the verbs

    def restore(self, hops: Iterable[Hop], now: int) -> None:
        """Rebuild everything from the owner's own journal; call once, before any other verb."""
        refused = 0
        deferred: list[tuple[int, bytes]] = []
        rejected: set[Address] = set()
        for hop in hops:
            if hop.stage is Stage.REJECTED:
                rejected.add(hop.message)
                refused += hop.counterpart == self.log
                if hop.counterpart == self.log and hop.reason is Reason.UNKNOWN_KEY and hop.raw is not None:
                    deferred.append((hop.seq, hop.raw))
            elif hop.stage in (Stage.CREATED, Stage.ACCEPTED):
                self._restore_message(hop)
        for seq, data in deferred:
            refused -= self._restore_deferred(seq, data, rejected, now)
        self._position = self.conversations.entries + refused

    def _restore_message(self, hop: Hop) -> None:
        try:
            if hop.raw is None:
                raise RemoteProtocolError(Reason.MALFORMED, "its message has no bytes")
            message = decode_stored(hop.raw)
            taken = self.conversations.take(message)
        except RemoteProtocolError as error:
            self._output.emit(HopUnreadable(hop.seq, error.detail))
            return
        if hop.stage is Stage.CREATED:
            self._outbox[message.uri] = message
            self._last_ms = max(self._last_ms, message.timestamp_ms)
        for part in taken:
            self._note_answer(part)

    def _restore_deferred(self, seq: int, data: bytes, rejected: set[Address], now: int) -> bool:
        """Defer an entry again, unless it has since been taken or refused; True if it was taken and counts as such."""
        try:
            bundle = decode_bundle(data, STORED)
        except RemoteProtocolError as error:
            self._output.emit(HopUnreadable(seq, error.detail))
            return False
        if self.conversations.knows(bundle.messages[-1].uri):
            return True
        if not any(message.address in rejected for message in bundle.messages):
            self._inbox.restore(bundle, now)
        return False

    def receive_opened(self, link: LinkId, now: int) -> None:
        """The link to the node is open: register, and resend what has no response."""
        if self._link != link:
            return
        self._is_open = True
        self._read_to = self._inbox.begin_reading(self._position)
        if self.is_created:
            self._register(now)
        for message in self._outbox.values():
            self._output.send_frame(link, encode_bundle((message,)))

    def receive_frames(self, frames: Iterable[Frame], now: int) -> None:
        """Handle frames from the node, in this order."""
        for data, link, _ in frames:
            self.receive_frame(data, link, now)

    def receive_frame(self, data: bytes, link: LinkId, now: int) -> None:
        """Handle a frame from the node."""
        if self._link == link:
            # The echo of a message in the outbox need not be decoded again.
            self._inbox.receive(data, self._outbox, now)

    def receive_closed(self, link: LinkId, now: int) -> None:
        """The link ended, broke or could not be opened."""
        if self._link != link:
            return
        self._link, self._is_open = None, False
        self._inbox.clear()
        if self._is_started:
            self._retry_at = now + pause_us(self._attempts, self.settings, self._random.random())
        self._attempts += 1

    def receive_document(self, uri: str, data: bytes | None, now: int) -> None:
        """Handle the answer to KeyWanted: the document found at `uri`, None if there was none."""
        self._inbox.receive_document(uri, data, now)

    def handle_timer(self, now: int) -> None:
        """Reopen the link, stop waiting for a key, or request one again."""
        longest_us = self.settings.max_retry_ms * 1000
        # a retry that is further ahead was planned before the clock was set back
        if self._retry_at is not None and not now < self._retry_at <= now + longest_us:
            self._open()
        self._inbox.handle_timer(now)

    def next_timer(self) -> int | None:
        """When to call `handle_timer`."""
        return min((due for due in (self._retry_at, self._inbox.next_timer()) if due is not None), default=None)

    def events(self) -> list[Event]:
        """What happened since the last call."""
        return self._output.drain_events()

    def to_send(self) -> list[Outgoing]:
        """What to send once the observations of `events` are durable."""
        return self._output.drain_outgoing()

    # -- callbacks of the inbox

    def take_entry(self, bundle: Bundle, now: int) -> None:
        """Take the next frame, verified."""
        if bundle.position is None:
            self._take_direct_answer(bundle, now)
            return
        if bundle.log != self.log or bundle.position > self._read_to:
            # Not ours, or something before it is missing: reconnect after a pause and register again.
            self.give_up_link(now)
            return
        self.is_created = True
        source = self.log if self._is_next(bundle) else self.node
        for message in bundle.messages:
            if not self._take(message, source, now):
                break
        self._advance(bundle, now)

    def take_deferred(self, bundle: Bundle, now: int) -> None:
        """Take a deferred entry, now verified."""
        for message in bundle.messages:
            if not self._take(message, self.node, now):
                break

    def reject_deferred(self, bundle: Bundle, error: RemoteProtocolError, now: int) -> None:
        """Refuse a deferred entry whose signatures are wrong."""
        for message in bundle.messages:
            self._output.reject_message(message, self.node, error.reason, now)

    def defer_entry(self, data: bytes, bundle: Bundle, signer: str, now: int) -> bool:
        """Journal the next entry as refused, with all its bytes, until the key of a signer is found.

        An entry that is read again is already in the journal.
        """
        if bundle.position is None or bundle.log != self.log or bundle.position > self._read_to:
            self.give_up_link(now)
            return False
        if bundle.position < self._read_to:
            return False
        if self._is_next(bundle):
            error = RemoteProtocolError(Reason.UNKNOWN_KEY, f"no key of {signer} was found yet")
            self._output.reject_frame(data, self.log, error, now, keep_all=True)
        self._advance(bundle, now)
        return True

    def reject_frame(self, data: bytes, bundle: Bundle | None, error: RemoteProtocolError, now: int) -> None:
        """Journal a frame that is unreadable or has wrong signatures."""
        is_next = bundle is not None and self._is_next(bundle)
        self._output.reject_frame(data, self.log if is_next else self.node, error, now)
        if bundle is not None:
            self._advance(bundle, now)

    def give_up_link(self, now: int) -> None:
        """Close the link; it is reopened after a pause."""
        if self._link is not None:
            self._output.send(CloseLink(self._link))
            self.receive_closed(self._link, now)

    # -- inside

    def _describe(self, kind: MessageType, sockets: Iterable[str], description: Iterable[Quad], now: int) -> Message:
        content = c.atom_content(self.atom, sockets, self._key.public, description)
        return self._submit(kind, [(v.P_ATOM, f"<{self.atom}>")], content, now)

    def _submit(self, kind: MessageType, envelope: list[tuple[str, str]], content: Iterable[Quad], now: int) -> Message:
        message = self._compose(kind, envelope, content, now)
        self._inbox.trust(message)
        self.conversations.take(message)
        self._outbox[message.uri] = message
        self._output.observe(Stage.CREATED, message, self.node, now)
        if self._is_open and self._link is not None:
            self._output.send_frame(self._link, encode_bundle((message,)))
        return message

    def _compose(
        self, kind: MessageType, envelope: list[tuple[str, str]], content: Iterable[Quad], now: int
    ) -> Message:
        # Strictly later than the last one: the same text sent twice is two messages, not a resend.
        self._last_ms = max(now // 1000, self._last_ms + 1)
        return c.compose(
            type=kind,
            direction=Direction.OWNER,
            signer=self.atom,
            key=self._key,
            timestamp_ms=self._last_ms,
            envelope=envelope,
            content=content,
        )

    def _open(self) -> None:
        self._retry_at = None
        if self._link is None:
            self._links_opened += 1
            self._link = f"owner {self._links_opened}"
            self._output.send(OpenLink(self._link, self.node, LinkKind.OWNER.value))

    def _register(self, now: int) -> None:
        """Request everything after what we have. Not journaled: it is not part of any conversation."""
        pairs = [(v.P_ATOM, f"<{self.atom}>"), (v.P_AFTER, f'"{self._read_to}"{v.XSD_LONG}')]
        message = self._compose(MessageType.REGISTER, pairs, (), now)
        self._is_registering = True
        if self._link is not None:
            self._output.send_frame(self._link, encode_bundle((message,)))

    def _is_next(self, bundle: Bundle) -> bool:
        return bundle.log == self.log and bundle.position == self.position

    def _advance(self, bundle: Bundle, now: int) -> None:
        """An entry was handled: move to the next; at the end of a page, register for more."""
        if bundle.log != self.log:
            return
        self._position += bundle.position == self._position
        self._read_to += bundle.position == self._read_to
        if self._read_to == self._position:
            self._inbox.end_rereading()
        if bundle.size is None:
            return
        if self._read_to < bundle.size:
            self._register(now)
            return
        self._attempts = 0
        if self._is_registering:
            self._is_registering = False
            self._output.emit(RegistrationConfirmed(self.atom, bundle.size))

    def _take_direct_answer(self, bundle: Bundle, now: int) -> None:
        """Take an answer to this client alone: an unlogged failure, or a known message, after which it registers."""
        failures = [message for message in bundle.messages if is_unlogged_failure(message)]
        for failure in failures:
            self._take(failure, self.node, now)
        if not failures:
            self.is_created = True
            self._register(now)

    def _take(self, message: Message, source: str, now: int) -> bool:
        """Take one genuine message; False if it was refused."""
        try:
            taken = self.conversations.take(message)
        except RemoteProtocolError as error:
            self._output.reject_message(message, source, error.reason, now)
            return False
        for part in taken:
            self._output.observe(Stage.ACCEPTED, part, self.node, now)
            self._note_answer(part)
            self._announce(part)
        return True

    def _note_answer(self, part: Message) -> None:
        if part.is_response:
            delivery = self.conversations.deliveries[part.responding_to or ""]
            if delivery.chain.is_answered:
                self._outbox.pop(part.responding_to or "", None)
            if delivery.type is MessageType.CREATE and part.type is MessageType.SUCCESS:
                self.is_created = True

    def _announce(self, part: Message) -> None:
        if not part.is_response:
            if part.sender != self.atom:
                self._output.emit(MessageReceived(part.uri, part.sender or "", part.text))
            return
        delivery = self.conversations.deliveries[part.responding_to or ""]
        self._output.emit(ChainAdvanced(part.responding_to or "", delivery.chain.state, delivery.detail))
