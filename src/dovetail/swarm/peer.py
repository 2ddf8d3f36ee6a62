"""One peer of a swarm, as a pure state machine: datagrams and time in, datagrams and events out.

A datagram is unmasked (UEP-6), reassembled (UEP-7) and matched to the swarm (UEP-10); it then holds a content message,
a pull, a list (UEP-12) or part of the peer exchange. A new content message goes to the journal and the application and
is relayed to the forward links (`intake`); its missing references are pulled (`repair`). Every refusal is counted by
reason; a limited number of them is journaled.

The caller feeds `receive_datagrams` and `handle_timer`, then journals the observations among `events()`, then sends
`to_send()`, then arms `next_timer()`. To publish: `compose`, solve the work outside, `publish_solved`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from dovetail.model.address import Address, address_of
from dovetail.model.errors import LocalProtocolError
from dovetail.model.hop import Hop, Observation, Stage
from dovetail.model.wire import Datagrams, Frame
from dovetail.swarm.acceptance import Entry
from dovetail.swarm.contacts import Contact, Contacts, RandomSource
from dovetail.swarm.content import (
    INDICATOR,
    MAX_CONTENT_BYTES,
    OPCODE_CONTENT,
    Content,
    encode_content,
    expiration_ms,
    message_address,
)
from dovetail.swarm.dag import Dag
from dovetail.swarm.events import Event
from dovetail.swarm.fragments import INDICATOR as FRAGMENT
from dovetail.swarm.fragments import Assembler
from dovetail.swarm.intake import Intake
from dovetail.swarm.limits import RefusalLog
from dovetail.swarm.neighbours import Neighbours
from dovetail.swarm.obfuscation import decode_obfuscated, is_obfuscated
from dovetail.swarm.outbox import Outbox, Purpose
from dovetail.swarm.packet import HEADER_BYTES, SwarmSigner
from dovetail.swarm.peer_exchange import INDICATOR as EXCHANGE
from dovetail.swarm.peer_exchange import Endpoint, PeerAddress, decode_exchange
from dovetail.swarm.queries import PullHashes, PullRange, RangeList, decode_message
from dovetail.swarm.recovery import restore
from dovetail.swarm.refusals import Refusal
from dovetail.swarm.repair import Repair
from dovetail.swarm.room import Room
from dovetail.swarm.settings import PeerSettings, SwarmSettings
from dovetail.swarm.status import PeerStatus
from dovetail.swarm.uri import peer_uri

CONTENT_HEAD: Final = bytes((INDICATOR, OPCODE_CONTENT))
EXCHANGE_HEAD: Final = bytes((EXCHANGE,))
CLOCK_STEP_US: Final = 2_000_000
"""A clock that is set back by less than this only delays what is due."""


class Peer:
    """One peer's view of the swarm."""

    def __init__(
        self,
        swarm: SwarmSettings,
        address: PeerAddress,
        random_source: RandomSource,
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
        self.uri = peer_uri(swarm.name, address)
        self._signer = SwarmSigner(swarm.key, swarm.slot_slack)
        self._assembler: Assembler[Endpoint] = Assembler()
        self._outbox = Outbox(self._signer, random_source, settings.obfuscate)
        self._contacts = Contacts(
            address, swarm.name, random_source, settings.serve_bytes_per_second, settings.queries_per_second
        )
        self._neighbours = Neighbours(self._contacts, settings, random_source, now)
        self._handshake = self._neighbours.handshake
        self._dag = Dag(swarm.epoch_ms, Room(settings.max_held_messages, settings.max_held_bytes))
        self._refusals = RefusalLog(settings.rejections_per_second)
        self._events: list[Event] = []
        self._repair = Repair(
            swarm, settings, self._dag, self._contacts, self._outbox, self._events, random_source, now
        )
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
        """True if an application takes messages: only then are they passed on and observed as delivered."""
        return self._intake.has_application

    @has_application.setter
    def has_application(self, value: bool) -> None:
        self._intake.has_application = value

    # -- input and output

    def receive_frames(self, frames: Iterable[Frame], now: int) -> None:
        """Receive datagrams in this order, each with the endpoint it came from."""
        run: list[bytes] = []
        sender = ""
        for data, endpoint, _ in frames:
            if endpoint != sender:
                if run:
                    self.receive_datagrams(run, sender, now)
                run, sender = [], endpoint
            run.append(data)
        if run:
            self.receive_datagrams(run, sender, now)

    def receive_datagrams(self, datagrams: Sequence[bytes], sender: str, now: int) -> None:
        """Receive datagrams from one endpoint, in order of arrival."""
        self._advance(now)
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
        """Do what is due."""
        self._advance(now)
        self._neighbours.handle_timer(now)
        for contact in self._handshake.to_ask:
            self._repair.gossip.prefer(contact, now)
        self._handshake.to_ask.clear()
        self._repair.handle_timer(now)
        self._flush(now)

    def next_timer(self) -> int | None:
        """When to call `handle_timer` next."""
        due = min(self._neighbours.due_us, self._repair.next_due_us)
        expiry_ms = self._dag.next_expiry_ms
        return due if expiry_ms is None else min(due, expiry_ms * 1000)

    def events(self) -> list[Event]:
        """Events since the last call; journal the observations among them before sending anything."""
        events = self._events[:]
        self._events.clear()
        return events

    def to_send(self) -> list[Datagrams]:
        """Datagrams to send now."""
        return self._outbox.drain()

    # -- for the application

    def compose(self, payload: bytes, ttl_epochs: int, now: int) -> bytes:
        """Return a message without its work: the caller solves it and calls `publish_solved` within its lifetime."""
        if not 0 <= ttl_epochs <= self.rules.max_ttl_epochs:
            raise LocalProtocolError(f"ttl of {ttl_epochs} epochs, expected 0 to {self.rules.max_ttl_epochs}")
        self._advance(now)
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
        """Publish a solved message; publishing the same one again has no effect."""
        self._advance(now)
        try:
            return self._intake.publish(message, now)
        except Refusal as refusal:
            raise LocalProtocolError(f"cannot publish: {refusal.detail}") from None

    def restore(self, hops: Iterable[Hop], now: int) -> int:
        """Add the unexpired messages of the journal; returns how many messages there are."""
        restore(hops, self._dag, self._repair, self._intake.note_expired, self.rules.epoch_ms, now)
        return len(self._dag)

    def messages_between(self, start_ms: int, end_ms: int) -> list[Entry]:
        """Unexpired messages of this time range, both ends inclusive, in order."""
        return list(self._dag.between(start_ms, end_ms))

    def addresses(self) -> set[Address]:
        """All unexpired messages that others may pull."""
        return self._dag.addresses()

    def status(self) -> PeerStatus:
        """State and counters."""
        contacts = self._contacts
        return PeerStatus(
            uri=self.uri,
            swarm=self.swarm.swarm_address.hex(),
            forward=[contact.uri for contact in contacts.forward],
            backward=[contact.uri for contact in contacts.backward],
            plain=[contact.uri for contact in contacts.known if contact.is_plain],
            contacts=len(contacts.known),
            strangers=contacts.stranger_count,
            messages=len(self._dag),
            held_bytes=self._dag.room.bytes,
            tips=len(self._dag.tips),
            missing=len(self._repair.wants),
            crowded_out=self._repair.wants.crowded_out,
            unconfirmed=len(self._repair.own),
            accepted=self._intake.accepted,
            duplicates=self._intake.duplicates,
            late_answers=self._handshake.late_answers + self._repair.gossip.late_answers,
            refused={str(reason): count for reason, count in sorted(self._refusals.counts.items())},
            refused_journaled=self._refusals.journaled,
            received_bytes=self._received_bytes,
            received_datagrams=self._received_datagrams,
            sent_bytes={str(purpose): self._outbox.bytes_sent[purpose] for purpose in Purpose},
            sent_datagrams=self._outbox.datagrams_sent,
        )

    def _advance(self, now: int) -> None:
        """Advance the time: expired messages are removed at once. After a clock step all planned times are discarded.

        Messages may have expired by the wrong clock; asking for everything again restores them, without accepting them
        a second time.
        """
        if self._latest_us - now >= CLOCK_STEP_US:
            self._neighbours.handle_clock_step(now)
            self._repair.handle_clock_step(now)
            self._assembler = Assembler()
        self._latest_us = now
        for address in self._dag.expire(now // 1000):
            self._intake.note_expired(address)
            self._repair.note_expired(address, now)

    # -- receiving

    def _receive_contents(self, messages: Sequence[bytes], endpoint: Endpoint, now: int) -> None:
        """Content messages that arrived one per datagram, neither masked nor fragmented."""
        size = sum(map(len, messages)) + HEADER_BYTES * len(messages)
        contact = self._hear(endpoint, size, False, now)
        self._challenge(contact, now)
        self._intake.receive(messages, contact, now)

    def _receive_other(self, data: bytes, endpoint: Endpoint, now: int) -> None:
        """Handle a datagram of any other kind."""
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
            if message.startswith(EXCHANGE_HEAD):
                self._receive_exchange(message, contact, now)
            elif message.startswith(CONTENT_HEAD):
                self._challenge(contact, now)
                self._intake.receive((message,), contact, now)
            else:
                self._receive_query(message, contact, now)
        except Refusal as refusal:
            self._refuse(refusal, message, endpoint, now)

    def _hear(self, endpoint: Endpoint, size: int, is_masked: bool, now: int) -> Contact:
        """The contact of an endpoint from which `size` bytes of this swarm arrived."""
        contact = self._contacts.get_or_add(endpoint, now)
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

    def _challenge(self, contact: Contact, now: int) -> None:
        """Let a contact that sent a content message or a pull prove its address, if it has not."""
        if not contact.is_validated:
            self._repair.gossip.challenge(contact, now)
            self._flush(now)

    def _receive_query(self, message: bytes, contact: Contact, now: int) -> None:
        match decode_message(message):
            case PullHashes() as query:
                self._challenge(contact, now)
                self._repair.answer_hashes(query, contact, now)
            case PullRange() as query:
                self._challenge(contact, now)
                self._repair.answer_range(query, contact, now)
            case RangeList() as answer:
                self._repair.receive_list(answer, contact, now)
                self._flush(now)
            case Content():
                raise AssertionError("content messages are dispatched before")

    def _receive_exchange(self, message: bytes, contact: Contact, now: int) -> None:
        try:
            self._neighbours.receive(decode_exchange(message), contact, now)
        finally:
            self._flush(now)

    def _refuse(self, refusal: Refusal, data: bytes, endpoint: Endpoint, now: int) -> None:
        if not self._refusals.note(refusal.reason, now):
            return
        is_kept = len(data) <= MAX_CONTENT_BYTES
        self._events.append(
            Observation(
                at_us=now,
                stage=Stage.REJECTED,
                message=address_of(data),
                counterparts=(self._contacts.uri_of(endpoint),),
                reason=refusal.reason,
                raw=data if is_kept else None,
                size=None if is_kept else len(data),
            )
        )

    def _flush(self, now: int) -> None:
        """Send the messages of `neighbours` and `gossip`."""
        for outbox, purpose in (
            (self._handshake.outbox, Purpose.UPKEEP),
            (self._repair.gossip.outbox, Purpose.REPAIR),
        ):
            for contact, message in outbox:
                if _may_go(message, contact, now):
                    self._outbox.send(message, (contact,), purpose, now)
            outbox.clear()
        self._events += self._handshake.events
        self._handshake.events.clear()


def _may_go(message: bytes, contact: Contact, now: int) -> bool:
    """True if a contact may be sent this: no amplification towards one that is not validated.

    Pinned contacts are configured: they are asked as often as needed. Otherwise a peer whose first hellos were all
    lost, and that received few bytes from its bootstrap peer, would never ask it again.
    """
    if contact.is_reachable or not contact.received_bytes:
        return True
    return contact.may_send(len(message) + HEADER_BYTES, now)
