"""An owner's client: speaks for one atom, keeps its own copy of each conversation, believes nothing unverified.

The client opens one link to the atom's node and registers with the number of log entries it has; the node answers with
what is missing. Messages of its own stay in the outbox until the node's response came; after each reconnect they are
sent again, which the node answers with the response it stored. Several clients of one atom see the same log.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from dovetail.model.errors import DovetailError, LocalProtocolError, RemoteProtocolError
from dovetail.model.hop import Hop, Stage
from dovetail.model.wire import CloseLink, Frame, LinkId, OpenLink, Outgoing
from dovetail.won import compose as c
from dovetail.won import vocabulary as v
from dovetail.won.canonical import Quad
from dovetail.won.conversation import Conversations, is_unlogged_failure
from dovetail.won.events import (
    ChainAdvanced,
    Event,
    KeyWanted,
    MessageReceived,
    RegistrationConfirmed,
)
from dovetail.won.keys import KeyRing, Verifier, read_key_document
from dovetail.won.links import Link, LinkKind
from dovetail.won.message import Bundle, Message, decode_bundle, decode_message
from dovetail.won.output_buffer import OutputBuffer
from dovetail.won.settings import WonSettings
from dovetail.won.signing import SigningKey, expected_signer
from dovetail.won.trig import encode_bundle
from dovetail.won.vocabulary import Direction, MessageType

if TYPE_CHECKING:
    from dovetail.won.node import Randomness


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
        self._verifier = Verifier(self.settings.max_verdicts)
        self._outbox: dict[str, Message] = {}
        self._link: Link | None = None
        self._is_open = False
        self._is_started = False
        self._links_opened = 0
        self._attempts = 0
        self._position = 0
        self._is_registering = True
        self._last_ms = 0
        self._retry_at: int | None = None

    # -- what the application asks for

    def create(self, sockets: Iterable[str], now: int, description: Iterable[Quad] = ()) -> Message:
        """Create the atom with its key and sockets (full URIs)."""
        if self.is_created:
            raise LocalProtocolError(f"{self.atom} exists already")
        content = c.atom_content(self.atom, sockets, self._key.public, description)
        return self._submit(MessageType.CREATE, [(v.P_ATOM, f"<{self.atom}>")], content, now)

    def change(self, kind: MessageType, now: int, content: Iterable[Quad] = ()) -> Message:
        """Replace, activate, deactivate or delete the atom."""
        if kind not in v.ATOM_TYPES or kind is MessageType.CREATE:
            raise LocalProtocolError(f"{kind} does not change an atom")
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

        `forwarded` are the URIs of messages that this owner has and refers the other one to.
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
        self._is_started = True
        self._open(now)

    def stop(self) -> None:
        """Close the link and stay closed; nothing durable is lost."""
        self._is_started = False
        self._retry_at = None
        if self._link is not None:
            self._output.send(CloseLink(self._link.name))
        self._link, self._is_open = None, False

    @property
    def log(self) -> str:
        """The name of the node's log of this atom."""
        return f"{self.atom}/msg"

    @property
    def position(self) -> int:
        """How many entries of the node's log were handled, taken or refused."""
        return self._position

    @property
    def unanswered(self) -> tuple[str, ...]:
        """Messages whose storing the node has not confirmed yet."""
        return tuple(self._outbox)

    # -- the verbs

    def restore(self, hops: Iterable[Hop], now: int) -> None:
        """Rebuild everything from the owner's own journal; call once, before any other verb."""
        del now
        refused = 0
        for hop in hops:
            refused += hop.stage is Stage.REJECTED and hop.counterpart == self.log
            if hop.stage not in (Stage.CREATED, Stage.ACCEPTED) or hop.raw is None:
                continue
            try:
                message = decode_message(hop.raw)
                taken = self.conversations.take(message)
            except RemoteProtocolError as error:
                raise DovetailError(f"hop {hop.seq} cannot be read: {error.detail}") from None
            if hop.stage is Stage.CREATED:
                self._outbox[message.uri] = message
                self._last_ms = max(self._last_ms, message.timestamp_ms)
            for part in taken:
                self._settle(part)
        self._position = self.conversations.entries + refused

    def receive_opened(self, link: LinkId, now: int) -> None:
        """The link to the node is open: register, send again what has no response."""
        if self._link is None or self._link.name != link:
            return
        self._is_open = True
        if self.is_created:
            self._register(now)
        for message in self._outbox.values():
            self._output.send_frame(link, encode_bundle((message,)))

    def receive_frames(self, frames: Iterable[Frame], now: int) -> None:
        """Frames came from the node, in this order."""
        for data, link, _ in frames:
            self.receive_frame(data, link, now)

    def receive_frame(self, data: bytes, link: LinkId, now: int) -> None:
        """A frame came from the node."""
        if self._link is None or self._link.name != link:
            return
        if len(self._link.frames) >= self.settings.max_held_frames:
            # The node keeps the log: hang up and register again from where we are.
            self._output.send(CloseLink(link))
            self.receive_closed(link, now)
            return
        self._link.frames.append(data)
        if not self._link.waiting:
            self._drain(self._link, now)

    def receive_closed(self, link: LinkId, now: int) -> None:
        """The link ended, broke or could not be opened."""
        if self._link is None or self._link.name != link:
            return
        self._link, self._is_open = None, False
        pause_ms = min(self.settings.retry_ms << min(self._attempts, 20), self.settings.max_retry_ms)
        self._attempts += 1
        self._retry_at = now + int(pause_ms * 1000 * (0.5 + self._random.random() / 2)) if self._is_started else None

    def receive_document(self, uri: str, data: bytes | None, now: int) -> None:
        """The answer to KeyWanted: the document found at `uri`, None if there was none."""
        key = read_key_document(uri, data) if data is not None else None
        if key is not None:
            self.keys.add(uri, key, now)
        link = self._link
        if link is None or uri not in link.waiting:
            return
        link.waiting.discard(uri)
        if key is None:
            self._close_link(link, now)
        elif not link.waiting:
            self._drain(link, now)

    def handle_timer(self, now: int) -> None:
        """Open the link again, or stop waiting for a key that does not come."""
        if self._retry_at is not None and self._retry_at <= now:
            self._open(now)
        link = self._link
        if link is not None and link.deadline is not None and link.deadline <= now:
            self._close_link(link, now)

    def next_timer(self) -> int | None:
        """When `handle_timer` wants to be called."""
        deadline = self._link.deadline if self._link is not None else None
        return min((due for due in (self._retry_at, deadline) if due is not None), default=None)

    def events(self) -> list[Event]:
        """What happened since the last call."""
        return self._output.drain_events()

    def to_send(self) -> list[Outgoing]:
        """What is to be sent, once the observations of `events` are durable."""
        return self._output.drain_outgoing()

    # -- inside

    def _submit(self, kind: MessageType, envelope: list[tuple[str, str]], content: Iterable[Quad], now: int) -> Message:
        message = self._compose(kind, envelope, content, now)
        self._verifier.trust(message)
        self.conversations.take(message)
        self._outbox[message.uri] = message
        self._output.observe(Stage.CREATED, message, self.node, now)
        if self._is_open and self._link is not None:
            self._output.send_frame(self._link.name, encode_bundle((message,)))
        return message

    def _compose(
        self, kind: MessageType, envelope: list[tuple[str, str]], content: Iterable[Quad], now: int
    ) -> Message:
        # Strictly later than the last one: the same words said twice are two messages, not a resend.
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

    def _open(self, now: int) -> None:
        del now
        self._retry_at = None
        if self._link is None:
            self._links_opened += 1
            self._link = Link(f"owner {self._links_opened}", LinkKind.OWNER, self.node)
            self._output.send(OpenLink(self._link.name, self.node, LinkKind.OWNER.value))

    def _register(self, now: int) -> None:
        """Ask for everything after what we have. Not journaled: it is no part of any conversation."""
        pairs = [(v.P_ATOM, f"<{self.atom}>"), (v.P_AFTER, f'"{self.position}"{v.XSD_LONG}')]
        message = self._compose(MessageType.REGISTER, pairs, (), now)
        self._is_registering = True
        if self._link is not None:
            self._output.send_frame(self._link.name, encode_bundle((message,)))

    def _close_link(self, link: Link, now: int) -> None:
        self._output.send(CloseLink(link.name))
        self.receive_closed(link.name, now)

    def _drain(self, link: Link, now: int) -> None:
        while link.frames and not link.waiting:
            if self._take_frame(link.frames[0], link, now):
                link.frames.popleft()
        link.deadline = now + self.settings.key_timeout_ms * 1000 if link.waiting else None

    def _take_frame(self, data: bytes, link: Link, now: int) -> bool:
        """Handle one frame; False if it must wait for keys, which are then in `link.waiting`."""
        try:
            # The echo of what is in the outbox need not be decoded again.
            bundle = decode_bundle(data, max_bytes=self.settings.max_frame_bytes, known=self._outbox)
        except RemoteProtocolError as error:
            self._output.reject_frame(data, self.node, error, now)
            return True
        is_next = bundle.log == self.log and bundle.position == self.position
        try:
            link.waiting = self._missing_keys(bundle.messages, now)
            if link.waiting:
                return False
            for message in bundle.messages:
                key = self.keys.find(expected_signer(message), now)
                assert key is not None
                self._verifier.verify(message, key)
        except RemoteProtocolError as error:
            self._output.reject_frame(data, self.log if is_next else self.node, error, now)
            self._position += is_next
            return True
        self._take_bundle(bundle, link, now)
        return True

    def _missing_keys(self, messages: tuple[Message, ...], now: int) -> set[str]:
        signers = {expected_signer(message) for message in messages}
        missing = {signer for signer in signers if self.keys.find(signer, now) is None}
        for uri in sorted(missing):
            self._output.emit(KeyWanted(uri))
        return missing

    def _take_bundle(self, bundle: Bundle, link: Link, now: int) -> None:
        if bundle.position is None:
            self._take_direct_answer(bundle, now)
            return
        if bundle.log != self.log or bundle.position > self.position:
            # Not ours, or something is missing before it: come back after a pause and register anew.
            self._close_link(link, now)
            return
        self.is_created = True
        is_next = bundle.position == self.position
        for message in bundle.messages:
            if not self._take(message, self.log if is_next else self.node, now):
                break
        self._position += is_next
        if bundle.size is not None:
            if self.position < bundle.size:
                self._register(now)
            else:
                self._confirm(bundle.size)

    def _confirm(self, size: int) -> None:
        self._attempts = 0
        if self._is_registering:
            self._is_registering = False
            self._output.emit(RegistrationConfirmed(self.atom, size))

    def _take_direct_answer(self, bundle: Bundle, now: int) -> None:
        """An answer to this client alone: a failure that no log has, or a known message, which registering brings."""
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
            self._output.reject_message(message, source, error.reason, error.detail, now)
            return False
        for part in taken:
            self._output.observe(Stage.ACCEPTED, part, self.node, now)
            self._settle(part)
            self._announce(part)
        return True

    def _settle(self, part: Message) -> None:
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
