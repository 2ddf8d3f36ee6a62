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

from collections.abc import Callable, Iterable
from typing import Final

from dovetail.errors import LocalProtocolError
from dovetail.hop import Address, Hop, Observation, Stage, address_of
from dovetail.swarm.contacts import Chance, Contact, Contacts, Route, make_route
from dovetail.swarm.content import (
    HASH_BYTES,
    MAX_CONTENT_BYTES,
    Content,
    MsgHash,
    check_times,
    check_work,
    decode_content,
    decode_fields,
    encode_content,
    expiration_ms,
    message_address,
)
from dovetail.swarm.dag import NOTHING_SPECIAL, Added, Dag, Entry
from dovetail.swarm.events import (
    CollisionFound,
    CycleFound,
    Event,
    MessageAccepted,
)
from dovetail.swarm.exchange import INDICATOR as EXCHANGE
from dovetail.swarm.exchange import Endpoint, Hello, PeerAddress, decode_exchange
from dovetail.swarm.fragments import INDICATOR as FRAGMENT
from dovetail.swarm.fragments import Assembler
from dovetail.swarm.limits import RefusalBook
from dovetail.swarm.neighbours import Neighbours
from dovetail.swarm.obfuscation import decode_obfuscated, is_obfuscated
from dovetail.swarm.outbox import Outbox, Purpose
from dovetail.swarm.packet import HEADER_BYTES, SwarmSigner
from dovetail.swarm.queries import (
    PullHashes,
    PullRange,
    RangeList,
    decode_message,
)
from dovetail.swarm.refusals import Refusal, SelfReference
from dovetail.swarm.repair import Repair
from dovetail.swarm.settings import PeerSettings, SwarmSettings
from dovetail.swarm.status import PeerStatus

CONTENT_HEAD: Final = b"\x79\x10"
EXCHANGE_HEAD: Final = bytes((EXCHANGE,))
FIRST_PUSHES: Final = 12
"""So many copies of a new message are all lost once in two million times at 30 % loss."""
RELAY_EPOCHS: Final = 2
"""A message that was pulled is relayed only while it is this young, and never when it was found by asking for all the
past: whoever joins does not repeat it."""
CLOCK_STEP_US: Final = 2_000_000
"""A clock that goes back by less than this only delays what is due."""


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
        self.has_application = True
        """Whether somebody takes messages: only then are they told and observed as delivered."""
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
        self._refusals = RefusalBook(settings.rejections_per_second)
        self._events: list[Event] = []
        self._repair = Repair(swarm, settings, self._dag, self._contacts, self._outbox, self._events, chance, now)
        self._received_bytes = 0
        self._received_datagrams = 0
        self._accepted = 0
        self._duplicates = 0
        self._latest_us = now
        for endpoint in bootstrap:
            self._neighbours.bootstrap(endpoint, now)

    # -- the five verbs

    def receive_datagram(self, data: bytes, sender: str, now: int) -> None:
        """One datagram came from an endpoint."""
        if now < self._latest_us:
            self._notice_clock(now)
        self._latest_us = now
        size = len(data)
        self._received_datagrams += 1
        self._received_bytes += size
        endpoint = Endpoint(sender)
        packet, is_masked = data, False
        if not self._signer.knows(data, now // 1000):
            is_masked = is_obfuscated(data)
            try:
                opened = self._open(data, endpoint, now)
            except Refusal as refusal:
                self._refuse(refusal, data, endpoint, now)
                return
            if opened is None:
                return
            packet = opened
        contact = self._contacts.meet(endpoint, now)
        contact.heard_us = now
        contact.received_bytes += size
        contact.is_masked = is_masked
        message = packet[HEADER_BYTES:]
        try:
            if message.startswith(CONTENT_HEAD):
                self._receive_content(message, contact, now)
            elif message.startswith(EXCHANGE_HEAD):
                self._receive_exchange(message, contact, now)
            else:
                self._receive_query(message, contact, now)
        except Refusal as refusal:
            self._refuse(refusal, message, endpoint, now)

    def handle_timer(self, now: int) -> None:
        """Do what has become due."""
        if now < self._latest_us:
            self._notice_clock(now)
        self._latest_us = now
        self._expire(now)
        self._neighbours.handle_timer(now)
        for contact in self._neighbours.returned:
            self._repair.gossip.prefer(contact, now)
        self._neighbours.returned.clear()
        self._repair.handle_timer(now)
        self._flush(now)

    def next_timer(self) -> int | None:
        """When `handle_timer` wants to be called."""
        due = min(self._neighbours.due_us, self._repair.next_due_us)
        expiry_ms = self._dag.next_expiry_ms
        return due if expiry_ms is None else min(due, expiry_ms * 1000)

    def events(self) -> list[Event]:
        """What happened since the last time; observations go to the journal before anything is sent."""
        events = self._events[:]
        self._events.clear()
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
            timestamp_ms, ttl_epochs, refers = decode_fields(message)
            check_work(message, self.rules.pow_target)
            expires_ms = check_times(timestamp_ms, ttl_epochs, now // 1000, self.rules)
        except Refusal as refusal:
            raise LocalProtocolError(f"cannot publish: {refusal.detail}") from None
        address = self._address_of(message)
        if address not in self._dag:
            msg_hash = MsgHash(address[:HASH_BYTES])
            entry = Entry(address, msg_hash, timestamp_ms, expires_ms, ttl_epochs, refers, message)
            self._admit(entry, None, now)
            if ttl_epochs:
                self._repair.own.add(address, now)
        return address

    def restore(self, hops: Iterable[Hop], now: int) -> int:
        """Take back what the journal holds and is not expired; how many messages that were.

        Own messages that are young and that nobody is known to have are pushed again: they may never have been sent.
        """
        bodies: dict[Address, bytes] = {}
        taken: dict[Address, tuple[int, Stage]] = {}
        served: set[Address] = set()
        for hop in hops:
            if hop.raw is not None:
                bodies[hop.message] = hop.raw
            if hop.stage in (Stage.ACCEPTED, Stage.CREATED):
                taken[hop.message] = hop.at_us, hop.stage
            elif hop.stage is Stage.SERVED:
                served.add(hop.message)
        for address, (at_us, stage) in taken.items():
            raw = bodies.get(address)
            if raw is not None and address not in self._dag:
                self._take_back(address, raw, at_us, stage, now)
        for address in served:
            self._repair.own.confirm(address)
        return len(self._dag)

    def _take_back(self, address: Address, raw: bytes, at_us: int, stage: Stage, now: int) -> None:
        timestamp_ms, ttl_epochs, refers = decode_fields(raw)
        expires_ms = expiration_ms(timestamp_ms, ttl_epochs, self.rules.epoch_ms)
        if expires_ms * 1000 <= now:
            return
        entry = Entry(address, MsgHash(address[:HASH_BYTES]), timestamp_ms, expires_ms, ttl_epochs, refers, raw)
        self._dag.add(entry)
        repair = self._repair
        if at_us // 1000 - timestamp_ms > repair.latecomers.from_age_ms:
            repair.latecomers.note(entry, at_us)
        if stage is Stage.ACCEPTED:
            repair.confirm_referred(entry)
        elif ttl_epochs and now // 1000 - timestamp_ms <= RELAY_EPOCHS * self.rules.epoch_ms:
            repair.own.add(address, now)

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
            missing=len(self._repair.wants),
            unconfirmed=len(self._repair.own),
            accepted=self._accepted,
            duplicates=self._duplicates,
            late_answers=self._neighbours.late_answers + self._repair.gossip.late_answers,
            refused={str(reason): count for reason, count in sorted(self._refusals.counts.items())},
            refused_journaled=self._refusals.journaled,
            received_bytes=self._received_bytes,
            received_datagrams=self._received_datagrams,
            sent_bytes={str(purpose): self._outbox.bytes_sent[purpose] for purpose in Purpose},
            sent_datagrams=self._outbox.datagrams_sent,
        )

    def _notice_clock(self, now: int) -> None:
        """The clock was set back: what was planned for a time that is far away now is planned anew.

        Messages may have expired by the wrong clock; asking for everything brings them back.
        """
        if self._latest_us - now < CLOCK_STEP_US:
            return
        self._neighbours.turn_back(now)
        self._repair.turn_back(now)
        self._assembler = Assembler()

    # -- receiving

    def _open(self, data: bytes, endpoint: Endpoint, now: int) -> bytes | None:
        """The packet of this swarm in a datagram that is masked or a fragment; None while fragments are missing."""
        packet: bytes | None = decode_obfuscated(data) if is_obfuscated(data) else data
        if packet and packet[0] == FRAGMENT:
            packet = self._assembler.add(packet, endpoint, now)
        if packet is not None:
            self._signer.subband_of(packet, now // 1000)
        return packet

    def _receive_content(self, message: bytes, contact: Contact, now: int) -> None:
        address = self._address_of(message)
        contact.delivered += 1
        if address in self._dag.entries or address in self._dag.passing:
            self._duplicates += 1
            self._repair.own.confirm(address)
            return
        timestamp_ms, ttl_epochs, refers = decode_fields(message)
        check_work(message, self.rules.pow_target)
        expires_ms = check_times(timestamp_ms, ttl_epochs, now // 1000, self.rules)
        msg_hash: MsgHash = address[:HASH_BYTES]  # type: ignore[assignment]  # as for `message_address`
        if msg_hash in refers:
            raise SelfReference("it refers to its own hash")
        self._admit(Entry(address, msg_hash, timestamp_ms, expires_ms, ttl_epochs, refers, message), contact, now)

    def _admit(self, entry: Entry, contact: Contact | None, now: int) -> None:
        """Take a new message in: to the graph, the journal, the application and the links."""
        added = self._dag.add(entry)
        self._accepted += 1
        address, message = entry.address, entry.raw
        self._events.append(
            Observation(
                at_us=now,
                stage=Stage.CREATED if contact is None else Stage.ACCEPTED,
                message=address,
                counterparts=() if contact is None else contact.uris,
                raw=message,
                expires_us=entry.expires_ms * 1000,
            )
        )
        repair = self._repair
        age_ms = now // 1000 - entry.timestamp_ms
        want = repair.note_arrival(entry, now)
        if contact is not None:
            if self.has_application:
                self._events.append(Observation(at_us=now, stage=Stage.DELIVERED, message=address))
            self._neighbours.note_accepted(contact)
            repair.gossip.note_accepted(age_ms, now)
        if age_ms > repair.latecomers.from_age_ms:
            repair.latecomers.note(entry, now)
        if self.has_application:
            source = self.uri if contact is None else contact.uri
            self._events.append(MessageAccepted(address, decode_content(message), source, now))
        if added is not NOTHING_SPECIAL:
            self._report(entry, added)
        if contact is not None:
            if added.missing:
                repair.want_references(entry, added.missing, contact, now)
            if repair.own:
                repair.confirm_referred(entry)
        if want is None or not want.attempts or (not want.is_history and age_ms <= RELAY_EPOCHS * self.rules.epoch_ms):
            self._relay(message, address, contact, now)

    def _report(self, entry: Entry, added: Added) -> None:
        for first in added.collides_with:
            self._events.append(CollisionFound(first, entry.address))
        if added.cycle:
            self._events.append(CycleFound(added.cycle))

    def _relay(self, message: bytes, address: Address, source: Contact | None, now: int) -> None:
        route = self._contacts.route_from(source) if source is not None else self._first_route()
        if route.receivers:
            self._outbox.send(message, route.receivers, Purpose.RELAY, now)
            self._events.append(Observation(at_us=now, stage=Stage.FORWARDED, message=address, counterparts=route.uris))

    def _first_route(self) -> Route:
        """All links and, where they are few, others: the first push decides whether a message gets anywhere at all."""
        linked = self._contacts.linked
        more = self._contacts.pick(
            FIRST_PUSHES - len(linked), lambda contact: contact.is_validated and not contact.is_linked
        )
        return make_route([*linked, *more])

    def _receive_query(self, message: bytes, contact: Contact, now: int) -> None:
        match decode_message(message):
            case PullHashes() as query:
                self._repair.answer_hashes(query, contact, now)
            case PullRange() as query:
                self._repair.answer_range(query, contact, now)
            case RangeList() as answer:
                self._repair.receive_list(answer, contact, now)
                self._flush(now)
            case Content():
                raise AssertionError("content messages are dispatched before")

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
        is_kept = len(data) <= MAX_CONTENT_BYTES
        self._events.append(
            Observation(
                at_us=now,
                stage=Stage.REJECTED,
                message=address_of(data),
                counterparts=(contact.uri if contact else f"udp://{endpoint}",),
                reason=refusal.reason,
                raw=data if is_kept else None,
                size=None if is_kept else len(data),
            )
        )

    def _expire(self, now: int) -> None:
        for entry in self._dag.expire(now // 1000):
            self._repair.note_expired(entry.address, now)

    def _flush(self, now: int) -> None:
        """Send what the neighbours and the gossip have to say."""
        for outbox, purpose in (
            (self._neighbours.outbox, Purpose.UPKEEP),
            (self._repair.gossip.outbox, Purpose.REPAIR),
        ):
            for contact, message in outbox:
                if contact.is_validated or not contact.received_bytes or contact.may_send(len(message) + 8, now):
                    self._outbox.send(message, (contact,), purpose, now)
            outbox.clear()
        self._events += self._neighbours.events
        self._neighbours.events.clear()
