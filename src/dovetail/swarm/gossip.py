"""Anti-entropy: time-range pulls, from one partner after the other.

References reveal only messages that another one refers to, and the newest have no referrer yet. So a peer asks its
partners in turn, every 5 s, and every 1 s while something is found, for what they have since the last question. Each
contact has a watermark, the time of the last complete answer, so that after a partition the first question covers all
of it. The window starts before the watermark by an overlap: messages arrive late when they were repaired, and carry
older timestamps when their composer's clock is slow, so the overlap follows the age of recently accepted messages.
Messages that the partner itself received later than that are listed anyway (`late_messages`), so that none falls
between two questions. From time to time a question reaches back `DEEP_MS`, twice that, and so on up to the longest
lifetime; each depth is asked so rarely that all depths together cost little. After 1 s without an answer the next
partner is asked; a list that arrives later is still used (`tickets`). An answer of many lists goes on where it stopped
when the partner is asked next: with losses, one that began again each time would never get to the end.

A contact that sends UEP-12 messages and is not validated is challenged: it is asked for everything, once in 5 s, and
the ticket in its list proves its address. The tickets of challenges are kept with the contacts, so that strangers
cannot displace those of questions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from dovetail.model.times import SECOND_US
from dovetail.swarm.contacts import Contact, Contacts, RandomSource
from dovetail.swarm.peer_exchange import Endpoint
from dovetail.swarm.queries import TICKET_BYTES, RangeList, encode_pull_range
from dovetail.swarm.tickets import ANSWER_WITHIN_US, Question, Tickets

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
"""How far back the first question to a partner reaches: it may come from another side of a partition, and contacts
that are silent for longer are forgotten."""
DEEP_MS: Final = 64_000
DEEP_PAUSE: Final = 8
"""A question of a given depth is asked at most once in this many times its depth."""
FULL_SYNCS: Final = 2
MAX_PREFERRED: Final = 8
MAX_UNFINISHED: Final = 8
RESUME_WITHIN_US: Final = 60 * SECOND_US
"""For longer than this a partner names what reached it late (`late_messages`): lists before need no repetition."""
RETURN_ATTEMPTS: Final = 8
"""Questions to a contact that was away for longer than `NEW_PARTNER_MS`: at 30 % loss every other one is answered. A
contact that was away for less is asked once; others have the same messages."""

MAX_REPEATS: Final = 256
"""Lists of one millisecond: enough for some 40,000 messages."""
CHALLENGE_US: Final = 5 * SECOND_US
"""The least time between two challenges of one contact."""


class Gossip:
    """Asks one partner after the other; the peer sends the contents of `outbox`."""

    def __init__(
        self, contacts: Contacts, random_source: RandomSource, lifetime_ms: int, max_future_ms: int, now: int
    ) -> None:
        self._contacts = contacts
        self._random = random_source
        self._lifetime_ms = lifetime_ms
        self._max_future_ms = max_future_ms
        self._tickets = Tickets()
        self._paused: Question | None = None
        self._unfinished: dict[Endpoint, tuple[Question, int]] = {}
        """What the last list of a partner left to be asked, and when it came."""
        self._turn = 0
        self._full_syncs = 0
        self._late: tuple[int, int] = (0, now)
        self._deep: dict[int, int] = {}
        self._tie_breaks: dict[Endpoint, float] = {}
        self._asked: dict[Endpoint, int] = {}
        self._preferred: dict[Endpoint, tuple[Contact, int]] = {}
        """Contacts to ask first, until they answer, and the attempts left."""
        self._is_preferred = False
        """True if the last contact asked was one of them."""
        self.due_us = now
        self.outbox: list[tuple[Contact, bytes]] = []

    def note_accepted(self, age_ms: int, now: int) -> None:
        """Messages were accepted, the oldest of this age: questions reach back as far for a while."""
        if age_ms >= self._late[0] or now - self._late[1] > LATE_MEMORY_US:
            self._late = (age_ms, now)

    def wake(self, now: int) -> None:
        """Something was found: ask again soon."""
        self.due_us = min(self.due_us, now + BUSY_US)

    def prefer(self, contact: Contact, now: int) -> None:
        """Ask a contact next: it is back after a silence, perhaps from another side of a partition, or is plain."""
        if len(self._preferred) < MAX_PREFERRED or contact.endpoint in self._preferred:
            was_long = contact.reached_ms is not None and now // 1000 - contact.reached_ms > NEW_PARTNER_MS
            self._preferred[contact.endpoint] = (contact, RETURN_ATTEMPTS if was_long else 1)
            self.due_us = min(self.due_us, now)

    def challenge(self, contact: Contact, now: int) -> None:
        """Let a contact prove its address, unless it was challenged recently."""
        if contact.challenge is None or now - contact.challenged_us >= CHALLENGE_US:
            contact.challenge = self._draw_ticket()
            contact.challenged_us = now
            # the more messages match, the more likely the answer is a list and not only messages
            start_ms, end_ms = max(0, now // 1000 - self._lifetime_ms), now // 1000 + self._max_future_ms
            self.outbox.append((contact, encode_pull_range(contact.challenge, start_ms, end_ms)))

    def handle_timer(self, now: int, has_room: Callable[[Endpoint], bool]) -> None:
        """Drop unanswered requests, then resume the paused one, or ask the next partner if there is no room for it."""
        if now < self.due_us:
            return
        self._tickets.expire(now)
        if self._paused is not None and has_room(self._paused.contact.endpoint):
            question, self._paused = self._paused, None
            self._ask(question, now)
        else:
            partner = self._next_partner()
            if partner is not None and (self._paused is None or partner[0] is not self._paused.contact):
                self._ask(self._question(*partner, now), now)
        waiting = self._tickets or self._paused is not None
        self.due_us = now + (ANSWER_WITHIN_US if waiting else ALONE_US)

    @property
    def late_answers(self) -> int:
        """Lists that arrived late or repeatedly."""
        return self._tickets.late

    def claim(self, answer: RangeList, contact: Contact, now: int) -> Question | None:
        """The question that a list answers; None for a repeated list. Raises UnknownTicket if we did not ask."""
        if contact.challenge is None or answer.ticket != contact.challenge:
            return self._tickets.claim(answer, contact, now)
        if contact.is_validated:
            self._tickets.late += 1
            return None
        return Question(contact, answer.start_ms, answer.end_ms, now // 1000, is_full=False, is_exploration=True)

    def receive_list(self, answer: RangeList, question: Question, now: int, found: int, has_room: bool) -> None:
        """Continue after the list that answers a claimed question; `found` of its hashes are missing here."""
        if answer.end_ms < question.end_ms:
            question.start_ms = _next_start(answer, question)
            self._note_unfinished(question, now)
            if has_room:
                self._ask(question, now)
            else:
                self._paused = question
                self.due_us = now + ALONE_US
            return
        if not question.is_exploration:
            # a late list must not set back the watermark of a later question
            question.contact.watermark_ms = max(question.contact.watermark_ms or 0, question.asked_ms)
            self._preferred.pop(question.contact.endpoint, None)
            self._unfinished.pop(question.contact.endpoint, None)
        if question.is_full:
            self._full_syncs += 1
        pause = BUSY_US if found or self._preferred else IDLE_US
        self.due_us = now + int(pause * (0.9 + 0.2 * self._random.random()))

    def handle_clock_step(self, now: int) -> None:
        """The clock was set back: ask for everything again."""
        self._tickets.handle_clock_step(now)
        self._paused = None
        self._unfinished.clear()
        self._full_syncs = 0
        self._late = (0, now)
        self._deep.clear()
        self.due_us = now

    def _note_unfinished(self, question: Question, now: int) -> None:
        if not question.is_exploration:
            self._unfinished.pop(question.contact.endpoint, None)
            if len(self._unfinished) >= MAX_UNFINISHED:
                del self._unfinished[next(iter(self._unfinished))]
            self._unfinished[question.contact.endpoint] = (question, now)

    def _question(self, contact: Contact, is_exploration: bool, now: int) -> Question:
        now_ms = now // 1000
        end_ms = now_ms + self._max_future_ms
        before, at = self._unfinished.get(contact.endpoint, (None, 0))
        if before is not None and not is_exploration and now - at <= RESUME_WITHIN_US:
            return Question(
                contact, before.start_ms, end_ms, before.asked_ms, is_full=before.is_full, is_exploration=False
            )
        if self._full_syncs < FULL_SYNCS and contact.watermark_ms is None:
            start_ms = max(0, now_ms - self._lifetime_ms)
            return Question(contact, start_ms, end_ms, now_ms, is_full=True, is_exploration=False)
        since = contact.watermark_ms
        if is_exploration:
            start_ms = now_ms - EXPLORE_WINDOW_MS
        elif since is None:
            start_ms = min(now_ms - NEW_PARTNER_MS, contact.known_until_ms or now_ms)
        else:
            start_ms = min(since, now_ms) - self._overlap_ms(now)
        start_ms = min(start_ms, now_ms - self._depth_ms(now))
        start_ms = max(0, start_ms, now_ms - self._lifetime_ms)
        return Question(contact, start_ms, end_ms, now_ms, is_full=False, is_exploration=is_exploration)

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
        """The partner least recently asked; every `EXPLORE_EVERY` turns another contact, to explore."""
        busy = self._tickets.asked
        # every other time, so that silent contacts do not block the others
        self._is_preferred = not self._is_preferred and any(endpoint not in busy for endpoint in self._preferred)
        if self._is_preferred:
            endpoint = next(endpoint for endpoint in self._preferred if endpoint not in busy)
            contact, attempts = self._preferred.pop(endpoint)
            if attempts > 1:
                self._preferred[endpoint] = (contact, attempts - 1)
            return contact, False
        self._turn += 1
        able = [contact for contact in self._contacts.known if contact.will_answer and contact.endpoint not in busy]
        if not able:
            return None
        # random among equals: if all peers asked the same ones, nobody would learn what the others have
        ranked = sorted(able, key=lambda contact: (-_rank(contact), self._tie_break(contact)))
        is_exploration = len(ranked) > PARTNERS and not self._turn % EXPLORE_EVERY
        ranked = ranked[PARTNERS:] if is_exploration else ranked[:PARTNERS]
        partner = min(ranked, key=lambda contact: (self._asked.get(contact.endpoint, 0), contact.endpoint))
        if len(self._asked) > 4 * len(able) + 64:
            self._asked = {contact.endpoint: self._asked.get(contact.endpoint, 0) for contact in able}
            self._tie_breaks = {contact.endpoint: self._tie_break(contact) for contact in able}
        self._asked[partner.endpoint] = self._turn
        return partner, is_exploration

    def _tie_break(self, contact: Contact) -> float:
        drawn = self._tie_breaks.get(contact.endpoint)
        if drawn is None:
            drawn = self._tie_breaks[contact.endpoint] = self._random.random()
        return drawn

    def _draw_ticket(self) -> bytes:
        return self._random.getrandbits(8 * TICKET_BYTES).to_bytes(TICKET_BYTES)

    def _ask(self, question: Question, now: int) -> None:
        ticket = self._draw_ticket()
        self._tickets.open(ticket, question, now)
        self.outbox.append((question.contact, encode_pull_range(ticket, question.start_ms, question.end_ms)))
        self.due_us = now + ANSWER_WITHIN_US


def _next_start(answer: RangeList, question: Question) -> int:
    """Where to continue after a list that covers part of a range.

    Its end is asked for again, since one millisecond may have more messages than fit into a list, until a list ends
    with the same message as the one before: then the other peer lists no more of that millisecond.
    """
    last_hash = answer.hashes[-1] if answer.hashes else None
    if last_hash is None or last_hash == question.last_hash or question.repeats >= MAX_REPEATS:
        question.last_hash, question.repeats = None, 0
        return answer.end_ms + 1
    question.last_hash = last_hash
    question.repeats = question.repeats + 1 if answer.end_ms == question.start_ms else 0
    return answer.end_ms


def _rank(contact: Contact) -> int:
    return 4 * contact.is_proven + 3 * contact.is_backward + 2 * contact.is_pinned + contact.is_forward
