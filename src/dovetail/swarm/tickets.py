"""Tickets of time-range pulls: decides which lists answer our questions, in time, late or repeatedly, and which do not.

UEP-12: the list echoes the ticket "to ensure the reply is sent from the peer being requested". So a ticket is valid for
the peer that was asked with it. After a timeout another peer is asked, but the ticket stays valid for `RECENT_US`: on a
slow network the list is late, not wrong, and is used like any other. A ticket is valid for one list; repetitions are
counted and ignored. Lateness and repetition are caused by the network, so neither is refused. Every other ticket is
unknown.

At most `MAX_OPEN` questions are open and `MAX_RECENT` tickets remembered; the oldest are dropped.
"""

from __future__ import annotations

from typing import Final

import msgspec

from dovetail.swarm.contacts import Contact
from dovetail.swarm.content import MsgHash
from dovetail.swarm.peer_exchange import Endpoint
from dovetail.swarm.queries import RangeList
from dovetail.swarm.refusals import UnknownTicket

ANSWER_WITHIN_US: Final = 1_000_000
RECENT_US: Final = 60_000_000
MAX_OPEN: Final = 8
MAX_RECENT: Final = 256


class Question:
    """A time-range pull without a complete answer yet."""

    __slots__ = (
        "asked_ms",
        "contact",
        "end_ms",
        "is_exploration",
        "is_full",
        "last_hash",
        "repeats",
        "sent_us",
        "start_ms",
    )

    def __init__(
        self, contact: Contact, start_ms: int, end_ms: int, asked_ms: int, *, is_full: bool, is_exploration: bool
    ) -> None:
        self.contact = contact
        self.start_ms = start_ms
        self.end_ms = end_ms
        self.asked_ms = asked_ms
        self.is_full = is_full
        self.is_exploration = is_exploration
        self.sent_us = 0
        self.last_hash: MsgHash | None = None
        """The end of the last list."""
        self.repeats = 0
        """How often the end of a list was asked for again."""


class _Recent(msgspec.Struct, frozen=True, gc=False):
    contact: Contact
    question: Question | None
    """None: answered, or no longer needed."""
    until_us: int


class Tickets:
    """All tickets that are open or remembered."""

    def __init__(self) -> None:
        self._open: dict[bytes, Question] = {}
        self._recent: dict[bytes, _Recent] = {}
        self.late = 0
        """Lists that arrived late or more than once."""

    def __len__(self) -> int:
        return len(self._open)

    @property
    def asked(self) -> set[Endpoint]:
        """Endpoints with an open question."""
        return {question.contact.endpoint for question in self._open.values()}

    def open(self, ticket: bytes, question: Question, now: int) -> None:
        """Register a question sent with this ticket."""
        if len(self._open) >= MAX_OPEN:
            self._close(next(iter(self._open)), now)
        question.sent_us = now
        self._recent.pop(ticket, None)
        self._open[ticket] = question

    def expire(self, now: int) -> None:
        """Close questions that were not answered in time."""
        for ticket, question in list(self._open.items()):
            if now - question.sent_us >= ANSWER_WITHIN_US:
                self._close(ticket, now)

    def claim(self, answer: RangeList, contact: Contact, now: int) -> Question | None:
        """Return the question that a list answers and use up its ticket. None if it was answered before.

        Raises UnknownTicket for a list that this contact was not asked for, and leaves the ticket valid.
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

    def handle_clock_step(self, now: int) -> None:
        """The clock was set back: answers to questions by the wrong clock are ignored, not refused."""
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
