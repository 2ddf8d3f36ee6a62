"""Repair: pulls of missing messages, replies to pulls, time-range questions, repeated pushes.

`pull.Wants`, `gossip.Gossip`, `own_messages.OwnMessages` and `serving.Serving` decide; this module executes their
decisions: it sends, observes, and reports gaps to the application.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dovetail.model.address import Address
from dovetail.model.hop import Observation, Reason, Stage
from dovetail.swarm.acceptance import Entry
from dovetail.swarm.contacts import Contact, Contacts, RandomSource
from dovetail.swarm.content import MAX_CONTENT_BYTES, MsgHash, decode_content, is_expired, latest_referee_expiration_ms
from dovetail.swarm.dag import Dag
from dovetail.swarm.events import Event, GapFilled, GapFound, GapGivenUp
from dovetail.swarm.gossip import Gossip
from dovetail.swarm.late_messages import LateMessages
from dovetail.swarm.outbox import Outbox, Purpose
from dovetail.swarm.own_messages import OwnMessages
from dovetail.swarm.peer_exchange import Endpoint
from dovetail.swarm.pull import Want, Wants
from dovetail.swarm.queries import PullHashes, PullRange, RangeList, encode_pull_hashes
from dovetail.swarm.serving import Serving
from dovetail.swarm.settings import PeerSettings, SwarmSettings

REPEAT_PEERS: Final = 4
"""Receivers of a repeated push."""
LATE_REPEAT_PEERS: Final = 12
LONG_PAUSE_US: Final = 16_000_000
"""From this delay on, a repeated push goes to more peers, since the next one is far off."""
GIVEN_UP_AGE_MS: Final = 60_000
OTHER_PEERS: Final = 8
"""Random contacts per turn to pull from if the peer that named a message did not send it."""


class Repair:
    """One peer's repair; writes to the peer's outbox and events."""

    def __init__(
        self,
        swarm: SwarmSettings,
        settings: PeerSettings,
        dag: Dag,
        contacts: Contacts,
        outbox: Outbox,
        events: list[Event],
        random_source: RandomSource,
        now: int,
    ) -> None:
        self._epoch_ms = swarm.epoch_ms
        self._dag = dag
        self._contacts = contacts
        self._outbox = outbox
        self._events = events
        self._random = random_source
        self._max_future_ms = swarm.max_future_ms
        self.late_messages = LateMessages(random_source, swarm.max_future_ms)
        self._serving = Serving(dag, settings.push_limit, self.late_messages)
        self.wants = Wants(settings.max_wanted)
        self.own = OwnMessages()
        self.gossip = Gossip(contacts, random_source, swarm.epoch_ms * swarm.max_ttl_epochs, swarm.max_future_ms, now)

    @property
    def next_due_us(self) -> int:
        """When `handle_timer` has work to do."""
        due = self.gossip.due_us
        for other in (self.wants.next_due_us, self.own.next_due_us):
            if other is not None and other < due:
                due = other
        return due

    def handle_timer(self, now: int) -> None:
        """Send the questions, pulls and repeated pushes that are due."""
        self.gossip.handle_timer(now, self.wants.has_room)
        self._pull(now)
        self._repeat_pushes(now)

    def handle_clock_step(self, now: int) -> None:
        """The clock was set back."""
        self.gossip.handle_clock_step(now)
        self.wants.handle_clock_step(now)
        self.own.handle_clock_step(now)
        self.late_messages.handle_clock_step(now)

    # -- answers to others

    def answer_hashes(self, query: PullHashes, contact: Contact, now: int) -> None:
        """Reply to a pull by hash."""
        self._serve(self._serving.answer_hashes(query, contact, now), contact, now)

    def answer_range(self, query: PullRange, contact: Contact, now: int) -> None:
        """Reply to a pull by time: a list, and the messages if they are few."""
        if contact.is_proven:
            # a question ends as far ahead of the asker's clock as messages may be
            self.late_messages.note_asker(query.end_ms - self._max_future_ms, now)
        answer, entries = self._serving.answer_range(query, contact, now)
        self._outbox.send(answer, (contact,), Purpose.REPAIR, now)
        self._serve(entries, contact, now)

    def _serve(self, entries: Sequence[Entry], contact: Contact, now: int) -> None:
        for entry in entries:
            self._outbox.send(entry.raw, (contact,), Purpose.REPAIR, now)
            self._events.append(
                Observation(at_us=now, stage=Stage.SERVED, message=entry.address, counterparts=(contact.uri,))
            )

    # -- what is missing here

    def want_references(self, entry: Entry, missing: Sequence[MsgHash], contact: Contact, now: int) -> None:
        """Want the missing references of a new message, except those that have certainly expired."""
        for edge in decode_content(entry.raw).references:
            if edge.msg_hash not in missing:
                continue
            deadline_ms = latest_referee_expiration_ms(entry.expires_ms, edge.epoch_diff, self._epoch_ms)
            if deadline_ms is None or not is_expired(deadline_ms, now // 1000):
                self.wants.add(
                    edge.msg_hash,
                    contact.endpoint,
                    now,
                    share=contact.share,
                    referrer=entry.address,
                    deadline_ms=deadline_ms,
                )

    def receive_list(self, answer: RangeList, contact: Contact, now: int) -> None:
        """Want what a partner has and we lack; raises UnknownTicket for a list that we did not ask for."""
        question = self.gossip.claim(answer, contact, now)
        if question is None:
            return
        found = 0
        share = contact.share
        can_hold = self._dag.room.admits(share, MAX_CONTENT_BYTES)
        for msg_hash in answer.hashes:
            entries = self._dag.by_hash(msg_hash)
            if entries:
                contact.is_proven = True
                for entry in entries:
                    self.own.confirm(entry.address)
            elif can_hold:
                self.wants.add(msg_hash, contact.endpoint, now, share=share, delay_us=0, is_history=question.is_full)
                found += 1
        self._contacts.validate(contact)
        self.gossip.receive_list(answer, question, now, found, self.wants.has_room(share))

    def note_arrival(self, entry: Entry, age_ms: int, now: int) -> Want | None:
        """Record that a message of this age was accepted; returns the want it resolves, if any."""
        if age_ms > self.late_messages.from_age_ms:
            self.late_messages.note(entry, now)
        want = self.wants.resolve(entry.msg_hash)
        if want is None:
            return None
        if want.asked is not None:
            uri = self._contacts.uri_of(want.asked)
            self._events.append(Observation(at_us=now, stage=Stage.PULLED, message=entry.address, counterparts=(uri,)))
        if want.is_announced:
            self._events.append(GapFilled(want.msg_hash, entry.address))
        return want

    def _pull(self, now: int) -> None:
        due = self.wants.next_due_us
        if due is None or due > now:
            return
        others = [contact.endpoint for contact in self._contacts.pick(OTHER_PEERS, _will_answer)]

        def other_peer(want: Want) -> Endpoint:
            able = [endpoint for endpoint in others if endpoint != want.asked] or [want.named_by]
            return able[(want.msg_hash[0] + want.attempts) % len(able)]

        asks, given_up = self.wants.collect(now, other_peer, self._random.random)
        for endpoint, wants in asks.items():
            contact = self._contacts.find(endpoint)
            if contact is None:
                continue
            self._outbox.send(encode_pull_hashes([want.msg_hash for want in wants]), (contact,), Purpose.REPAIR, now)
            for want in wants:
                if want.referrer is not None and not want.is_announced:
                    want.is_announced = True
                    self._events.append(GapFound(want.msg_hash, want.referrer))
        for want in given_up:
            self._note_given_up(want, now)

    def _note_given_up(self, want: Want, now: int) -> None:
        namer = self._contacts.find(want.named_by)
        # the next questions reach back this far: another peer may list it
        referrer = self._dag.get(want.referrer) if want.referrer is not None else None
        self.gossip.note_accepted(now // 1000 - referrer.timestamp_ms if referrer else GIVEN_UP_AGE_MS, now)
        if want.referrer is None:
            if namer is not None:
                namer.is_proven = False
            return
        self._events.append(GapGivenUp(want.msg_hash, want.referrer))
        self._events.append(
            Observation(
                at_us=now,
                stage=Stage.PULLED,
                message=want.referrer,
                counterparts=(self._contacts.uri_of(want.named_by),),
                reason=Reason.GIVEN_UP,
            )
        )

    # -- own messages

    def confirm_referred(self, entry: Entry) -> None:
        """Another peer's message refers to ours, so ours has arrived."""
        for edge in entry.refers:
            for referee in self._dag.by_hash(edge):
                self.own.confirm(referee.address)

    def note_expired(self, address: Address, now: int) -> None:
        """A message expired; observed if it is our own and no other peer is known to have it."""
        if self.own.confirm(address):
            self._events.append(
                Observation(at_us=now, stage=Stage.EXPIRED, message=address, reason=Reason.LIFETIME_OVER)
            )

    def _repeat_pushes(self, now: int) -> None:
        for address in self.own.collect(now):
            entry = self._dag.get(address)
            is_late = self.own.unconfirmed[address] >= LONG_PAUSE_US
            receivers = self._contacts.pick(LATE_REPEAT_PEERS if is_late else REPEAT_PEERS, _is_reachable)
            if entry is None or not receivers:
                continue
            self._outbox.send(entry.raw, receivers, Purpose.REPAIR, now)
            uris = tuple([contact.uri for contact in receivers])
            self._events.append(Observation(at_us=now, stage=Stage.FORWARDED, message=address, counterparts=uris))


def _is_reachable(contact: Contact) -> bool:
    return contact.is_reachable


def _will_answer(contact: Contact) -> bool:
    return contact.will_answer or contact.is_backward
