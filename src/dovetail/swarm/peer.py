"""One peer of a swarm, as a pure state machine: datagrams and time in, datagrams and events out.

A datagram is unmasked (UEP-6), assembled (UEP-7), matched to the swarm (UEP-10) and then is a content message, a
pull, a list (UEP-12) or part of the peer exchange. A new content message goes to the journal and the application and
is relayed to the forward links (`intake`); what it refers to and is not here is wanted (`repair`). Whatever is refused
is counted by reason; the journal gets a bounded share of it.

The caller feeds `receive_datagrams` and `handle_timer`, then journals the observations among `events()`, then sends
`to_send()`, then arms `next_timer()`. To publish: `compose`, solve the work outside, `publish_solved`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from dovetail.model.address import Address, address_of
from dovetail.model.errors import LocalProtocolError
from dovetail.model.hop import Hop, Observation, Stage
from dovetail.swarm.contacts import Chance, Contact, Contacts
from dovetail.swarm.content import (
    HASH_BYTES,
    MAX_CONTENT_BYTES,
    Content,
    MsgHash,
    check_times,
    check_work,
    decode_fields,
    encode_content,
    expiration_ms,
    message_address,
)
from dovetail.swarm.dag import Dag, Entry
from dovetail.swarm.events import Event
from dovetail.swarm.fragments import INDICATOR as FRAGMENT
from dovetail.swarm.fragments import Assembler
from dovetail.swarm.intake import RELAY_EPOCHS, Intake
from dovetail.swarm.limits import RefusalBook
from dovetail.swarm.neighbours import Neighbours
from dovetail.swarm.obfuscation import decode_obfuscated, is_obfuscated
from dovetail.swarm.outbox import Outbox, Purpose
from dovetail.swarm.packet import HEADER_BYTES, SwarmSigner
from dovetail.swarm.peer_exchange import INDICATOR as EXCHANGE
from dovetail.swarm.peer_exchange import OPCODE_HELLO, Endpoint, Hello, PeerAddress, decode_exchange
from dovetail.swarm.queries import (
    PullHashes,
    PullRange,
    RangeList,
    decode_message,
)
from dovetail.swarm.refusals import Refusal
from dovetail.swarm.repair import Repair
from dovetail.swarm.settings import PeerSettings, SwarmSettings
from dovetail.swarm.status import PeerStatus

CONTENT_HEAD: Final = b"\x79\x10"
EXCHANGE_HEAD: Final = bytes((EXCHANGE,))
HELLO_HEAD: Final = bytes((EXCHANGE, OPCODE_HELLO))
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
        self._intake = Intake(
            self.uri,
            self.rules,
            self._dag,
            self._contacts,
            self._neighbours,
            self._repair,
            self._outbox,
            self._events,
            address_of_message,
            self._refuse,
        )
        self._received_bytes = 0
        self._received_datagrams = 0
        self._latest_us = now
        for endpoint in bootstrap:
            self._neighbours.bootstrap(endpoint, now)

    @property
    def has_application(self) -> bool:
        """Whether somebody takes messages: only then are they told and observed as delivered."""
        return self._intake.has_application

    @has_application.setter
    def has_application(self, is_there: bool) -> None:
        self._intake.has_application = is_there

    # -- the five verbs

    def receive_datagram(self, data: bytes, sender: str, now: int) -> None:
        """One datagram came from an endpoint."""
        self.receive_datagrams((data,), sender, now)

    def receive_datagrams(self, datagrams: Sequence[bytes], sender: str, now: int) -> None:
        """Datagrams came from one endpoint, in this order."""
        if now < self._latest_us:
            self._notice_clock(now)
        self._latest_us = now
        self._received_datagrams += len(datagrams)
        self._received_bytes += sum(map(len, datagrams))
        endpoint = Endpoint(sender)
        known = self._signer.known_headers(now // 1000)
        contents: list[bytes] = []
        for data in datagrams:
            if data[:HEADER_BYTES] in known and data.startswith(CONTENT_HEAD, HEADER_BYTES):
                contents.append(data[HEADER_BYTES:])
                continue
            if contents:
                self._receive_contents(contents, endpoint, now)
                contents = []
            self._receive_other(data, endpoint, now)
        if contents:
            self._receive_contents(contents, endpoint, now)

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
            self._intake.publish(entry, now)
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
            accepted=self._intake.accepted,
            duplicates=self._intake.duplicates,
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

    def _receive_contents(self, messages: Sequence[bytes], endpoint: Endpoint, now: int) -> None:
        """Content messages came, each in a datagram of its own that was neither masked nor a fragment."""
        size = sum(map(len, messages)) + HEADER_BYTES * len(messages)
        self._intake.receive(messages, self._hear(endpoint, size, False, now), now)

    def _receive_other(self, data: bytes, endpoint: Endpoint, now: int) -> None:
        """A datagram of any other kind came."""
        is_masked = is_obfuscated(data)
        try:
            packet = self._open(data, endpoint, now)
        except Refusal as refusal:
            self._refuse(refusal, data, endpoint, now)
            return
        if packet is None:
            return
        contact = self._hear(endpoint, len(data), is_masked, now)
        message = packet[HEADER_BYTES:]
        try:
            if message.startswith(CONTENT_HEAD):
                self._intake.receive((message,), contact, now)
            elif message.startswith(EXCHANGE_HEAD):
                self._receive_exchange(message, contact, now)
            else:
                self._receive_query(message, contact, now)
        except Refusal as refusal:
            self._refuse(refusal, message, endpoint, now)

    def _hear(self, endpoint: Endpoint, size: int, is_masked: bool, now: int) -> Contact:
        """So many bytes of this swarm came from an endpoint; who that is."""
        contact = self._contacts.meet(endpoint, now)
        contact.heard_us = now
        contact.received_bytes += size
        contact.is_masked = is_masked
        return contact

    def _open(self, data: bytes, endpoint: Endpoint, now: int) -> bytes | None:
        """The packet of this swarm in a datagram, masked or not; None while fragments of it are missing."""
        packet: bytes | None = decode_obfuscated(data) if is_obfuscated(data) else data
        if packet and packet[0] == FRAGMENT:
            packet = self._assembler.add(packet, endpoint, now)
        if packet is not None:
            self._signer.subband_of(packet, now // 1000)
        return packet

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
                if _may_go(message, contact, now):
                    self._outbox.send(message, (contact,), purpose, now)
            outbox.clear()
        self._events += self._neighbours.events
        self._neighbours.events.clear()


def _may_go(message: bytes, contact: Contact, now: int) -> bool:
    """Whether a contact may be sent this: no amplification to one that has not answered yet.

    Whoever runs this peer has named the pinned ones: they are asked as often as it takes. Else a peer whose first
    hellos were all lost, and that heard but little of its bootstrap peer, would never ask it again.
    """
    if contact.is_validated or not contact.received_bytes:
        return True
    return (contact.is_pinned and message.startswith(HELLO_HEAD)) or contact.may_send(len(message) + HEADER_BYTES, now)
