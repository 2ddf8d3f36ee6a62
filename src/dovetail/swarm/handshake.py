"""Hellos and answers of the peer exchange: proving addresses, negotiating links, introducing others.

A hello carries the complete requested state, the answer the complete granted state, so repeating them is harmless.
Only validated contacts are granted links.

A hello that carries our own peer address has come back to us if we sent its ticket: its endpoint is our own.
Otherwise another peer has our identity. Such a hello is answered, so that the other one notices too, and refused. Each
peer introduces the endpoints of one address to each other, so two peers with one identity meet through any common
contact.
"""

from __future__ import annotations

from typing import Final

from dovetail.model.times import SECOND_US
from dovetail.swarm.contacts import HEARD_MARGIN_MS, Contact, Contacts, RandomSource
from dovetail.swarm.events import IdentityConflict, PeerLinked, PeerUnlinked
from dovetail.swarm.peer_exchange import (
    I_RELAY_TO_YOU,
    INTRODUCE_OTHERS,
    MAX_INTRODUCTIONS,
    NO_PROOF,
    YOU_RELAY_TO_ME,
    Answer,
    Hello,
    Introduction,
    encode_answer,
    encode_hello,
)
from dovetail.swarm.refusals import DuplicateIdentity, UnknownTicket
from dovetail.swarm.settings import PeerSettings

REFRESH_US: Final = 30 * SECOND_US
REFRESH_UNLINKED_US: Final = 120 * SECOND_US
MAX_UNANSWERED: Final = 4
MAX_PAST_TICKETS: Final = 4
"""Earlier hellos to one contact whose late or repeated answers are recognised."""
MAX_SENT: Final = 1_024
"""Hellos that are recognised when they come back to us."""
REFUSED_US: Final = 10 * SECOND_US
LOST_US: Final = 20 * SECOND_US
SETTLED_US: Final = 5 * SECOND_US
"""A hello may have been in flight while a link was established: only later ones can end it."""
CONFLICT_US: Final = 600 * SECOND_US
"""The minimum time between two reports of one endpoint that uses our identity."""
ENOUGH_CONTACTS: Final = 20


class Handshake:
    """Negotiates links; the peer sends the contents of `outbox`."""

    def __init__(self, contacts: Contacts, settings: PeerSettings, random_source: RandomSource) -> None:
        self._contacts = contacts
        self._settings = settings
        self._random = random_source
        self._sent: dict[bytes, Contact] = {}
        """Contacts by the tickets of the last hellos."""
        self.outbox: list[tuple[Contact, bytes]] = []
        self.events: list[PeerLinked | PeerUnlinked | IdentityConflict] = []
        self.late_answers = 0
        """Answers to hellos that arrived late or more than once."""
        self.to_ask: list[Contact] = []
        """Contacts to ask for messages next: back after a silence, or after they were forgotten, or plain."""

    @property
    def forward_count(self) -> int:
        """How many forward links were negotiated."""
        return sum(1 for contact in self._contacts.forward if not contact.is_plain)

    @property
    def is_lacking(self) -> bool:
        """True if there are fewer links than configured, in either direction."""
        return (
            self.forward_count < self._settings.forward_links
            or len(self._contacts.backward) < self._settings.backward_links
        )

    def receive_hello(self, hello: Hello, contact: Contact, now: int) -> None:
        """Answer a hello; only validated contacts are granted links."""
        contacts = self._contacts
        if hello.address == contacts.local:
            self._receive_own_address(hello, contact, now)
            return
        contacts.identify(contact, hello.address)
        granted = 0
        introductions: tuple[Introduction, ...] = ()
        if contact.given_token is None:
            contact.given_token = self._random.getrandbits(32).to_bytes(4)
        elif hello.proof == contact.given_token:
            self._validate(contact)
        if contact.is_validated:
            self._grant(contact, hello.requested, now)
            granted = _state(contact)
            introductions = self._introduce(contact, bool(hello.requested & INTRODUCE_OTHERS))
        message = encode_answer(Answer(hello.ticket, contact.given_token, contacts.local, granted, introductions))
        self.outbox.append((contact, message))

    def receive_answer(self, answer: Answer, contact: Contact, now: int) -> None:
        """Handle the answer to our hello; raises UnknownTicket if there was none.

        The answer to the last hello is used however late it is. One to an earlier hello, or a repeated one, is only
        counted: the hello after it carries the current state.
        """
        if answer.ticket not in contact.past_tickets:
            raise UnknownTicket("answer to a hello that was not sent")
        if answer.ticket != contact.past_tickets[0] or contact.is_hello_answered:
            self.late_answers += 1
            return
        contact.hello_ticket = None
        contact.is_hello_answered = True
        self._note_return(contact, now)
        if answer.address == self._contacts.local:
            contact.refused_until_us = now + CONFLICT_US
            self._refuse_identity(contact, now)
        contact.held_token = answer.token
        self._contacts.identify(contact, answer.address)
        if contact.hello_had_proof and not contact.knows_us and contact.reached_ms is not None:
            # we knew it before, and it will answer questions now
            self.to_ask.append(contact)
        contact.knows_us = contact.hello_had_proof
        self._validate(contact)
        self._take_grant(contact, answer.granted, now)
        if not contact.knows_us:
            contact.hello_due_us = now
        else:
            contact.hello_due_us = now + (REFRESH_US if contact.is_linked else REFRESH_UNLINKED_US)
        for introduction in answer.introductions:
            self._add_introduced(introduction, now)

    def _note_return(self, contact: Contact, now: int) -> None:
        """If the contact was silent so long that messages may be missing, ask it for those since then."""
        if contact.unanswered >= MAX_UNANSWERED and now - contact.silent_us >= LOST_US and contact.is_validated:
            if contact.known_until_ms is None:
                contact.known_until_ms = contact.silent_us // 1000 - HEARD_MARGIN_MS
            self.to_ask.append(contact)

    def _take_grant(self, contact: Contact, granted: int, now: int) -> None:
        """Establish or end the requested links as the contact answered."""
        if contact.requested & I_RELAY_TO_YOU:
            self.link(contact, now, forward=bool(granted & YOU_RELAY_TO_ME))
        if contact.requested & YOU_RELAY_TO_ME:
            self.link(contact, now, backward=bool(granted & I_RELAY_TO_YOU))
        if contact.requested and not contact.is_linked and contact.knows_us:
            contact.refused_until_us = now + REFUSED_US

    def _receive_own_address(self, hello: Hello, contact: Contact, now: int) -> None:
        if (asked := self._sent.get(hello.ticket)) is not None:
            asked.is_self = True
            return
        self.outbox.append((contact, encode_answer(Answer(hello.ticket, NO_PROOF, self._contacts.local, 0))))
        self._refuse_identity(contact, now)

    def _refuse_identity(self, contact: Contact, now: int) -> None:
        if now >= contact.conflict_due_us:
            contact.conflict_due_us = now + CONFLICT_US
            self.events.append(IdentityConflict(contact.endpoint))
        raise DuplicateIdentity(f"{contact.endpoint} uses the address of this peer, {self._contacts.local.hex()}")

    def _validate(self, contact: Contact) -> None:
        self._contacts.validate(contact)
        contact.speaks_exchange = True
        contact.is_plain = False
        contact.unanswered = 0

    def _grant(self, contact: Contact, requested: int, now: int) -> None:
        settings, contacts = self._settings, self._contacts
        is_settled = now - contact.linked_us >= SETTLED_US
        if requested & I_RELAY_TO_YOU:
            if len(contacts.backward) < settings.backward_links + settings.spare_links:
                self.link(contact, now, backward=True)
        elif is_settled:
            self.link(contact, now, backward=False)
        if requested & YOU_RELAY_TO_ME:
            if self.forward_count < settings.forward_links + settings.spare_links:
                self.link(contact, now, forward=True)
        elif is_settled:
            self.link(contact, now, forward=False)

    def _introduce(self, asker: Contact, is_asked: bool) -> tuple[Introduction, ...]:
        """Other peers, if the asker wants some; and always those that use its address."""

        def is_suitable(contact: Contact) -> bool:
            return contact is not asker and contact.is_validated and not contact.unanswered

        chosen = self._contacts.pick(1, lambda contact: is_suitable(contact) and contact.address == asker.address)
        if is_asked:
            chosen += self._contacts.pick(
                MAX_INTRODUCTIONS - len(chosen), lambda contact: is_suitable(contact) and contact not in chosen
            )
        return tuple([Introduction(other.address, other.endpoint) for other in chosen if other.address is not None])

    def _add_introduced(self, introduction: Introduction, now: int) -> None:
        if not introduction.endpoint.isprintable() or self._contacts.find(introduction.endpoint) is not None:
            return
        contact = self._contacts.get_or_add(introduction.endpoint, now)
        if introduction.address == self._contacts.local:
            self.send_hello(contact, now)
        else:
            self._contacts.identify(contact, introduction.address)

    def send_hello(self, contact: Contact, now: int, link: int = 0) -> None:
        """Send a hello, which requests one more link if `link` is set."""
        contact.hello_ticket = self._random.getrandbits(32).to_bytes(4)
        contact.past_tickets = (contact.hello_ticket, *contact.past_tickets)[:MAX_PAST_TICKETS]
        if len(self._sent) >= MAX_SENT:
            del self._sent[next(iter(self._sent))]
        self._sent[contact.hello_ticket] = contact
        contact.hello_sent_us = now
        contact.is_hello_answered = False
        contact.hello_had_proof = contact.held_token != NO_PROOF
        contact.requested = _state(contact) | link
        introduce = INTRODUCE_OTHERS if len(self._contacts.known) < ENOUGH_CONTACTS else 0
        hello = Hello(contact.hello_ticket, self._contacts.local, contact.requested | introduce, contact.held_token)
        self.outbox.append((contact, encode_hello(hello)))

    def link(self, contact: Contact, now: int, *, forward: bool | None = None, backward: bool | None = None) -> None:
        """Establish or end links, and report what changed."""
        if forward is not None and forward != contact.is_forward:
            contact.linked_us = now
            self._contacts.set_link(contact, forward=forward)
            self.events.append((PeerLinked if forward else PeerUnlinked)(contact.uri, True))
        if backward is not None and backward != contact.is_backward:
            contact.linked_us = now
            self._contacts.set_link(contact, backward=backward)
            self.events.append((PeerLinked if backward else PeerUnlinked)(contact.uri, False))


def _state(contact: Contact) -> int:
    return (I_RELAY_TO_YOU if contact.is_forward else 0) | (YOU_RELAY_TO_ME if contact.is_backward else 0)
