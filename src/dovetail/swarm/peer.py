"""One peer of a swarm, as a pure state machine: datagrams and time in, datagrams and events out.

A datagram is unmasked (UEP-6), assembled (UEP-7), matched to the swarm (UEP-10) and then is a content message, a
pull, a list (UEP-12) or part of the peer exchange. A new content message costs two hashes, its address and its work;
one that is known costs one. What is accepted goes to the journal and the application and is relayed to the forward
links; what it refers to and is not here is wanted. Whatever is refused is counted by reason; the journal gets a
bounded share of it.

The caller feeds `receive_datagram` and `handle_timer`, then journals the observations among `events()`, then sends
`to_send()`, then arms `next_timer()`. To publish: `compose`, solve the work outside, `publish_solved`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from dovetail.errors import LocalProtocolError
from dovetail.hop import Address, Hop, Observation, Reason, Stage, address_of
from dovetail.swarm.contacts import Chance, Contact, Contacts
from dovetail.swarm.content import (
    HASH_BYTES,
    MAX_CONTENT_BYTES,
    Content,
    check_lifetime,
    check_work,
    decode_content,
    encode_content,
    expiration_ms,
    latest_referee_expiration_ms,
    message_address,
)
from dovetail.swarm.dag import Added, Dag, Entry, make_entry
from dovetail.swarm.events import (
    CollisionFound,
    CycleFound,
    Event,
    GapFilled,
    GapFound,
    GapGivenUp,
    MessageAccepted,
)
from dovetail.swarm.exchange import INDICATOR as EXCHANGE
from dovetail.swarm.exchange import Endpoint, Hello, PeerAddress, decode_exchange
from dovetail.swarm.fragments import INDICATOR as FRAGMENT
from dovetail.swarm.fragments import Assembler
from dovetail.swarm.gossip import Gossip, OwnMessages
from dovetail.swarm.limits import RefusalBook
from dovetail.swarm.neighbours import Neighbours
from dovetail.swarm.obfuscation import decode_obfuscated, is_obfuscated
from dovetail.swarm.outbox import Outbox, Purpose
from dovetail.swarm.packet import HEADER_BYTES, SwarmSigner
from dovetail.swarm.pull import MAX_WANTED, Want, Wants
from dovetail.swarm.queries import (
    PullHashes,
    PullRange,
    RangeList,
    decode_message,
    encode_pull_hashes,
)
from dovetail.swarm.refusals import Refusal, SelfReference
from dovetail.swarm.serving import Serving
from dovetail.swarm.settings import PeerSettings, SwarmSettings
from dovetail.swarm.status import PeerStatus

CONTENT_HEAD: Final = b"\x79\x10"
RELAY_EPOCHS: Final = 2
"""A message that was pulled is relayed only while it is this young, and never when it was found by asking for all the
past: whoever joins does not repeat it."""
PUSH_AGAIN_PEERS: Final = 2


class Peer:
    """The swarm as one peer sees it."""

    def __init__(
        self,
        swarm: SwarmSettings,
        address: PeerAddress,
        chance: Chance,
        now: int,
        *,
        settings: PeerSettings | None = None,
        bootstrap: Iterable[Endpoint] = (),
        address_of_message: Callable[[bytes], Address] = message_address,
    ) -> None:
        settings = settings or PeerSettings()
        self.swarm = swarm
        self.rules = swarm.rules
        self.address = address
        self.uri = f"swarm://{swarm.name}/{address.hex()}"
        self._chance = chance
        self._address_of = address_of_message
        self._signer = SwarmSigner(swarm.key, swarm.slot_slack)
        self._assembler: Assembler[Endpoint] = Assembler()
        self._outbox = Outbox(self._signer, chance, settings.obfuscate)
        self._contacts = Contacts(
            address, swarm.name, chance, settings.serve_bytes_per_second, settings.queries_per_second
        )
        self._neighbours = Neighbours(self._contacts, settings, chance, now)
        self._dag = Dag(swarm.epoch_ms)
        self._serving = Serving(self._dag, settings.push_limit)
        self._wants = Wants()
        lifetime_ms = swarm.epoch_ms * swarm.max_ttl_epochs
        self._gossip = Gossip(self._contacts, chance, lifetime_ms, swarm.max_future_ms, now)
        self._own = OwnMessages()
        self._refusals = RefusalBook(settings.rejections_per_second)
        self._events: list[Event] = []
        self._received_bytes = 0
        self._received_datagrams = 0
        self._accepted = 0
        self._duplicates = 0
        for endpoint in bootstrap:
            self._neighbours.bootstrap(endpoint, now)

    # -- the five verbs

    def receive_datagram(self, data: bytes, sender: str, now: int) -> None:
        """One datagram came from an endpoint."""
        self._received_datagrams += 1
        self._received_bytes += len(data)
        endpoint = Endpoint(sender)
        try:
            packet = self._open(data, endpoint, now)
            if packet is None:
                return
            if not self._signer.knows(packet, now // 1000):
                self._signer.subband_of(packet, now // 1000)
        except Refusal as refusal:
            self._refuse(refusal, data, endpoint, now)
            return
        contact = self._contacts.meet(endpoint, now)
        contact.heard_us = now
        contact.received_bytes += len(data)
        contact.is_masked = is_obfuscated(data)
        message = packet[HEADER_BYTES:]
        try:
            if message[:2] == CONTENT_HEAD:
                self._receive_content(message, contact, now)
            elif message[:1] == bytes((EXCHANGE,)):
                self._receive_exchange(message, contact, now)
            else:
                self._receive_query(message, contact, now)
        except Refusal as refusal:
            self._refuse(refusal, message, endpoint, now)

    def handle_timer(self, now: int) -> None:
        """Do what has become due."""
        self._expire(now)
        self._neighbours.handle_timer(now)
        for contact in self._neighbours.returned:
            self._gossip.prefer(contact, now)
        self._neighbours.returned.clear()
        self._gossip.handle_timer(now, self._has_room)
        self._pull(now)
        self._push_again(now)
        self._flush(now)

    def next_timer(self) -> int | None:
        """When `handle_timer` wants to be called."""
        due = min(self._neighbours.due_us, self._gossip.due_us)
        for other in (self._wants.next_due_us, self._own.next_due_us):
            if other is not None and other < due:
                due = other
        expiry_ms = self._dag.next_expiry_ms
        return due if expiry_ms is None else min(due, expiry_ms * 1000)

    def events(self) -> list[Event]:
        """What happened since the last time; observations go to the journal before anything is sent."""
        events, self._events = self._events, []
        return events

    def to_send(self) -> list[tuple[Endpoint, bytes]]:
        """Datagrams to send now."""
        return self._outbox.drain()

    # -- the application's verbs

    def compose(self, payload: bytes, ttl_epochs: int, now: int) -> bytes:
        """A message without its work: the caller solves it and calls `publish_solved` within its lifetime."""
        if not 0 <= ttl_epochs <= self.rules.max_ttl_epochs:
            raise LocalProtocolError(f"ttl of {ttl_epochs} epochs, expected 0 to {self.rules.max_ttl_epochs}")
        now_ms = now // 1000
        expires_ms = expiration_ms(now_ms, ttl_epochs, self.rules.epoch_ms)
        references = self._dag.choose_references(now_ms, expires_ms) if ttl_epochs else ()
        try:
            return encode_content(
                Content(timestamp_ms=now_ms, ttl_epochs=ttl_epochs, references=references, payload=payload)
            )
        except ValueError as error:
            raise LocalProtocolError(str(error)) from None

    def publish_solved(self, message: bytes, now: int) -> Address:
        """Bring a solved message into the swarm; publishing the same one again does nothing."""
        try:
            content = decode_content(message)
            check_work(message, self.rules.pow_target)
            check_lifetime(content, now // 1000, self.rules)
        except Refusal as refusal:
            raise LocalProtocolError(f"cannot publish: {refusal.detail}") from None
        address = self._address_of(message)
        if address not in self._dag:
            self._admit(message, address, content, None, now)
            if content.ttl_epochs:
                self._own.add(address, now)
        return address

    def restore(self, hops: Iterable[Hop], now: int) -> int:
        """Take back what the journal holds and is not expired; how many messages that were."""
        bodies: dict[Address, bytes] = {}
        taken: dict[Address, None] = {}
        for hop in hops:
            if hop.raw is not None:
                bodies[hop.message] = hop.raw
            if hop.stage in (Stage.ACCEPTED, Stage.CREATED):
                taken[hop.message] = None
        now_ms = now // 1000
        for address in taken:
            raw = bodies.get(address)
            if raw is None or address in self._dag:
                continue
            entry = make_entry(address, decode_content(raw), raw, self.rules)
            if entry.expires_ms > now_ms:
                self._dag.add(entry)
        return len(self._dag)

    def messages_between(self, start_ms: int, end_ms: int) -> list[Entry]:
        """Unexpired messages of this time, both ends included, in order."""
        return list(self._dag.between(start_ms, end_ms))

    def addresses(self) -> set[Address]:
        """All unexpired messages that others may pull."""
        return self._dag.addresses()

    def status(self) -> PeerStatus:
        """Numbers and neighbours for people and metrics."""
        contacts = self._contacts
        return PeerStatus(
            uri=self.uri,
            swarm=self.swarm.swarm_address.hex(),
            forward=[contact.uri for contact in contacts.forward],
            backward=[contact.uri for contact in contacts.backward],
            contacts=len(contacts.known),
            strangers=contacts.stranger_count,
            messages=len(self._dag),
            tips=len(self._dag.tips),
            missing=len(self._wants),
            unconfirmed=len(self._own),
            accepted=self._accepted,
            duplicates=self._duplicates,
            refused={str(reason): count for reason, count in sorted(self._refusals.counts.items())},
            refused_journaled=self._refusals.journaled,
            received_bytes=self._received_bytes,
            received_datagrams=self._received_datagrams,
            sent_bytes={str(purpose): self._outbox.bytes_sent[purpose] for purpose in Purpose},
            sent_datagrams=self._outbox.datagrams_sent,
        )

    # -- receiving

    def _open(self, data: bytes, endpoint: Endpoint, now: int) -> bytes | None:
        packet = decode_obfuscated(data) if is_obfuscated(data) else data
        if packet[:1] == bytes((FRAGMENT,)):
            return self._assembler.add(packet, endpoint, now)
        return packet

    def _receive_content(self, message: bytes, contact: Contact, now: int) -> None:
        address = self._address_of(message)
        contact.delivered += 1
        if address in self._dag:
            self._duplicates += 1
            self._own.confirm(address)
            return
        content = decode_content(message)
        check_work(message, self.rules.pow_target)
        check_lifetime(content, now // 1000, self.rules)
        if content.references and address[:HASH_BYTES] in [edge.msg_hash for edge in content.references]:
            raise SelfReference("it refers to its own hash")
        self._admit(message, address, content, contact, now)

    def _admit(self, message: bytes, address: Address, content: Content, contact: Contact | None, now: int) -> None:
        entry = make_entry(address, content, message, self.rules)
        added = self._dag.add(entry)
        self._accepted += 1
        source = self.uri if contact is None else contact.uri
        stage = Stage.CREATED if contact is None else Stage.ACCEPTED
        events = self._events
        events.append(
            Observation(
                at_us=now,
                stage=stage,
                message=address,
                counterparts=() if contact is None else (source,),
                raw=message,
                expires_us=entry.expires_ms * 1000,
            )
        )
        want = self._wants.resolve(entry.msg_hash)
        if want is not None:
            self._note_pulled(want, entry, now)
        if contact is not None:
            events.append(Observation(at_us=now, stage=Stage.DELIVERED, message=address))
            self._neighbours.note_accepted(contact)
            self._gossip.note_accepted(now // 1000 - content.timestamp_ms, now)
        events.append(MessageAccepted(address, content, source, now))
        self._follow(entry, added, contact, now)
        age_ms = now // 1000 - content.timestamp_ms
        if want is None or not want.attempts or (not want.is_history and age_ms <= RELAY_EPOCHS * self.rules.epoch_ms):
            self._relay(message, address, contact, now)

    def _follow(self, entry: Entry, added: Added, contact: Contact | None, now: int) -> None:
        """Want what is missing, report what is odd, and see which own messages others refer to."""
        for first in added.collides_with:
            self._events.append(CollisionFound(first, entry.address))
        if added.cycle:
            self._events.append(CycleFound(added.cycle))
        if contact is None:
            return
        for edge in added.missing:
            deadline_ms = latest_referee_expiration_ms(entry.expires_ms, edge.epoch_diff, self.rules.epoch_ms)
            if deadline_ms is None or deadline_ms > now // 1000:
                self._wants.add(edge.msg_hash, contact.endpoint, now, referrer=entry.address, deadline_ms=deadline_ms)
        if len(self._own):
            for edge in entry.references:
                for referee in self._dag.by_hash(edge.msg_hash):
                    self._own.confirm(referee.address)

    def _relay(self, message: bytes, address: Address, source: Contact | None, now: int) -> None:
        if source is None:
            # the first push decides whether a message gets anywhere at all, so it goes to all links
            receivers = self._contacts.linked
        else:
            receivers = [contact for contact in self._contacts.forward if contact is not source]
        if receivers:
            self._outbox.send(message, receivers, Purpose.RELAY, now)
            self._events.append(
                Observation(
                    at_us=now,
                    stage=Stage.FORWARDED,
                    message=address,
                    counterparts=tuple([contact.uri for contact in receivers]),
                )
            )

    def _receive_query(self, message: bytes, contact: Contact, now: int) -> None:
        match decode_message(message):
            case PullHashes() as query:
                self._serve(self._serving.answer_hashes(query, contact, now), contact, now)
            case PullRange() as query:
                answer, entries = self._serving.answer_range(query, contact, now)
                self._outbox.send(answer, (contact,), Purpose.REPAIR, now)
                self._serve(entries, contact, now)
            case RangeList() as answer:
                self._receive_list(answer, contact, now)
            case Content():
                raise AssertionError("content messages are dispatched before")

    def _receive_list(self, answer: RangeList, contact: Contact, now: int) -> None:
        is_history = self._gossip.find(answer.ticket, contact).is_full
        found = 0
        for msg_hash in answer.hashes:
            entries = self._dag.by_hash(msg_hash)
            if entries:
                contact.is_proven = True
                for entry in entries:
                    self._own.confirm(entry.address)
            else:
                self._wants.add(msg_hash, contact.endpoint, now, delay_us=0, is_history=is_history)
                found += 1
        self._contacts.validate(contact)
        self._gossip.receive_list(answer, contact, now, found, self._has_room)
        self._flush(now)

    def _receive_exchange(self, message: bytes, contact: Contact, now: int) -> None:
        exchanged = decode_exchange(message)
        if isinstance(exchanged, Hello):
            self._neighbours.receive_hello(exchanged, contact, now)
        else:
            self._neighbours.receive_answer(exchanged, contact, now)
        self._flush(now)

    def _refuse(self, refusal: Refusal, data: bytes, endpoint: Endpoint, now: int) -> None:
        if not self._refusals.note(refusal.reason, now):
            return
        contact = self._contacts.find(endpoint)
        self._events.append(
            Observation(
                at_us=now,
                stage=Stage.REJECTED,
                message=address_of(data),
                counterparts=(contact.uri if contact else f"udp://{endpoint}",),
                reason=refusal.reason,
                raw=data if len(data) <= MAX_CONTENT_BYTES else None,
                size=len(data),
            )
        )

    # -- repair

    @property
    def _has_room(self) -> bool:
        return len(self._wants) < MAX_WANTED // 2

    def _serve(self, entries: Sequence[Entry], contact: Contact, now: int) -> None:
        for entry in entries:
            self._outbox.send(entry.raw, (contact,), Purpose.REPAIR, now)
            self._events.append(
                Observation(at_us=now, stage=Stage.SERVED, message=entry.address, counterparts=(contact.uri,))
            )

    def _pull(self, now: int) -> None:
        asks, given_up = self._wants.collect(now, self._other_peer, self._chance.random)
        for endpoint, wants in asks.items():
            contact = self._contacts.find(endpoint)
            if contact is None:
                continue
            self._outbox.send(encode_pull_hashes([want.msg_hash for want in wants]), (contact,), Purpose.REPAIR, now)
            for want in wants:
                if want.referrer is not None and not want.is_announced:
                    want.is_announced = True
                    self._events.append(GapFound(want.msg_hash, want.referrer))
        for want in given_up:
            self._note_given_up(want, now)

    def _other_peer(self, want: Want) -> Endpoint | None:
        fit = self._contacts.pick(1, lambda contact: contact.is_validated and contact.endpoint != want.asked)
        return fit[0].endpoint if fit else want.named_by

    def _note_pulled(self, want: Want, entry: Entry, now: int) -> None:
        if want.asked is not None:
            asked = self._contacts.find(want.asked)
            uri = asked.uri if asked else f"udp://{want.asked}"
            self._events.append(Observation(at_us=now, stage=Stage.PULLED, message=entry.address, counterparts=(uri,)))
        if want.is_announced:
            self._events.append(GapFilled(want.msg_hash, entry.address))

    def _note_given_up(self, want: Want, now: int) -> None:
        liar = self._contacts.find(want.named_by)
        if want.referrer is None:
            if liar is not None:
                liar.is_proven = False
            return
        self._events.append(GapGivenUp(want.msg_hash, want.referrer))
        self._events.append(
            Observation(
                at_us=now,
                stage=Stage.PULLED,
                message=want.referrer,
                counterparts=(f"udp://{want.asked}" if liar is None else liar.uri,),
                reason=Reason.GIVEN_UP,
            )
        )

    def _push_again(self, now: int) -> None:
        for address in self._own.collect(now):
            entry = self._dag.get(address)
            receivers = self._contacts.pick(PUSH_AGAIN_PEERS, lambda contact: contact.is_validated)
            if entry is None or not receivers:
                continue
            self._outbox.send(entry.raw, receivers, Purpose.REPAIR, now)
            uris = tuple([contact.uri for contact in receivers])
            self._events.append(Observation(at_us=now, stage=Stage.FORWARDED, message=address, counterparts=uris))

    def _expire(self, now: int) -> None:
        for entry in self._dag.expire(now // 1000):
            if self._own.confirm(entry.address):
                self._events.append(
                    Observation(at_us=now, stage=Stage.EXPIRED, message=entry.address, reason=Reason.LIFETIME_OVER)
                )

    def _flush(self, now: int) -> None:
        """Send what the neighbours and the gossip have to say."""
        for outbox, purpose in ((self._neighbours.outbox, Purpose.UPKEEP), (self._gossip.outbox, Purpose.REPAIR)):
            for contact, message in outbox:
                if contact.is_validated or not contact.received_bytes or contact.may_send(len(message) + 8, now):
                    self._outbox.send(message, (contact,), purpose, now)
            outbox.clear()
        self._events += self._neighbours.events
        self._neighbours.events.clear()
