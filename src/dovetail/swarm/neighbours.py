"""Links to other peers: as many that relay to us as we relay to, negotiated by hellos and answers.

A peer relays to its forward links. The direction between two peers follows from their addresses
(`peer_exchange.is_forward_peer`), so that every peer has as many relays coming in as going out; unbalanced lists leave
some peers without any. Where there are too few peers on one side, as in small swarms, the other side is used.

Each peer seeks its configured number of links in each direction and grants `spare_links` more on request. A hello
carries the complete requested state, the answer the complete granted state; both are repeated every 30 s and end a link
that is no longer requested. A contact that leaves four hellos unanswered loses its links, and is asked less often: it
may be behind a partition. Strangers are asked four times in total.

A contact that leaves four hellos unanswered and has never answered one does not speak the peer exchange: it is plain.
It takes part by UEP-12 alone if it is pinned, or has proved its address with a ticket (`gossip.challenge`): we relay to
all that are pinned and to `plain_links` others, and ask each of them every 30 s, in place of the hello.

Links to peers that relay nothing are replaced: a backward link that sent nothing while others sent `ROTATE_AFTER` new
messages is ended, and from time to time a forward link to a contact that is not proven.
"""

from __future__ import annotations

from typing import Final

from dovetail.swarm.contacts import HEARD_MARGIN_MS, Contact, Contacts, RandomSource
from dovetail.swarm.events import PeerLinked, PeerUnlinked
from dovetail.swarm.peer_exchange import (
    I_RELAY_TO_YOU,
    INTRODUCE_OTHERS,
    MAX_INTRODUCTIONS,
    NO_PROOF,
    YOU_RELAY_TO_ME,
    Answer,
    Endpoint,
    Hello,
    Introduction,
    encode_answer,
    encode_hello,
)
from dovetail.swarm.refusals import UnknownTicket
from dovetail.swarm.settings import PeerSettings

SECOND_US: Final = 1_000_000
SEEK_US: Final = SECOND_US // 2
CALM_US: Final = 5 * SECOND_US
REFRESH_US: Final = 30 * SECOND_US
REFRESH_UNLINKED_US: Final = 120 * SECOND_US
ANSWER_WITHIN_US: Final = 1 * SECOND_US
MAX_RETRY_US: Final = 10 * SECOND_US
MAX_RETRY_SEEKING_US: Final = 2 * SECOND_US
MAX_UNANSWERED: Final = 4
MAX_PAST_TICKETS: Final = 4
"""Earlier hellos to one contact whose late or repeated answers are recognised."""
FORGET_US: Final = 600 * SECOND_US
REFUSED_US: Final = 10 * SECOND_US
LOST_US: Final = 20 * SECOND_US
SETTLED_US: Final = 5 * SECOND_US
"""A hello may have been in flight while a link was made: only later ones can end it."""
SILENT_US: Final = 120 * SECOND_US
ROTATE_US: Final = 20 * SECOND_US
ROTATE_AFTER: Final = 8
ENOUGH_CONTACTS: Final = 20
MAX_SEEKING: Final = 4
"""Peers asked for a link in one direction, and strangers asked for their address, at a time."""


class Neighbours:
    """Keeps the links; the peer sends the contents of `outbox`."""

    def __init__(self, contacts: Contacts, settings: PeerSettings, random_source: RandomSource, now: int) -> None:
        self._contacts = contacts
        self._settings = settings
        self._random = random_source
        self._accepted = 0
        self._rotate_us = now + ROTATE_US
        self.due_us = now
        self.outbox: list[tuple[Contact, bytes]] = []
        self.events: list[PeerLinked | PeerUnlinked] = []
        self.late_answers = 0
        """Answers to hellos that arrived late or repeatedly."""
        self.to_ask: list[Contact] = []
        """Contacts to ask for messages next: back after a silence, or after they were forgotten, or plain."""

    def bootstrap(self, endpoint: Endpoint, now: int) -> None:
        """Add an endpoint of the bootstrap list and ask it."""
        self._contacts.pin(endpoint, now)
        self.due_us = now

    def note_accepted(self, contact: Contact) -> None:
        """A new message from this contact was accepted."""
        self._accepted += 1
        contact.is_proven = contact.is_proven or contact.is_validated

    # -- hello and answer

    def receive_hello(self, hello: Hello, contact: Contact, now: int) -> None:
        """Answer a hello; only validated contacts are granted links."""
        contacts = self._contacts
        if hello.address == contacts.local:
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
            if hello.requested & INTRODUCE_OTHERS:
                introductions = self._introduce(contact)
        message = encode_answer(Answer(hello.ticket, contact.given_token, contacts.local, granted, introductions))
        self.outbox.append((contact, message))

    def receive_answer(self, answer: Answer, contact: Contact, now: int) -> None:
        """Handle the answer to our hello; raises UnknownTicket if there was none.

        The answer to the last hello is used however late it is. One to an earlier hello, or a repeated one, is only
        counted: the hello after it carries the present state.
        """
        if answer.ticket not in contact.past_tickets:
            raise UnknownTicket("answer to a hello that was not sent")
        if answer.ticket != contact.past_tickets[0] or contact.is_hello_answered:
            self.late_answers += 1
            return
        contact.hello_ticket = None
        contact.is_hello_answered = True
        if contact.unanswered >= MAX_UNANSWERED and now - contact.silent_us >= LOST_US and contact.is_validated:
            if contact.known_until_ms is None:
                contact.known_until_ms = contact.silent_us // 1000 - HEARD_MARGIN_MS
            self.to_ask.append(contact)
        contact.held_token = answer.token
        self._contacts.identify(contact, answer.address)
        if contact.hello_had_proof and not contact.knows_us and contact.reached_ms is not None:
            # we knew it before, and it will answer questions now
            self.to_ask.append(contact)
        contact.knows_us = contact.hello_had_proof
        if answer.address == self._contacts.local:
            contact.refused_until_us = now + FORGET_US
            return
        self._validate(contact)
        if contact.requested & I_RELAY_TO_YOU:
            self._link(contact, now, forward=bool(answer.granted & YOU_RELAY_TO_ME))
        if contact.requested & YOU_RELAY_TO_ME:
            self._link(contact, now, backward=bool(answer.granted & I_RELAY_TO_YOU))
        if contact.requested and not contact.is_linked and contact.knows_us:
            contact.refused_until_us = now + REFUSED_US
        if not contact.knows_us:
            contact.hello_due_us = now
        else:
            contact.hello_due_us = now + (REFRESH_US if contact.is_linked else REFRESH_UNLINKED_US)
        for introduction in answer.introductions:
            self._add_introduced(introduction, now)
        if self._lacking():
            self.due_us = min(self.due_us, now + SEEK_US // 8)

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
                self._link(contact, now, backward=True)
        elif is_settled:
            self._link(contact, now, backward=False)
        if requested & YOU_RELAY_TO_ME:
            if self._forward_count < settings.forward_links + settings.spare_links:
                self._link(contact, now, forward=True)
        elif is_settled:
            self._link(contact, now, forward=False)

    def _introduce(self, asker: Contact) -> tuple[Introduction, ...]:
        chosen = self._contacts.pick(
            MAX_INTRODUCTIONS,
            lambda contact: contact is not asker and contact.is_validated and not contact.unanswered,
        )
        return tuple([Introduction(other.address, other.endpoint) for other in chosen if other.address is not None])

    def _add_introduced(self, introduction: Introduction, now: int) -> None:
        if introduction.address == self._contacts.local or not introduction.endpoint.isprintable():
            return
        if self._contacts.find(introduction.endpoint) is None:
            self._contacts.identify(self._contacts.get_or_add(introduction.endpoint, now), introduction.address)

    # -- time

    def handle_timer(self, now: int) -> None:
        """Send the hellos that are due, end dead links, seek missing ones."""
        if now < self.due_us:
            return
        if now >= self._rotate_us:
            self._rotate(now)
        strangers = MAX_SEEKING if len(self._contacts.known) < ENOUGH_CONTACTS else 0
        for contact in list(self._contacts):
            if contact.is_validated or contact.is_pinned:
                self._maintain(contact, now)
            elif strangers:
                strangers -= self._ask_stranger(contact, now)
        self._seek(now)
        pause = SEEK_US if self._lacking() else CALM_US
        self.due_us = now + int(pause * (0.9 + 0.2 * self._random.random()))

    def handle_clock_step(self, now: int) -> None:
        """The clock was set back: discard all planned times and ask all contacts again."""
        self.due_us = now
        self._rotate_us = now + ROTATE_US
        self._contacts.handle_clock_step()
        for contact in self._contacts:
            contact.hello_ticket = None
            contact.hello_due_us = contact.hello_sent_us = contact.heard_us = contact.linked_us = now
            contact.silent_us = contact.ask_due_us = contact.challenged_us = now
            contact.refused_until_us = min(contact.refused_until_us, now + REFUSED_US)

    def _maintain(self, contact: Contact, now: int) -> None:
        self._note_silence(contact, now)
        if contact.unanswered >= MAX_UNANSWERED:
            if not contact.speaks_exchange:
                self._maintain_plain(contact, now)
            elif now - contact.heard_us >= LOST_US:
                self._link(contact, now, forward=False, backward=False)
        if not contact.is_pinned and not contact.is_linked and now - contact.heard_us >= FORGET_US:
            self._contacts.forget(contact)
        elif contact.hello_ticket is None and contact.hello_due_us <= now and now >= contact.refused_until_us:
            self._hello(contact, now)

    def _maintain_plain(self, contact: Contact, now: int) -> None:
        """Ask a contact without the peer exchange for messages, and relay to it."""
        contact.is_plain = True
        if now >= contact.ask_due_us:
            contact.ask_due_us = now + REFRESH_US
            self.to_ask.append(contact)
        is_due = now - contact.heard_us < SILENT_US and now >= contact.refused_until_us
        others = sum(
            1 for other in self._contacts.forward if other.is_plain and not other.is_pinned and other is not contact
        )
        self._link(contact, now, forward=contact.is_pinned or (is_due and others < self._settings.plain_links))

    def _ask_stranger(self, stranger: Contact, now: int) -> bool:
        """Send a hello to a stranger, at most `MAX_UNANSWERED` times; True if one was sent."""
        self._note_silence(stranger, now)
        if stranger.unanswered >= MAX_UNANSWERED:
            self._contacts.forget(stranger)
        elif stranger.hello_ticket is None and stranger.hello_due_us <= now:
            self._hello(stranger, now)
            return True
        return False

    def _note_silence(self, contact: Contact, now: int) -> None:
        if contact.hello_ticket is not None and now - contact.hello_sent_us >= ANSWER_WITHIN_US:
            contact.hello_ticket = None
            if not contact.unanswered:
                contact.silent_us = contact.hello_sent_us
            contact.unanswered += 1
            longest = MAX_RETRY_SEEKING_US if self._lacking() else MAX_RETRY_US
            if contact.is_plain and not contact.is_pinned:
                longest = REFRESH_UNLINKED_US
            contact.hello_due_us = now + min(longest, SEEK_US * (2 ** min(contact.unanswered - 1, 8) - 1))

    def _rotate(self, now: int) -> None:
        self._rotate_us = now + ROTATE_US
        backward = self._contacts.backward
        if self._accepted >= ROTATE_AFTER:
            silent = [contact for contact in backward if not contact.delivered]
            for contact in silent[: max(1, len(backward) // 2)]:
                self._link(contact, now, backward=False)
                contact.is_proven = False
                contact.refused_until_us = now + SILENT_US
                self._hello(contact, now)
            unproven = [
                contact
                for contact in self._contacts.forward
                if not contact.is_proven and not (contact.is_plain and contact.is_pinned)
            ]
            for contact in unproven[:1]:
                self._link(contact, now, forward=False)
                contact.refused_until_us = now + REFUSED_US
                self._hello(contact, now)
        self._accepted = 0
        for contact in backward:
            contact.delivered = 0

    @property
    def _forward_count(self) -> int:
        """Forward links that were negotiated."""
        return sum(1 for contact in self._contacts.forward if not contact.is_plain)

    def _lacking(self) -> bool:
        return (
            self._forward_count < self._settings.forward_links
            or len(self._contacts.backward) < self._settings.backward_links
        )

    def _seek(self, now: int) -> None:
        forward = self._settings.forward_links - self._forward_count
        backward = self._settings.backward_links - len(self._contacts.backward)
        if forward > 0:
            self._request(forward, I_RELAY_TO_YOU, True, now)
        if backward > 0:
            self._request(backward, YOU_RELAY_TO_ME, False, now)

    def _request(self, count: int, link: int, is_ahead: bool, now: int) -> None:
        """Request a link from contacts on the proper side, or on any side where the proper one has too few."""
        target = self._settings.forward_links if is_ahead else self._settings.backward_links
        on_side = sum(1 for contact in self._contacts.known if contact.is_ahead is is_ahead)

        def is_suitable(contact: Contact) -> bool:
            has_it = contact.is_forward if link == I_RELAY_TO_YOU else contact.is_backward
            return (
                not has_it
                and contact.is_validated
                and contact.hello_ticket is None
                and not contact.unanswered
                and now >= contact.refused_until_us
                and (contact.is_ahead is is_ahead or on_side < target)
            )

        for contact in self._contacts.pick(min(count, MAX_SEEKING), is_suitable):
            self._hello(contact, now, link)

    def _hello(self, contact: Contact, now: int, link: int = 0) -> None:
        contact.hello_ticket = self._random.getrandbits(32).to_bytes(4)
        contact.past_tickets = (contact.hello_ticket, *contact.past_tickets)[:MAX_PAST_TICKETS]
        contact.hello_sent_us = now
        contact.is_hello_answered = False
        contact.hello_had_proof = contact.held_token != NO_PROOF
        contact.requested = _state(contact) | link
        introduce = INTRODUCE_OTHERS if len(self._contacts.known) < ENOUGH_CONTACTS else 0
        hello = Hello(contact.hello_ticket, self._contacts.local, contact.requested | introduce, contact.held_token)
        self.outbox.append((contact, encode_hello(hello)))

    def _link(self, contact: Contact, now: int, *, forward: bool | None = None, backward: bool | None = None) -> None:
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
