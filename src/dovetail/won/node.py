"""A node: receives messages from its owners and from other nodes, responds, stores, delivers.

Connection-specific delivery, step by step (owner1 at node1, owner2 at node2):

    1. owner1 => node1 : m          `_take_from_owner`
    2. owner1 <= node1 : m, s1      `_store_first`; to all clients of the sending atom (the echo)
    3. node1 => node2  : m, s1      the outbox of node2, until s2 arrives
    4. node1 <= node2  : s2         `_take_delivery`, the reply on the same link
    5. node2 => owner2 : m, s1, s2  the log of the receiving atom
    6. owner1 <= node1 : s2         `_take_acknowledgement`

`events()` returns every message stored and every response made as an Observation, in the same turn as what is to be
sent; the shell journals the former before it sends the latter. Frames are handled one at a time, so there is one
message at a time per connection. A message that is already known gets the same response again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from dovetail.model.address import Address
from dovetail.model.errors import RemoteProtocolError
from dovetail.model.hop import Hop, Reason, Stage
from dovetail.model.wire import Frame, LinkId, Outgoing
from dovetail.won import vocabulary as v
from dovetail.won.archive import Archive, MemoryArchive
from dovetail.won.chain import ChainState, is_by_senders_node
from dovetail.won.events import Event, HopUnreadable
from dovetail.won.keys import KeyRing, Verifier
from dovetail.won.ledger import Ledger
from dovetail.won.links import Link, LinkKind, Links
from dovetail.won.message import Bundle, Message
from dovetail.won.node_outboxes import NodeOutboxes
from dovetail.won.output_buffer import OutputBuffer
from dovetail.won.owner_log_fanout import OwnerLogFanout
from dovetail.won.randomness import Randomness
from dovetail.won.recovery import Recovery
from dovetail.won.response_builder import ResponseBuilder
from dovetail.won.rules import (
    UNLOGGED_TYPES,
    Refusal,
    check_acknowledgement,
    check_clock,
    check_delivery,
    check_owner_message,
    check_registration_clock,
)
from dovetail.won.settings import WonSettings
from dovetail.won.signing import SigningKey, expected_signer
from dovetail.won.status import NodeStatus, QueueStatus
from dovetail.won.trig import encode_bundle
from dovetail.won.vocabulary import Direction, MessageType

CLOCK_STEP_US = 60_000_000
"""A clock that is further back than this was set back."""


class Node:
    """The core of a node: no socket, no clock, no file."""

    def __init__(
        self,
        uri: str,
        key: SigningKey,
        random: Randomness,
        *,
        settings: WonSettings | None = None,
        archive: Archive | None = None,
    ) -> None:
        self.uri = uri
        self.key = key.public
        self.settings = settings or WonSettings()
        self._latest = 0
        self.ledger = Ledger(archive or MemoryArchive())
        self.keys = KeyRing(capacity=self.settings.max_cached_keys, lifetime_us=self.settings.key_lifetime_ms * 1000)
        self.keys.pin(uri, key.public)
        self._output = OutputBuffer(self.settings.max_evidence_bytes)
        self._responses = ResponseBuilder(uri, key, self.ledger, self.settings, random)
        self._fanout = OwnerLogFanout(self.ledger, self.settings, self._output)
        self._outboxes = NodeOutboxes(self.ledger, self.settings, self._output, random.random)
        self._verifier = Verifier(self.settings.max_verdicts)
        self._links = Links(self.keys, self.settings, self._output, take=self._take_bundle, closed=self.receive_closed)

    # -- the verbs

    def restore(self, hops: Iterable[Hop], now: int) -> None:
        """Rebuild everything from the journal; call once, before any other verb."""
        recovery = Recovery(self.ledger)
        recovery.replay(hops)
        for seq, detail in recovery.unreadable:
            self._output.emit(HopUnreadable(seq, detail))
        for atom in self.ledger.atoms.values():
            self.keys.pin(atom.uri, atom.key)
        for sent in list(self.ledger.sent.values()):
            pair = self.ledger.read_messages(sent) if sent.destination == self.uri else None
            if pair is not None:
                # The journal ends between the two responses of a connection within this node.
                self._take_delivery(*pair, None, now)
        self._outboxes.restore(recovery.forwarded, now)

    def receive_accepted(self, link: LinkId, kind: LinkKind, now: int) -> None:
        """The other end opened a link to us."""
        del now
        self._links.accept(link, kind)

    def receive_opened(self, link: LinkId, now: int) -> None:
        """A link that we requested is open."""
        self._links.add(link, self._outboxes.node_of(link))
        self._outboxes.opened(link, now)

    def receive_frames(self, frames: Iterable[Frame], now: int) -> None:
        """Handle frames received on links, in this order."""
        for data, link, _ in frames:
            self.receive_frame(data, link, now)

    def receive_frame(self, data: bytes, link: LinkId, now: int) -> None:
        """Handle a frame received on a link."""
        self._latest = max(self._latest, now)
        self._links.receive(data, link, now)

    def receive_closed(self, link: LinkId, now: int) -> None:
        """A link ended, broke or could not be opened."""
        self._latest = max(self._latest, now)
        gone = self._links.remove(link)
        self._fanout.remove(gone.atoms if gone else (), link)
        self._outboxes.closed(link, now)

    def receive_document(self, uri: str, data: bytes | None, now: int) -> None:
        """Handle the answer to KeyWanted: the document found at `uri`, None if there was none."""
        self._links.receive_document(uri, data, now)

    def handle_timer(self, now: int) -> None:
        """Do what is due: stop waiting for keys, reopen links, resend or give up messages without a response."""
        if self._latest - now >= CLOCK_STEP_US:
            self._links.handle_clock_step(now)
            self._outboxes.handle_clock_step(now)
        self._latest = now
        self._links.handle_timer(now)
        for uri in self._outboxes.handle_timer(now):
            self._give_up(uri, now)

    def next_timer(self) -> int | None:
        """When to call `handle_timer`."""
        times = (self._links.next_timer(), self._outboxes.next_timer())
        return min((due for due in times if due is not None), default=None)

    def events(self) -> list[Event]:
        """What happened since the last call."""
        return self._output.drain_events()

    def to_send(self) -> list[Outgoing]:
        """What to send once the observations of `events` are durable."""
        return self._output.drain_outgoing()

    def queues(self, now: int) -> list[QueueStatus]:
        """What is owed to other nodes."""
        return self._outboxes.status(now)

    def status(self, now: int) -> NodeStatus:
        """The node in numbers; visits each atom and connection."""
        ledger = self.ledger
        return NodeStatus(
            hops=dict(self._output.counts),
            atoms=Counter(atom.state for atom in ledger.atoms.values()),
            connections=Counter(each.state for each in ledger.connections.values() if each.state is not None),
            chains={**ledger.chains, ChainState.AWAITING_RECIPIENT: len(ledger.sent)},
            links=self._links.count(),
            queues=self.queues(now),
            keys_pinned=self.keys.pinned,
            keys_fetched=self.keys.fetched,
            links_waiting=self._links.waiting,
        )

    def _take_bundle(self, bundle: Bundle, link: Link, now: int) -> None:
        """Handle a frame; raises RemoteProtocolError if no one can be told why it is refused."""
        if link.kind is LinkKind.OWNER:
            self._take_from_owner(bundle, link, now)
        else:
            self._take_from_node(bundle, link, now)

    # -- from owners

    def _take_from_owner(self, bundle: Bundle, link: Link, now: int) -> None:
        message = bundle.messages[0]
        if len(bundle.messages) != 1 or message.direction is not Direction.OWNER:
            raise RemoteProtocolError(Reason.INVALID_SCHEMA, "an owner sends one message of its own per dataset")
        if v.node_of_atom(message.sender or "") != self.uri:
            raise RemoteProtocolError(Reason.WRONG_NODE, f"{message.sender} is not an atom of this node")
        try:
            self._verifier.verify(message, self._responses.key_for(message))
            answered = self.ledger.first.get(message.address)
            if answered is not None:
                self._answer_again(message, answered, link)
                return
            if message.type is MessageType.REGISTER:
                check_registration_clock(message, now, self.settings)
                link.atoms.add(message.atom or "")
                self._fanout.register(self.ledger.atoms[message.atom or ""], link.name, message.after or 0, now)
                return
            check_clock(message, now, self.settings)
            check_owner_message(message, self.ledger)
            self._check_room(message)
        except RemoteProtocolError as error:
            self._refuse(message, Refusal(error.reason, error.detail, True), link, now)
            return
        self._output.observe(Stage.ACCEPTED, message, message.sender, now)
        if message.type in v.ATOM_TYPES:
            self._store_atom_specific(message, link, now)
        else:
            self._follow(link, message.sender or "")
            self._store_first(message, now)

    def _check_room(self, message: Message) -> None:
        node = v.node_of_atom(message.recipient or "")
        atom = message.sender or ""
        if message.type in v.CONNECTION_TYPES and node != self.uri and not self._outboxes.make_room(node, atom):
            raise RemoteProtocolError(Reason.QUEUE_FULL, f"too many messages wait for {node} or for other nodes")
        if message.type is MessageType.CREATE and len(self.ledger.atoms) >= self.settings.max_atoms:
            raise RemoteProtocolError(Reason.QUEUE_FULL, f"the node has {self.settings.max_atoms} atoms already")

    def _follow(self, link: Link, atom: str) -> None:
        """Send the client the answers to its new message of an atom; a known message could come from a partner."""
        link.atoms.add(atom)
        self._fanout.follow(self.ledger.atoms[atom], link.name)

    def _answer_again(self, message: Message, answered: Address, link: Link) -> None:
        """Resend the stored responses, unless the client has them in its log or will get them there."""
        if link.name in self.ledger.atoms[message.sender or ""].links:
            return
        self._send_stored(link, (message.address, answered))
        second = self.ledger.acknowledged.get(message.address)
        if second is not None:
            self._send_stored(link, (second,))
        elif message.uri in self.ledger.sent:
            self._fanout.await_answer(message.uri, link.name)

    def _send_stored(self, link: Link, addresses: tuple[Address, ...]) -> None:
        raws = [self.ledger.archive.raw(address) for address in addresses]
        self._output.send_frame(link.name, b"".join(raw for raw in raws if raw is not None))

    def _store_atom_specific(self, message: Message, link: Link, now: int) -> None:
        response = self._responses.build_for_atom(message, now)
        atom = self.ledger.store_atom_specific(message, response)
        self._verifier.trust(response)
        self._output.observe(Stage.CREATED, response, None, now)
        if message.type is MessageType.CREATE:
            self.keys.pin(atom.uri, atom.key)
            atom.links[link.name] = 0
            link.atoms.add(atom.uri)
        else:
            self._follow(link, atom.uri)
        self._fanout.send_newest(atom, (message, response), now)
        for follow_up in self._responses.build_follow_ups(message, atom):
            self._verifier.trust(follow_up)
            self._output.observe(Stage.CREATED, follow_up, None, now)
            self._store_first(follow_up, now)

    def _store_first(self, message: Message, now: int) -> None:
        """Steps 2 and 3: store m, make s1, echo both, queue both for the other node."""
        response = self._responses.build_first(message, now)
        connection = self.ledger.store_first(message, response)
        self._verifier.trust(response)
        self._output.observe(Stage.CREATED, response, None, now)
        bundle = encode_bundle((message, response))
        self._fanout.send_newest(self.ledger.atoms[connection.atom], (message, response), now, bundle)
        if v.node_of_atom(message.recipient or "") == self.uri:
            # Two atoms on one node: no shortcut, both containers get m and their response.
            self._take_delivery(message, response, None, now)
        else:
            self._outboxes.enqueue(message.uri, bundle, now)

    def _refuse(self, message: Message, refusal: Refusal, link: Link | None, now: int) -> Message:
        """Journal the refusal and answer with a FailureResponse, which all owners get if the message is genuine."""
        sender = message.sender or self.uri
        source = sender if refusal.is_first else v.node_of_atom(sender)
        if link is not None and not refusal.is_genuine:
            source = link.counterpart
        self._output.reject_message(message, source, refusal.reason, now)
        response = self._responses.build_failure(message, refusal, now)
        self._verifier.trust(response)
        self._output.observe(Stage.CREATED, response, None, now)
        atom = None
        if refusal.is_genuine and message.type not in UNLOGGED_TYPES:
            self.ledger.archive.put(message.address, message.raw)
            atom = self.ledger.store_refusal(message.address, response, is_first=refusal.is_first)
        if atom is not None:
            self._fanout.send_newest(atom, (message, response), now)
        if link is not None and (atom is None or not atom.has_client(link.name)):
            parts = (message, response) if refusal.is_first else (response,)
            self._output.send_frame(link.name, encode_bundle(parts))
        return response

    # -- from nodes

    def _take_from_node(self, bundle: Bundle, link: Link, now: int) -> None:
        messages = bundle.messages
        is_pair = len(messages) == 2 and messages[0].type in v.CONNECTION_TYPES and messages[1].is_response
        if is_pair and is_by_senders_node(messages[1]):
            self._take_delivery(messages[0], messages[1], link, now)
        elif len(messages) == 1 and messages[0].is_response:
            self._take_acknowledgement(messages[0], now)
        else:
            raise RemoteProtocolError(Reason.INVALID_SCHEMA, "a node sends m with s1, or one response, per dataset")

    def _take_delivery(self, message: Message, first: Message, link: Link | None, now: int) -> None:
        """Steps 4 and 5: take m and s1, make s2, answer with it, send all three to the receiving atom's owners."""
        if v.node_of_atom(message.recipient or "") != self.uri:
            raise RemoteProtocolError(Reason.WRONG_NODE, f"{message.recipient} is not an atom of this node")
        answered = self.ledger.second.get(message.address)
        if answered is not None:
            if link is not None:
                self._send_stored(link, (answered,))
            return
        try:
            for part in (message, first):
                self._verify(part, now)
                check_clock(part, now, self.settings)
            check_delivery(message, first, self.ledger)
        except RemoteProtocolError as error:
            failure = self._refuse(message, Refusal(error.reason, error.detail, False), link, now)
            if link is None:
                # Within one node the failure is also the other node's response.
                self._acknowledge(failure, now)
            return
        self._store_second(message, first, link, now)

    def _store_second(self, message: Message, first: Message, link: Link | None, now: int) -> None:
        sender_node = v.node_of_atom(message.sender or "")
        response = self._responses.build_second(message, first, now)
        if link is not None:
            self._output.observe(Stage.ACCEPTED, message, sender_node, now)
            self._output.observe(Stage.ACCEPTED, first, sender_node, now)
        connection = self.ledger.store_second(message, first, response)
        self._verifier.trust(response)
        self._output.observe(Stage.CREATED, response, None, now)
        self._fanout.send_newest(self.ledger.atoms[connection.atom], (message, first, response), now)
        if link is None:
            self._acknowledge(response, now)
        else:
            self._outboxes.hurry(sender_node, now)
            self._output.observe_again(Stage.FORWARDED, response.address, sender_node, now)
            self._output.send_frame(link.name, encode_bundle((response,)))

    def _take_acknowledgement(self, response: Message, now: int) -> None:
        """Step 6: handle the other node's response to a message of ours."""
        self._verify(response, now)
        if check_acknowledgement(response, self.ledger):
            self._output.observe(Stage.ACCEPTED, response, response.signer, now)
            self._acknowledge(response, now)

    def _acknowledge(self, response: Message, now: int) -> None:
        sent = self.ledger.store_acknowledgement(response)
        self._fanout.send_newest(self.ledger.atoms[sent.connection.atom], (response,), now)
        self._outboxes.acknowledge(response.responding_to or "", sent.destination, sent.message, now)

    def _give_up(self, uri: str, now: int) -> None:
        """Tell the owners that the recipient's node has not answered within the lifetime of a message."""
        sent = self.ledger.sent[uri]
        recipient = v.atom_of_socket(sent.connection.target_socket)
        self._output.observe_again(Stage.UNDELIVERABLE, sent.message, recipient, now, Reason.UNREACHABLE_NODE)
        response = self._responses.build_undeliverable(sent, now)
        self._verifier.trust(response)
        self._output.observe(Stage.CREATED, response, None, now)
        self.ledger.store_undeliverable(response)
        self._fanout.send_newest(self.ledger.atoms[sent.connection.atom], (response,), now)

    def _verify(self, message: Message, now: int) -> None:
        key = self.keys.find(expected_signer(message), now)
        if key is None:
            raise RemoteProtocolError(Reason.UNKNOWN_KEY, f"no key of {message.signer} is known")
        self._verifier.verify(message, key)
