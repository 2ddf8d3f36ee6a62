"""Finding out what was missed: time-range pulls in turn, and the pushing again of own messages.

References reveal only messages that somebody refers to, and the newest have no referrer yet. So a peer asks its
partners in turn, every 5 s, and every 1 s while something is found: what do you have since I last asked you? Each
contact has a watermark, the time of the last complete answer, so that after a partition the first question covers all
of it. The window reaches further back than the watermark by an overlap: messages come late when they were repaired,
and carry older times when their composer's clock is slow, so the overlap follows the age of what has lately been
accepted. What the partner itself got later than that it names all the same (`latecomers`), so that nothing falls
between two questions. Now and then a question reaches back `DEEP_MS`, twice that, and so on to the longest lifetime;
each depth is asked so seldom that all depths together cost little. An unanswered question goes to the next partner
after 1 s; a list that comes later is taken all the same (`tickets`).

A composer pushes its message again until it sees it come back, referred to or listed.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Final

from dovetail.model.address import Address
from dovetail.swarm.contacts import Chance, Contact, Contacts
from dovetail.swarm.peer_exchange import Endpoint
from dovetail.swarm.queries import RangeList, encode_pull_range
from dovetail.swarm.tickets import ANSWER_WITHIN_US, Question, Tickets

SECOND_US: Final = 1_000_000
IDLE_US: Final = 5 * SECOND_US
BUSY_US: Final = 1 * SECOND_US
ALONE_US: Final = SECOND_US // 2
PARTNERS: Final = 3
EXPLORE_EVERY: Final = 6
OVERLAP_MS: Final = 4_000
MAX_OVERLAP_MS: Final = 300_000
LATE_MEMORY_US: Final = 30 * SECOND_US
EXPLORE_WINDOW_MS: Final = 8_000
NEW_PARTNER_MS: Final = 600_000
"""How far back a new partner is asked: it may come from a part of the swarm that was cut off from ours, and contacts
that are silent for longer than that are forgotten with their watermarks."""
DEEP_MS: Final = 64_000
DEEP_PAUSE: Final = 8
"""A question of a given depth is asked at most once in so many times its depth."""
FULL_SYNCS: Final = 2
MAX_RETURNED: Final = 8
RETURNED_ATTEMPTS: Final = 8
"""So often is one asked that was away for longer than a new partner is asked for: at 30 % loss every other question is
answered. One that was away for less is asked once, others will tell the same."""
PUSH_AGAIN_US: Final = SECOND_US // 2
MAX_PUSH_AGAIN_US: Final = 60 * SECOND_US


class Gossip:
    """Asks partners in turn; the peer sends what is in `outbox`."""

    def __init__(self, contacts: Contacts, chance: Chance, lifetime_ms: int, max_future_ms: int, now: int) -> None:
        self._contacts = contacts
        self._chance = chance
        self._lifetime_ms = lifetime_ms
        self._max_future_ms = max_future_ms
        self._tickets = Tickets()
        self._paused: Question | None = None
        self._turn = 0
        self._full_syncs = 0
        self._late: tuple[int, int] = (0, now)
        self._deep: dict[int, int] = {}
        self._lots: dict[Endpoint, float] = {}
        self._asked: dict[Endpoint, int] = {}
        self._returned: dict[Endpoint, tuple[Contact, int]] = {}
        """Contacts to be asked first, until they answer, and how often that is tried."""
        self._is_returned = False
        """Whether the last one that was asked was one of them."""
        self.due_us = now
        self.outbox: list[tuple[Contact, bytes]] = []

    def note_accepted(self, age_ms: int, now: int) -> None:
        """A message of this age was accepted: look back as far for a while."""
        if age_ms >= self._late[0] or now - self._late[1] > LATE_MEMORY_US:
            self._late = (age_ms, now)

    def wake(self, now: int) -> None:
        """Something was found: ask soon again."""
        self.due_us = min(self.due_us, now + BUSY_US)

    def prefer(self, contact: Contact, now: int) -> None:
        """A contact is back after a silence: ask it next, it may have seen another part of the swarm."""
        if len(self._returned) < MAX_RETURNED or contact.endpoint in self._returned:
            was_long = contact.reached_ms is not None and now // 1000 - contact.reached_ms > NEW_PARTNER_MS
            self._returned[contact.endpoint] = (contact, RETURNED_ATTEMPTS if was_long else 1)
            self.due_us = min(self.due_us, now)

    def handle_timer(self, now: int, has_room: bool) -> None:
        """Give up what is unanswered and ask the next partner."""
        if now < self.due_us:
            return
        self._tickets.expire(now)
        if self._paused is not None and has_room:
            question, self._paused = self._paused, None
            self._ask(question, now)
        elif self._paused is None:
            partner = self._next_partner()
            if partner is not None:
                self._ask(self._question(*partner, now), now)
        waiting = self._tickets or self._paused is not None
        self.due_us = now + (ANSWER_WITHIN_US if waiting else ALONE_US)

    @property
    def late_answers(self) -> int:
        """Lists that came after their time, or again."""
        return self._tickets.late

    def claim(self, answer: RangeList, contact: Contact, now: int) -> Question | None:
        """The question that a list answers; None for one that came before. Raises UnknownTicket if we did not ask."""
        return self._tickets.claim(answer, contact, now)

    def receive_list(self, answer: RangeList, question: Question, now: int, found: int, has_room: bool) -> None:
        """Go on after the list that answers a claimed question; `found` hashes of it are not here."""
        if answer.end_ms < question.end_ms:
            question.start_ms = answer.end_ms + 1
            if has_room:
                self._ask(question, now)
            else:
                self._paused = question
                self.due_us = now + ALONE_US
            return
        if not question.is_explored:
            # a late list must not set back what a later question has reached
            question.contact.watermark_ms = max(question.contact.watermark_ms or 0, question.asked_ms)
            self._returned.pop(question.contact.endpoint, None)
        if question.is_full:
            self._full_syncs += 1
        pause = BUSY_US if found or self._returned else IDLE_US
        self.due_us = now + int(pause * (0.9 + 0.2 * self._chance.random()))

    def turn_back(self, now: int) -> None:
        """The clock was set back: ask for everything anew."""
        self._tickets.turn_back(now)
        self._paused = None
        self._full_syncs = 0
        self._late = (0, now)
        self._deep.clear()
        self.due_us = now

    def _question(self, contact: Contact, is_explored: bool, now: int) -> Question:
        now_ms = now // 1000
        end_ms = now_ms + self._max_future_ms
        if self._full_syncs < FULL_SYNCS and contact.watermark_ms is None:
            start_ms = max(0, now_ms - self._lifetime_ms)
            return Question(contact, start_ms, end_ms, now_ms, is_full=True, is_explored=False)
        since = contact.watermark_ms
        if is_explored:
            start_ms = now_ms - EXPLORE_WINDOW_MS
        elif since is None:
            start_ms = min(now_ms - NEW_PARTNER_MS, contact.known_until_ms or now_ms)
        else:
            start_ms = min(since, now_ms) - self._overlap_ms(now)
        start_ms = min(start_ms, now_ms - self._depth_ms(now))
        start_ms = max(0, start_ms, now_ms - self._lifetime_ms)
        return Question(contact, start_ms, end_ms, now_ms, is_full=False, is_explored=is_explored)

    def _overlap_ms(self, now: int) -> int:
        age_ms, at = self._late
        late_ms = age_ms * 5 // 4 if now - at <= LATE_MEMORY_US else 0
        return min(MAX_OVERLAP_MS, max(OVERLAP_MS, late_ms))

    def _depth_ms(self, now: int) -> int:
        """The greatest depth that is due, counted as asked."""
        depth, due = DEEP_MS, 0
        while depth < 2 * self._lifetime_ms:
            last = self._deep.setdefault(depth, now)
            if now - last >= depth * 1000 * DEEP_PAUSE:
                due = depth
            depth *= 2
        if due:
            for shallower in self._deep:
                if shallower <= due:
                    self._deep[shallower] = now
        return due

    def _next_partner(self) -> tuple[Contact, bool] | None:
        """Partners in turn, least recently asked first; now and then anybody else who answers, to explore."""
        busy = self._tickets.asked
        # every other time, so that those who stay silent do not keep us from the others
        self._is_returned = not self._is_returned and any(endpoint not in busy for endpoint in self._returned)
        if self._is_returned:
            endpoint = next(endpoint for endpoint in self._returned if endpoint not in busy)
            contact, attempts = self._returned.pop(endpoint)
            if attempts > 1:
                self._returned[endpoint] = (contact, attempts - 1)
            return contact, False
        self._turn += 1
        able = [contact for contact in self._contacts.known if contact.knows_us and contact.endpoint not in busy]
        if not able:
            return None
        # by lot among equals: if all peers asked the same ones, nobody would hear what the others have
        ranked = sorted(able, key=lambda contact: (-_rank(contact), self._lot(contact)))
        is_explored = len(ranked) > PARTNERS and not self._turn % EXPLORE_EVERY
        ranked = ranked[PARTNERS:] if is_explored else ranked[:PARTNERS]
        partner = min(ranked, key=lambda contact: (self._asked.get(contact.endpoint, 0), contact.endpoint))
        if len(self._asked) > 4 * len(able) + 64:
            self._asked = {contact.endpoint: self._asked.get(contact.endpoint, 0) for contact in able}
            self._lots = {contact.endpoint: self._lot(contact) for contact in able}
        self._asked[partner.endpoint] = self._turn
        return partner, is_explored

    def _lot(self, contact: Contact) -> float:
        lot = self._lots.get(contact.endpoint)
        if lot is None:
            lot = self._lots[contact.endpoint] = self._chance.random()
        return lot

    def _ask(self, question: Question, now: int) -> None:
        ticket = self._chance.getrandbits(32).to_bytes(4)
        self._tickets.give(ticket, question, now)
        self.outbox.append((question.contact, encode_pull_range(ticket, question.start_ms, question.end_ms)))
        self.due_us = now + ANSWER_WITHIN_US


def _rank(contact: Contact) -> int:
    return 4 * contact.is_proven + 3 * contact.is_backward + 2 * contact.is_pinned + contact.is_forward


class OwnMessages:
    """Messages composed here that nobody has been seen to have yet."""

    def __init__(self) -> None:
        self.watched: dict[Address, int] = {}
        """The pause before each is pushed again; for reading only."""
        self._queue: list[tuple[int, Address]] = []

    def __len__(self) -> int:
        return len(self.watched)

    def __contains__(self, address: Address) -> bool:
        return address in self.watched

    @property
    def next_due_us(self) -> int | None:
        """When one has to be pushed again."""
        while self._queue and self._queue[0][1] not in self.watched:
            heappop(self._queue)
        return self._queue[0][0] if self._queue else None

    def add(self, address: Address, now: int) -> None:
        """Watch a message that was just pushed."""
        self.watched[address] = PUSH_AGAIN_US
        heappush(self._queue, (now + PUSH_AGAIN_US, address))

    def confirm(self, address: Address) -> bool:
        """Somebody else has it, or it is over; True if that is news."""
        return self.watched.pop(address, None) is not None

    def turn_back(self, now: int) -> None:
        """The clock was set back: push all of them again soon."""
        self._queue = [(now + PUSH_AGAIN_US, address) for address in sorted(self.watched)]

    def collect(self, now: int) -> list[Address]:
        """What to push again now."""
        due = []
        while (at := self.next_due_us) is not None and at <= now:
            address = heappop(self._queue)[1]
            pause = self.watched[address] = min(MAX_PUSH_AGAIN_US, 2 * self.watched[address])
            heappush(self._queue, (now + pause, address))
            due.append(address)
        return due
