"""Tickets: valid for the peer they were given to, once, and for a bounded time in bounded memory."""

from __future__ import annotations

import random

import pytest

from dovetail.swarm.contacts import Contacts
from dovetail.swarm.queries import RangeList
from dovetail.swarm.refusals import UnknownTicket
from dovetail.swarm.tickets import ANSWER_WITHIN_US, MAX_OPEN, MAX_RECENT, RECENT_US, Question, Tickets

START = 1_700_000_000_000_000
CONTACTS = Contacts(bytes(20), "test", random.Random(1), 1000, 10)
ALICE, BOB = CONTACTS.get_or_add("alice", START), CONTACTS.get_or_add("bob", START)


def give(tickets: Tickets, number: int = 0, now: int = START) -> Question:
    question = Question(ALICE, 100, 200, 150, is_full=False, is_exploration=False)
    tickets.open(number.to_bytes(4), question, now)
    return question


def answer(number: int = 0, end_ms: int = 200) -> RangeList:
    return RangeList(number.to_bytes(4), 100, end_ms, ())


def assert_foreign(tickets: Tickets, number: int = 0, contact=ALICE, now: int = START, end_ms: int = 200) -> None:
    late = tickets.late
    with pytest.raises(UnknownTicket):
        tickets.claim(answer(number, end_ms), contact, now)
    assert tickets.late == late


def test_a_ticket_is_good_once_and_what_comes_again_is_counted():
    tickets = Tickets()
    question = give(tickets)
    assert tickets.claim(answer(), ALICE, START) is question
    assert tickets.late == 0
    assert tickets.claim(answer(), ALICE, START) is None
    assert tickets.claim(answer(), ALICE, START + RECENT_US - 1) is None
    assert tickets.late == 2
    assert_foreign(tickets, now=START + RECENT_US)


def test_a_late_ticket_is_good_once_and_then_only_counted():
    tickets = Tickets()
    question = give(tickets)
    tickets.expire(START + ANSWER_WITHIN_US - 1)
    assert len(tickets) == 1
    tickets.expire(START + ANSWER_WITHIN_US)
    assert len(tickets) == 0
    assert tickets.claim(answer(), ALICE, START + 30_000_000) is question
    assert tickets.claim(answer(), ALICE, START + 30_000_000) is None
    assert tickets.late == 2


def test_a_ticket_is_forgotten_after_its_time():
    tickets = Tickets()
    give(tickets)
    tickets.expire(START + ANSWER_WITHIN_US)
    assert_foreign(tickets, now=START + ANSWER_WITHIN_US + RECENT_US)


def test_another_peer_cannot_use_a_ticket_at_any_time_nor_spoil_it():
    tickets = Tickets()
    question = give(tickets)
    assert_foreign(tickets, contact=BOB)
    tickets.expire(START + ANSWER_WITHIN_US)
    assert_foreign(tickets, contact=BOB, now=START + ANSWER_WITHIN_US)
    assert tickets.claim(answer(), ALICE, START + ANSWER_WITHIN_US) is question
    assert_foreign(tickets, contact=BOB, now=START + ANSWER_WITHIN_US)


def test_a_list_that_ends_before_the_question_is_foreign_and_leaves_the_ticket():
    tickets = Tickets()
    question = give(tickets)
    assert_foreign(tickets, end_ms=99)
    tickets.expire(START + ANSWER_WITHIN_US)
    assert_foreign(tickets, end_ms=99, now=START + ANSWER_WITHIN_US)
    assert tickets.claim(answer(), ALICE, START + ANSWER_WITHIN_US) is question


def test_open_and_remembered_tickets_are_bounded_and_the_oldest_give_way():
    tickets = Tickets()
    given = [give(tickets, number) for number in range(MAX_OPEN + MAX_RECENT + 1)]
    assert len(tickets) == MAX_OPEN
    assert_foreign(tickets, number=0)
    for number in range(1, len(given)):
        assert tickets.claim(answer(number), ALICE, START) is given[number]
    assert tickets.late == MAX_RECENT


def test_after_the_clock_was_set_back_old_tickets_are_ignored_and_no_offence():
    tickets = Tickets()
    give(tickets, 1)
    tickets.expire(START + ANSWER_WITHIN_US)
    give(tickets, 2)
    earlier = START - 3_600_000_000
    tickets.handle_clock_step(earlier)
    assert len(tickets) == 0
    for number in (1, 2):
        assert tickets.claim(answer(number), ALICE, earlier) is None
    assert tickets.late == 2
