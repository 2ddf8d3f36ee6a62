"""Content messages on their way in: judged, taken into the graph, observed, told to the application, and relayed.

This is the path that every message takes at every peer, so it is made for many at a time: what is the same for all
messages that came together from one contact is looked up once. A message that is known costs one hash, a new one two.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from dovetail.model.address import Address
from dovetail.model.hop import Observation, Stage
from dovetail.swarm.contacts import Contact, Contacts, Route, make_route
from dovetail.swarm.content import (
    HASH_BYTES,
    ContentRules,
    MsgHash,
    bad_work,
    check_times,
    decode_content,
    decode_fields,
    work_bound,
    work_of,
)
from dovetail.swarm.dag import NOTHING_SPECIAL, Added, Dag, Entry
from dovetail.swarm.events import CollisionFound, CycleFound, Event, MessageAccepted
from dovetail.swarm.neighbours import Neighbours
from dovetail.swarm.outbox import Outbox, Purpose
from dovetail.swarm.peer_exchange import Endpoint
from dovetail.swarm.refusals import Refusal, SelfReference
from dovetail.swarm.repair import Repair

FIRST_PUSHES: Final = 12
"""So many copies of a new message are all lost once in two million times at 30 % loss."""
RELAY_EPOCHS: Final = 2
"""A message that was pulled is relayed only while it is this young, and never when it was found by asking for all the
past: whoever joins does not repeat it."""

# an attribute of an enum is a call, here for every message
_ACCEPTED: Final = Stage.ACCEPTED
_FORWARDED: Final = Stage.FORWARDED


class Intake:
    """One peer's intake; writes into the peer's outbox and events."""

    def __init__(
        self,
        uri: str,
        rules: ContentRules,
        dag: Dag,
        contacts: Contacts,
        neighbours: Neighbours,
        repair: Repair,
        outbox: Outbox,
        events: list[Event],
        address_of: Callable[[bytes], Address],
        refuse: Callable[[Refusal, bytes, Endpoint, int], None],
    ) -> None:
        self._uri = uri
        self._rules = rules
        self._work_bound = work_bound(rules.pow_target)
        self._dag = dag
        self._contacts = contacts
        self._neighbours = neighbours
        self._repair = repair
        self._outbox = outbox
        self._events = events
        self._address_of = address_of
        self._refuse = refuse
        self.has_application = True
        self.accepted = 0
        self.duplicates = 0

    def receive(self, messages: Sequence[bytes], contact: Contact, now: int) -> None:
        """Content messages came from a contact, in this order."""
        dag, rules, bound, address_of = self._dag, self._rules, self._work_bound, self._address_of
        entries, passing, now_ms = dag.entries, dag.passing, now // 1000
        contact.delivered += len(messages)
        relayed: list[Entry] = []
        for message in messages:
            address = address_of(message)
            if address in entries or address in passing:
                self.duplicates += 1
                self._repair.own.confirm(address)
                continue
            try:
                timestamp_ms, ttl_epochs, refers = decode_fields(message)
                # `check_work`, with the bound made once
                if (work := work_of(message)) >= bound:
                    raise bad_work(work, rules.pow_target)
                expires_ms = check_times(timestamp_ms, ttl_epochs, now_ms, rules)
                msg_hash: MsgHash = address[:HASH_BYTES]  # type: ignore[assignment]  # as for `message_address`
                if msg_hash in refers:
                    raise SelfReference("it refers to its own hash")
            except Refusal as refusal:
                self._refuse(refusal, message, contact.endpoint, now)
                continue
            entry = Entry(address, msg_hash, timestamp_ms, expires_ms, ttl_epochs, refers, message)
            if self._take(entry, contact, now, now_ms):
                relayed.append(entry)
        if relayed:
            self._relay(relayed, self._contacts.route_from(contact), now)

    def publish(self, entry: Entry, now: int) -> None:
        """Take in a message that was composed here, and push it."""
        added = self._dag.add(entry)
        self.accepted += 1
        self._events.append(
            Observation(
                at_us=now,
                stage=Stage.CREATED,
                message=entry.address,
                raw=entry.raw,
                expires_us=entry.expires_ms * 1000,
            )
        )
        self._repair.note_arrival(entry, now // 1000 - entry.timestamp_ms, now)
        if self.has_application:
            self._events.append(MessageAccepted(entry.address, decode_content(entry.raw), self._uri, now))
        self._report(entry, added)
        self._relay([entry], self._first_route(), now)

    def _take(self, entry: Entry, contact: Contact, now: int, now_ms: int) -> bool:
        """Take a new message of a contact in; whether it goes on to the links."""
        added = self._dag.add(entry)
        self.accepted += 1
        self._events.append(
            Observation(
                at_us=now,
                stage=_ACCEPTED,
                message=entry.address,
                counterparts=contact.uris,
                raw=entry.raw,
                expires_us=entry.expires_ms * 1000,
            )
        )
        repair = self._repair
        age_ms = now_ms - entry.timestamp_ms
        want = repair.note_arrival(entry, age_ms, now)
        self._neighbours.note_accepted(contact)
        repair.gossip.note_accepted(age_ms, now)
        if self.has_application:
            self._events.append(Observation(at_us=now, stage=Stage.DELIVERED, message=entry.address))
            self._events.append(MessageAccepted(entry.address, decode_content(entry.raw), contact.uri, now))
        if added is not NOTHING_SPECIAL:
            self._report(entry, added)
            if added.missing:
                repair.want_references(entry, added.missing, contact, now)
        if repair.own.watched:
            repair.confirm_referred(entry)
        if want is None or not want.attempts:
            return True
        return not want.is_history and age_ms <= RELAY_EPOCHS * self._rules.epoch_ms

    def _report(self, entry: Entry, added: Added) -> None:
        for first in added.collides_with:
            self._events.append(CollisionFound(first, entry.address))
        if added.cycle:
            self._events.append(CycleFound(added.cycle))

    def _relay(self, entries: Sequence[Entry], route: Route, now: int) -> None:
        if route.receivers:
            self._outbox.send_all([entry.raw for entry in entries], route.receivers, Purpose.RELAY, now)
            uris = route.uris
            self._events += [
                Observation(at_us=now, stage=_FORWARDED, message=entry.address, counterparts=uris) for entry in entries
            ]

    def _first_route(self) -> Route:
        """All links and, where they are few, others: the first push decides whether a message gets anywhere at all."""
        linked = self._contacts.linked
        more = self._contacts.pick(
            FIRST_PUSHES - len(linked), lambda contact: contact.is_validated and not contact.is_linked
        )
        return make_route([*linked, *more])
