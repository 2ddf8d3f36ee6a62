"""Time-range pulls: from whom, when and how far back; own messages until they are seen."""

from __future__ import annotations

import itertools
import random

import pytest

from dovetail.swarm.contacts import Contacts
from dovetail.swarm.gossip import (
    BUSY_US,
    DEEP_MS,
    DEEP_PAUSE,
    FULL_SYNCS,
    IDLE_US,
    MAX_PREFERRED,
    NEW_PARTNER_MS,
    OVERLAP_MS,
    PARTNERS,
    RETURN_ATTEMPTS,
    Gossip,
)
from dovetail.swarm.queries import PullRange, RangeList, decode_message
from dovetail.swarm.refusals import UnknownTicket

START = 1_700_000_000_000_000
LIFETIME_MS = 3_600_000
SECOND = 1_000_000


def has_room(_endpoint: str) -> bool:
    return True


def has_no_room(_endpoint: str) -> bool:
    return False


class Asking:
    """A gossip whose partners all answer immediately with nothing new."""

    def __init__(self, partners: int = 3, seed: int = 2) -> None:
        self.contacts = Contacts(bytes(20), "test", random.Random(1), 10**9, 10**6)
        for number in range(partners):
            contact = self.contacts.get_or_add(f"peer {number}", START)
            self.contacts.validate(contact)
            contact.knows_us = contact.is_backward = True
        self.gossip = Gossip(self.contacts, random.Random(seed), LIFETIME_MS, 60_000, START)
        self.now = START
        self.asked: list[tuple[int, str, PullRange]] = []

    def run(self, seconds: float, *, found: int = 0, deaf: tuple[str, ...] = ()) -> None:
        end = self.now + int(seconds * SECOND)
        while self.gossip.due_us <= end:
            self.now = max(self.now, self.gossip.due_us)
            self.gossip.handle_timer(self.now, has_room)
            self.answer(found, deaf)
        self.now = end

    def answer(self, found: int, deaf: tuple[str, ...]) -> None:
        outbox, self.gossip.outbox = self.gossip.outbox, []
        for contact, message in outbox:
            query = decode_message(message)
            assert isinstance(query, PullRange)
            self.asked.append((self.now, contact.endpoint, query))
            if contact.endpoint not in deaf:
                answer = RangeList(query.ticket, query.start_ms, query.end_ms, ())
                question = self.gossip.claim(answer, contact, self.now)
                assert question is not None
                self.gossip.receive_list(answer, question, self.now, found, True)

    def pauses(self) -> list[float]:
        times = [at for at, _, _ in self.asked]
        return [(later - at) / SECOND for at, later in itertools.pairwise(times)]


def test_partners_are_asked_in_turn_every_five_seconds():
    asking = Asking(3)
    asking.run(60)
    assert all(0.9 * IDLE_US <= pause * SECOND <= 1.1 * IDLE_US for pause in asking.pauses())
    assert {endpoint for _, endpoint, _ in asking.asked[:3]} == {"peer 0", "peer 1", "peer 2"}


def test_every_second_while_something_is_found():
    asking = Asking(3)
    asking.run(20, found=1)
    assert all(pause * SECOND <= 1.1 * BUSY_US for pause in asking.pauses())


def test_an_unanswered_question_goes_to_the_next_partner_after_a_second():
    asking = Asking(3)
    asking.run(10, deaf=("peer 0", "peer 1", "peer 2"))
    assert asking.pauses() == [1.0] * (len(asking.asked) - 1)
    assert len({endpoint for _, endpoint, _ in asking.asked[:3]}) == 3


def test_the_first_two_questions_ask_for_everything_and_later_ones_from_the_watermark():
    asking = Asking(2)
    asking.run(40)
    first, second, third = (query for _, _, query in asking.asked[:3])
    assert [round((START // 1000 - query.start_ms) / 1000) for query in (first, second)] == [3600, 3595]
    asked_before = asking.asked[0][0] // 1000
    assert third.start_ms == asked_before - OVERLAP_MS


def test_a_new_partner_is_asked_for_the_time_in_which_it_may_have_been_cut_off():
    asking = Asking(FULL_SYNCS + 1)
    asking.run(60)
    first_of_third = {endpoint: query for _, endpoint, query in reversed(asking.asked)}["peer 2"]
    at = next(at for at, endpoint, _ in asking.asked if endpoint == "peer 2")
    assert at // 1000 - first_of_third.start_ms == NEW_PARTNER_MS
    later = [(at, query) for at, endpoint, query in asking.asked if endpoint == "peer 2"][1:]
    assert later
    assert all(at // 1000 - query.start_ms < 30_000 for at, query in later)


def test_after_a_silence_the_question_covers_all_of_it():
    asking = Asking(2)
    asking.run(20)
    before = max(at for at, endpoint, _ in asking.asked if endpoint == "peer 1")
    asking.run(60, deaf=("peer 1",))
    asking.asked.clear()
    asking.run(15)
    query = next(query for _, endpoint, query in asking.asked if endpoint == "peer 1")
    assert query.start_ms <= before // 1000


def test_the_overlap_follows_the_age_of_what_was_accepted_lately():
    asking = Asking(2)
    asking.run(30)
    asking.gossip.note_accepted(40_000, asking.now)
    asking.asked.clear()
    asking.run(6)
    at, _, query = asking.asked[0]
    assert at // 1000 - query.start_ms >= 50_000
    asking.run(60)
    at, _, query = asking.asked[-1]
    assert at // 1000 - query.start_ms < 20_000


def test_now_and_then_a_question_reaches_deeper():
    asking = Asking(2)
    asking.run(2 * DEEP_PAUSE * DEEP_MS / 1000)
    depths = [at // 1000 - query.start_ms for at, _, query in asking.asked[4:]]
    assert 1 <= sum(depth >= DEEP_MS for depth in depths) <= 3


def test_a_contact_that_is_back_is_asked_at_once():
    asking = Asking(6)
    asking.run(30)
    back = asking.contacts.find("peer 5")
    asking.gossip.prefer(back, asking.now)
    asking.asked.clear()
    asking.run(0.1)
    assert asking.asked[0][1] == "peer 5"


def test_contacts_that_are_back_are_asked_until_they_answer_but_not_for_ever_and_not_alone():
    asking = Asking(12)
    asking.run(30)
    partners = {endpoint for _, endpoint, _ in asking.asked}
    talks, deaf = sorted({contact.endpoint for contact in asking.contacts} - partners)[:2]
    for endpoint in (talks, deaf):
        contact = asking.contacts.find(endpoint)
        contact.watermark_ms = asking.now // 1000 - NEW_PARTNER_MS - 1
        asking.gossip.prefer(contact, asking.now)
    asking.asked.clear()
    asking.run(40, deaf=(deaf,))
    asked = [endpoint for _, endpoint, _ in asking.asked]
    assert asked[0] == talks
    # at most once more, when peers other than the partners are explored
    assert asked.count(talks) <= 2
    assert RETURN_ATTEMPTS <= asked.count(deaf) <= RETURN_ATTEMPTS + 1
    assert (deaf, deaf) not in itertools.pairwise(asked)
    assert len(set(asked) & partners) >= PARTNERS


def test_a_contact_that_was_away_for_a_short_time_is_asked_first_only_once():
    asking = Asking(12)
    asking.run(30)
    partners = {endpoint for _, endpoint, _ in asking.asked}
    (back, *_) = sorted({contact.endpoint for contact in asking.contacts} - partners)
    asking.contacts.find(back).watermark_ms = asking.now // 1000 - 60_000
    asking.gossip.prefer(asking.contacts.find(back), asking.now)
    asking.asked.clear()
    asking.run(10, deaf=(back,))
    asked = [endpoint for _, endpoint, _ in asking.asked]
    assert (asked[0], asked.count(back)) == (back, 1)
    assert asking.asked[0][2].start_ms == asking.asked[0][0] // 1000 - 60_000 - OVERLAP_MS


@pytest.mark.parametrize("away_ms", [60_000, NEW_PARTNER_MS + 60_000])
def test_one_that_is_back_is_asked_for_no_less_than_a_new_partner_is(away_ms):
    asking = Asking(12)
    asking.run(30)
    contact = asking.contacts.find(asking.asked[0][1])
    contact.watermark_ms, contact.known_until_ms = None, asking.now // 1000 - away_ms
    asking.gossip.prefer(contact, asking.now)
    asking.asked.clear()
    asking.run(1)
    now, endpoint, question = asking.asked[0]
    assert (endpoint, question.start_ms) == (contact.endpoint, now // 1000 - max(away_ms, NEW_PARTNER_MS))


def test_contacts_that_are_back_are_bounded():
    asking = Asking(MAX_PREFERRED + 5)
    for contact in asking.contacts:
        asking.gossip.prefer(contact, asking.now)
    assert len(asking.gossip._preferred) == MAX_PREFERRED


def test_partners_are_chosen_by_lot_among_equals():
    def asked_first(seed: int) -> frozenset[str]:
        asking = Asking(PARTNERS + 4, seed)
        asking.run(12)
        return frozenset(endpoint for _, endpoint, _ in asking.asked)

    assert {len(asked_first(seed)) for seed in range(20)} == {PARTNERS}
    assert frozenset.union(*map(asked_first, range(20))) == {f"peer {number}" for number in range(PARTNERS + 4)}


def test_others_than_the_partners_are_explored():
    asking = Asking(PARTNERS + 4)
    asking.run(240)
    assert len({endpoint for _, endpoint, _ in asking.asked}) > PARTNERS


def test_without_partners_nobody_is_asked():
    asking = Asking(0)
    asking.run(10)
    assert asking.asked == []


def test_an_answer_that_goes_back_before_the_question_is_refused():
    asking = Asking(1)
    asking.gossip.handle_timer(START, has_room)
    contact, message = asking.gossip.outbox[0]
    query = decode_message(message)
    with pytest.raises(UnknownTicket):
        asking.gossip.claim(RangeList(query.ticket, 0, query.start_ms - 1, ()), contact, START)


def get_cut_list(asking, *, leaves_room):
    """Ask a partner, and get the first of several lists; returns the partner and the question."""
    asking.gossip.handle_timer(START, has_room)
    partner, message = asking.gossip.outbox.pop()
    query = decode_message(message)
    cut = RangeList(query.ticket, query.start_ms, query.start_ms + 10, ())
    question = asking.gossip.claim(cut, partner, START)
    asking.gossip.receive_list(cut, question, START, 170, leaves_room)
    return partner, query


def test_without_room_for_wants_of_one_partner_another_is_asked():
    asking = Asking(2)
    first, _ = get_cut_list(asking, leaves_room=False)
    for second in range(1, 20):
        asking.gossip.handle_timer(START + second * SECOND, lambda endpoint: endpoint != first.endpoint)
    assert {contact.endpoint for contact, _ in asking.gossip.outbox} == {
        contact.endpoint for contact in asking.contacts.known if contact is not first
    }


def test_without_room_for_wants_a_cut_list_is_continued_later():
    asking = Asking(1)
    _, query = get_cut_list(asking, leaves_room=False)
    asking.gossip.handle_timer(START + SECOND, has_no_room)
    assert asking.gossip.outbox == []
    asking.gossip.handle_timer(START + 3 * SECOND, has_room)
    ((_, message),) = asking.gossip.outbox
    assert decode_message(message).start_ms == query.start_ms + 11


def test_an_answer_of_many_lists_goes_on_where_it_stopped_if_one_is_lost():
    asking = Asking(1)
    gossip = asking.gossip

    def ask(answers_until_ms: int | None) -> PullRange:
        """The next question, answered by a list up to then, or not at all."""
        if not gossip.outbox:
            asking.now = max(asking.now, gossip.due_us)
            gossip.handle_timer(asking.now, has_room)
        ((contact, message),) = gossip.outbox
        gossip.outbox = []
        query = decode_message(message)
        assert isinstance(query, PullRange)
        if answers_until_ms is not None:
            answer = RangeList(query.ticket, query.start_ms, answers_until_ms, ())
            question = gossip.claim(answer, contact, asking.now)
            assert question is not None
            gossip.receive_list(answer, question, asking.now, 1, has_room=True)
        return query

    half_ms = START // 1000 - LIFETIME_MS // 2
    first = ask(half_ms)
    assert [ask(None).start_ms for _ in range(3)] == [half_ms + 1] * 3
    last = ask(START // 1000 + 70_000)
    assert (first.start_ms, last.start_ms) == (START // 1000 - LIFETIME_MS, half_ms + 1)
    (contact,) = asking.contacts.known
    assert contact.watermark_ms == START // 1000, "when the first of the lists was asked for"


def test_an_answer_that_stopped_long_ago_begins_again():
    asking = Asking(1)
    _, query = get_cut_list(asking, leaves_room=True)
    for seconds, start_ms in ((60, query.start_ms + 11), (61, query.start_ms + 61_000)):
        asking.gossip.outbox.clear()
        asking.gossip.handle_timer(START + seconds * SECOND, has_room)
        assert decode_message(asking.gossip.outbox[0][1]).start_ms == start_ms


def test_a_late_list_does_not_set_the_watermark_back():
    asking = Asking(1)
    asking.gossip.handle_timer(START, has_room)
    contact, message = asking.gossip.outbox.pop()
    first = decode_message(message)
    asking.gossip.handle_timer(START + SECOND, has_room)
    _, message = asking.gossip.outbox.pop()
    second = decode_message(message)
    for query in (second, first):
        answer = RangeList(query.ticket, query.start_ms, query.end_ms, ())
        question = asking.gossip.claim(answer, contact, START + 2 * SECOND)
        asking.gossip.receive_list(answer, question, START + 2 * SECOND, 0, True)
        assert contact.watermark_ms == (START + SECOND) // 1000
    assert asking.gossip.late_answers == 1
