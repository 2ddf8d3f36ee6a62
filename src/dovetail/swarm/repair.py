"""Making the flow complete: pulls of what is missing, answers to the pulls of others, questions in turn, pushing again.

The parts decide (`pull.Wants`, `gossip.Gossip`, `gossip.OwnMessages`, `serving.Serving`); this module carries out
what they decided: it sends, observes, and tells the application about gaps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dovetail.model.address import Address
from dovetail.model.hop import Observation, Reason, Stage
from dovetail.swarm.contacts import Chance, Contact, Contacts
from dovetail.swarm.content import MsgHash, decode_references, latest_referee_expiration_ms
from dovetail.swarm.dag import Dag, Entry
from dovetail.swarm.events import Event, GapFilled, GapFound, GapGivenUp
from dovetail.swarm.gossip import Gossip, OwnMessages
from dovetail.swarm.late_messages import Latecomers
from dovetail.swarm.outbox import Outbox, Purpose
from dovetail.swarm.peer_exchange import Endpoint
from dovetail.swarm.pull import MAX_WANTED, Want, Wants
from dovetail.swarm.queries import PullHashes, PullRange, RangeList, encode_pull_hashes
from dovetail.swarm.serving import Serving
from dovetail.swarm.settings import PeerSettings, SwarmSettings

PUSH_AGAIN_PEERS: Final = 4
"""Seldom was nobody seen to have a message after half a second: then this push should arrive."""
PUSH_LATE_PEERS: Final = 12
LONG_PAUSE_US: Final = 16_000_000
"""From so long a pause on a push goes to more peers: the next one comes late."""
GIVEN_UP_AGE_MS: Final = 60_000
OTHER_PEERS: Final = 8
"""Among so many, chosen anew each time, are those asked for what its namer did not send."""


class Repair:
    """One peer's repair; writes into the peer's outbox and events."""

    def __init__(
        self,
        swarm: SwarmSettings,
        settings: PeerSettings,
        dag: Dag,
        contacts: Contacts,
        outbox: Outbox,
        events: list[Event],
        chance: Chance,
        now: int,
    ) -> None:
        self._epoch_ms = swarm.epoch_ms
        self._dag = dag
        self._contacts = contacts
        self._outbox = outbox
        self._events = events
        self._chance = chance
        self._max_future_ms = swarm.max_future_ms
        self.latecomers = Latecomers(chance, swarm.max_future_ms)
        self._serving = Serving(dag, settings.push_limit, self.latecomers)
        self.wants = Wants()
        self.own = OwnMessages()
        self.gossip = Gossip(contacts, chance, swarm.epoch_ms * swarm.max_ttl_epochs, swarm.max_future_ms, now)

    @property
    def next_due_us(self) -> int:
        """When `handle_timer` has something to do."""
        due = self.gossip.due_us
        for other in (self.wants.next_due_us, self.own.next_due_us):
            if other is not None and other < due:
                due = other
        return due

    def handle_timer(self, now: int) -> None:
        """Ask, pull and push what is due."""
        self.gossip.handle_timer(now, self._has_room)
        self._pull(now)
        self._push_again(now)

    def turn_back(self, now: int) -> None:
        """The clock was set back."""
        self.gossip.turn_back(now)
        self.wants.turn_back(now)
        self.own.turn_back(now)
        self.latecomers.turn_back(now)

    # -- answers to others

    def answer_hashes(self, query: PullHashes, contact: Contact, now: int) -> None:
        """Serve what was pulled by hash."""
        self._serve(self._serving.answer_hashes(query, contact, now), contact, now)

    def answer_range(self, query: PullRange, contact: Contact, now: int) -> None:
        """Send the list, and the messages where they are few."""
        if contact.is_proven:
            # our questions end as far ahead as messages may lie
            self.latecomers.note_asker(query.end_ms - self._max_future_ms, now)
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
        """Want what a new message refers to and is not here, unless it has expired for certain."""
        for edge in decode_references(entry.raw):
            if edge.msg_hash not in missing:
                continue
            deadline_ms = latest_referee_expiration_ms(entry.expires_ms, edge.epoch_diff, self._epoch_ms)
            if deadline_ms is None or deadline_ms > now // 1000:
                self.wants.add(edge.msg_hash, contact.endpoint, now, referrer=entry.address, deadline_ms=deadline_ms)

    def receive_list(self, answer: RangeList, contact: Contact, now: int) -> None:
        """Want what a partner has and we lack; raises UnknownTicket for a list that was not asked for."""
        question = self.gossip.claim(answer, contact, now)
        if question is None:
            return
        found = 0
        for msg_hash in answer.hashes:
            entries = self._dag.by_hash(msg_hash)
            if entries:
                contact.is_proven = True
                for entry in entries:
                    self.own.confirm(entry.address)
            else:
                self.wants.add(msg_hash, contact.endpoint, now, delay_us=0, is_history=question.is_full)
                found += 1
        self._contacts.validate(contact)
        self.gossip.receive_list(answer, question, now, found, self._has_room)

    def note_arrival(self, entry: Entry, age_ms: int, now: int) -> Want | None:
        """A message was accepted at this age; the want that it fulfils, if it was wanted."""
        if age_ms > self.latecomers.from_age_ms:
            self.latecomers.note(entry, now)
        want = self.wants.resolve(entry.msg_hash)
        if want is None:
            return None
        if want.asked is not None:
            asked = self._contacts.find(want.asked)
            uri = asked.uri if asked else f"udp://{want.asked}"
            self._events.append(Observation(at_us=now, stage=Stage.PULLED, message=entry.address, counterparts=(uri,)))
        if want.is_announced:
            self._events.append(GapFilled(want.msg_hash, entry.address))
        return want

    @property
    def _has_room(self) -> bool:
        return len(self.wants) < MAX_WANTED // 2

    def _pull(self, now: int) -> None:
        due = self.wants.next_due_us
        if due is None or due > now:
            return
        others = [contact.endpoint for contact in self._contacts.pick(OTHER_PEERS, _will_answer)]

        def other_peer(want: Want) -> Endpoint:
            fit = [endpoint for endpoint in others if endpoint != want.asked] or [want.named_by]
            return fit[(want.msg_hash[0] + want.attempts) % len(fit)]

        asks, given_up = self.wants.collect(now, other_peer, self._chance.random)
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
        # the next questions reach back as far: somebody else may list it
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
                counterparts=(namer.uri if namer else f"udp://{want.named_by}",),
                reason=Reason.GIVEN_UP,
            )
        )

    # -- own messages

    def confirm_referred(self, entry: Entry) -> None:
        """Somebody else's message refers to ours: it has arrived."""
        for edge in entry.refers:
            for referee in self._dag.by_hash(edge):
                self.own.confirm(referee.address)

    def note_expired(self, address: Address, now: int) -> None:
        """A message expired; where it is an own one that nobody was seen to have, that is observed."""
        if self.own.confirm(address):
            self._events.append(
                Observation(at_us=now, stage=Stage.EXPIRED, message=address, reason=Reason.LIFETIME_OVER)
            )

    def _push_again(self, now: int) -> None:
        for address in self.own.collect(now):
            entry = self._dag.get(address)
            is_late = self.own.watched[address] >= LONG_PAUSE_US
            receivers = self._contacts.pick(PUSH_LATE_PEERS if is_late else PUSH_AGAIN_PEERS, _is_validated)
            if entry is None or not receivers:
                continue
            self._outbox.send(entry.raw, receivers, Purpose.REPAIR, now)
            uris = tuple([contact.uri for contact in receivers])
            self._events.append(Observation(at_us=now, stage=Stage.FORWARDED, message=address, counterparts=uris))


def _is_validated(contact: Contact) -> bool:
    return contact.is_validated


def _will_answer(contact: Contact) -> bool:
    return contact.knows_us or contact.is_backward
