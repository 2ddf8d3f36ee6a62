"""Tickets of time-range pulls: which lists are answers to us, in time, late, repeated, or foreign.

UEP-12: the list echoes the ticket "to ensure the reply is sent from the peer being requested". So a ticket is good for
the peer that it was given to. A question that is not answered in time is asked of somebody else, but its ticket stays
good for `RECENT_US`: on a slow network the list is late and not false, and it is taken in like any other. A ticket is
good for one list; what comes again on it is counted and ignored. Both are the network's doing, so neither is refused.
Every other ticket is foreign.

At most `MAX_OPEN` questions are open and `MAX_RECENT` tickets remembered; the oldest give way.
"""

from __future__ import annotations

from typing import Final

import msgspec

from dovetail.swarm.contacts import Contact
from dovetail.swarm.peer_exchange import Endpoint
from dovetail.swarm.queries import RangeList
from dovetail.swarm.refusals import UnknownTicket

ANSWER_WITHIN_US: Final = 1_000_000
RECENT_US: Final = 60_000_000
MAX_OPEN: Final = 8
MAX_RECENT: Final = 256


class Question:
    """A time-range pull that is under way."""

    __slots__ = ("asked_ms", "contact", "end_ms", "is_explored", "is_full", "sent_us", "start_ms")

    def __init__(
        self, contact: Contact, start_ms: int, end_ms: int, asked_ms: int, *, is_full: bool, is_explored: bool
    ) -> None:
        self.contact = contact
        self.start_ms = start_ms
        self.end_ms = end_ms
        self.asked_ms = asked_ms
        self.is_full = is_full
        self.is_explored = is_explored
        self.sent_us = 0


class _Recent(msgspec.Struct, frozen=True, gc=False):
    contact: Contact
    question: Question | None
    """None: answered, or no longer of use."""
    until_us: int


class Tickets:
    """All tickets that were given and are remembered."""

    def __init__(self) -> None:
        self._open: dict[bytes, Question] = {}
        self._recent: dict[bytes, _Recent] = {}
        self.late = 0
        """Lists that came after their time, or again."""

    def __len__(self) -> int:
        return len(self._open)

    @property
    def asked(self) -> set[Endpoint]:
        """Who has an open question."""
        return {question.contact.endpoint for question in self._open.values()}

    def give(self, ticket: bytes, question: Question, now: int) -> None:
        """A question goes out with this ticket."""
        if len(self._open) >= MAX_OPEN:
            self._close(next(iter(self._open)), now)
        question.sent_us = now
        self._recent.pop(ticket, None)
        self._open[ticket] = question

    def expire(self, now: int) -> None:
        """Close what was not answered in time."""
        for ticket, question in list(self._open.items()):
            if now - question.sent_us >= ANSWER_WITHIN_US:
                self._close(ticket, now)

    def claim(self, answer: RangeList, contact: Contact, now: int) -> Question | None:
        """The question that a list answers, claimed for good; None where it was answered before.

        Raises UnknownTicket for a list that this contact was not asked for, and leaves the ticket as it is.
        """
        question = self._open.get(answer.ticket)
        if question is None:
            recent = self._recent.get(answer.ticket)
            if recent is None or recent.contact is not contact or now >= recent.until_us:
                raise UnknownTicket("list for a range that was not asked of this peer")
            question = recent.question
            if question is None:
                self.late += 1
                return None
            _check(answer, question)
            self.late += 1
        elif question.contact is not contact:
            raise UnknownTicket("list for a range that was asked of another peer")
        else:
            _check(answer, question)
        self._open.pop(answer.ticket, None)
        self._remember(answer.ticket, _Recent(contact, None, now + RECENT_US))
        return question

    def turn_back(self, now: int) -> None:
        """The clock was set back: what was asked by the wrong clock is of no use, but no offence."""
        known = [(ticket, question.contact) for ticket, question in self._open.items()]
        known += [(ticket, recent.contact) for ticket, recent in self._recent.items()]
        self._open.clear()
        self._recent.clear()
        for ticket, contact in known:
            self._remember(ticket, _Recent(contact, None, now + RECENT_US))

    def _close(self, ticket: bytes, now: int) -> None:
        question = self._open.pop(ticket)
        self._remember(ticket, _Recent(question.contact, question, now + RECENT_US))

    def _remember(self, ticket: bytes, recent: _Recent) -> None:
        self._recent.pop(ticket, None)
        if len(self._recent) >= MAX_RECENT:
            del self._recent[next(iter(self._recent))]
        self._recent[ticket] = recent


def _check(answer: RangeList, question: Question) -> None:
    if answer.end_ms < question.start_ms:
        raise UnknownTicket("list that ends before the range that was asked for")
