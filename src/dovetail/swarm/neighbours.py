"""Links to other peers: as many that relay to us as we relay to, negotiated by hellos and answers.

A peer relays to its forward links. The direction between two peers follows from their addresses
(`peer_exchange.is_forward_peer`), so that every peer has as many incoming relays as outgoing ones; unbalanced lists
leave some peers without any. If there are too few peers on one side, as in small swarms, the other side is used.

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

from dovetail.model.times import SECOND_US
from dovetail.swarm.contacts import Contact, Contacts, RandomSource
from dovetail.swarm.handshake import (
    ENOUGH_CONTACTS,
    LOST_US,
    MAX_UNANSWERED,
    REFRESH_UNLINKED_US,
    REFRESH_US,
    REFUSED_US,
    Handshake,
)
from dovetail.swarm.peer_exchange import I_RELAY_TO_YOU, YOU_RELAY_TO_ME, Answer, Endpoint, Hello
from dovetail.swarm.settings import PeerSettings

SEEK_US: Final = SECOND_US // 2
CALM_US: Final = 5 * SECOND_US
ANSWER_WITHIN_US: Final = 1 * SECOND_US
MAX_RETRY_US: Final = 10 * SECOND_US
MAX_RETRY_SEEKING_US: Final = 2 * SECOND_US
FORGET_US: Final = 600 * SECOND_US
SILENT_US: Final = 120 * SECOND_US
ROTATE_US: Final = 20 * SECOND_US
ROTATE_AFTER: Final = 8
MAX_SEEKING: Final = 4
"""Peers asked for a link in one direction, and strangers asked for their address, at a time."""


class Neighbours:
    """Maintains the links."""

    def __init__(self, contacts: Contacts, settings: PeerSettings, random_source: RandomSource, now: int) -> None:
        self._contacts = contacts
        self._settings = settings
        self._random = random_source
        self._accepted = 0
        self._rotate_us = now + ROTATE_US
        self.due_us = now
        self.handshake = Handshake(contacts, settings, random_source)

    def bootstrap(self, endpoint: Endpoint, now: int) -> None:
        """Add an endpoint from the bootstrap list and ask it."""
        self._contacts.pin(endpoint, now)
        self.due_us = now

    def note_accepted(self, contact: Contact, count: int) -> None:
        """Count new messages that were accepted from this contact."""
        self._accepted += count
        contact.is_proven = contact.is_proven or contact.is_validated

    def receive(self, message: Hello | Answer, contact: Contact, now: int) -> None:
        """Handle a message of the peer exchange; raises a `Refusal`."""
        if isinstance(message, Hello):
            self.handshake.receive_hello(message, contact, now)
            return
        self.handshake.receive_answer(message, contact, now)
        if self.handshake.is_lacking:
            self.due_us = min(self.due_us, now + SEEK_US // 8)

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
        pause = SEEK_US if self.handshake.is_lacking else CALM_US
        self.due_us = now + int(pause * (0.9 + 0.2 * self._random.random()))

    def handle_clock_step(self, now: int) -> None:
        """The clock was set back: discard all planned times and ask all contacts again."""
        self.due_us = now
        self._rotate_us = now + ROTATE_US
        self._contacts.handle_clock_step()
        for contact in self._contacts:
            contact.hello_ticket = None
            contact.hello_due_us = contact.hello_sent_us = contact.heard_us = contact.linked_us = now
            contact.silent_us = contact.ask_due_us = contact.challenged_us = contact.conflict_due_us = now
            contact.refused_until_us = min(contact.refused_until_us, now + REFUSED_US)

    def _maintain(self, contact: Contact, now: int) -> None:
        if contact.is_self:
            return
        self._note_silence(contact, now)
        if contact.unanswered >= MAX_UNANSWERED:
            if not contact.speaks_exchange:
                self._maintain_plain(contact, now)
            elif now - contact.heard_us >= LOST_US:
                self.handshake.link(contact, now, forward=False, backward=False)
        if not contact.is_pinned and not contact.is_linked and now - contact.heard_us >= FORGET_US:
            self._contacts.forget(contact)
        elif contact.hello_ticket is None and contact.hello_due_us <= now and now >= contact.refused_until_us:
            self.handshake.send_hello(contact, now)

    def _maintain_plain(self, contact: Contact, now: int) -> None:
        """Ask a contact without the peer exchange for messages, and relay to it."""
        contact.is_plain = True
        if now >= contact.ask_due_us:
            contact.ask_due_us = now + REFRESH_US
            self.handshake.to_ask.append(contact)
        is_due = now - contact.heard_us < SILENT_US and now >= contact.refused_until_us
        others = sum(
            1 for other in self._contacts.forward if other.is_plain and not other.is_pinned and other is not contact
        )
        self.handshake.link(contact, now, forward=contact.is_pinned or (is_due and others < self._settings.plain_links))

    def _ask_stranger(self, stranger: Contact, now: int) -> bool:
        """Send a hello to a stranger, at most `MAX_UNANSWERED` times; True if one was sent."""
        if stranger.is_self:
            return False
        self._note_silence(stranger, now)
        if stranger.unanswered >= MAX_UNANSWERED:
            self._contacts.forget(stranger)
        elif stranger.hello_ticket is None and stranger.hello_due_us <= now:
            self.handshake.send_hello(stranger, now)
            return True
        return False

    def _note_silence(self, contact: Contact, now: int) -> None:
        if contact.hello_ticket is not None and now - contact.hello_sent_us >= ANSWER_WITHIN_US:
            contact.hello_ticket = None
            if not contact.unanswered:
                contact.silent_us = contact.hello_sent_us
            contact.unanswered += 1
            longest = MAX_RETRY_SEEKING_US if self.handshake.is_lacking else MAX_RETRY_US
            if contact.is_plain and not contact.is_pinned:
                longest = REFRESH_UNLINKED_US
            contact.hello_due_us = now + min(longest, SEEK_US * (2 ** min(contact.unanswered - 1, 8) - 1))

    def _rotate(self, now: int) -> None:
        self._rotate_us = now + ROTATE_US
        backward = self._contacts.backward
        if self._accepted >= ROTATE_AFTER:
            silent = [contact for contact in backward if not contact.delivered]
            for contact in silent[: max(1, len(backward) // 2)]:
                self.handshake.link(contact, now, backward=False)
                contact.is_proven = False
                contact.refused_until_us = now + SILENT_US
                self.handshake.send_hello(contact, now)
            unproven = [
                contact
                for contact in self._contacts.forward
                if not contact.is_proven and not (contact.is_plain and contact.is_pinned)
            ]
            for contact in unproven[:1]:
                self.handshake.link(contact, now, forward=False)
                contact.refused_until_us = now + REFUSED_US
                self.handshake.send_hello(contact, now)
        self._accepted = 0
        for contact in backward:
            contact.delivered = 0

    def _seek(self, now: int) -> None:
        forward = self._settings.forward_links - self.handshake.forward_count
        backward = self._settings.backward_links - len(self._contacts.backward)
        if forward > 0:
            self._request(forward, I_RELAY_TO_YOU, True, now)
        if backward > 0:
            self._request(backward, YOU_RELAY_TO_ME, False, now)

    def _request(self, count: int, link: int, is_ahead: bool, now: int) -> None:
        """Request a link from contacts on the right side, or on any side if the right one has too few."""
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
            self.handshake.send_hello(contact, now, link)
