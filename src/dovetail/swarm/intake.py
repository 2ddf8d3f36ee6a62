"""Intake of content messages: check, add to the graph, observe, pass to the application, relay.

Every message takes this path at every peer, so messages are handled in batches: whatever all messages that arrived
together from one contact share is looked up once. A known message costs one hash, a new one two.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final

from dovetail.model.address import Address
from dovetail.model.hop import Observation, Stage
from dovetail.swarm.acceptance import Acceptance, Entry
from dovetail.swarm.contacts import Contact, Contacts, Route, make_route
from dovetail.swarm.content import ContentRules, decode_content
from dovetail.swarm.dag import NO_FINDINGS, Added, Dag
from dovetail.swarm.events import CollisionFound, CycleFound, Event, MessageAccepted
from dovetail.swarm.neighbours import Neighbours
from dovetail.swarm.outbox import Outbox, Purpose
from dovetail.swarm.peer_exchange import Endpoint
from dovetail.swarm.refusals import NoRoom, Refusal
from dovetail.swarm.repair import Repair

FIRST_PUSHES: Final = 12
"""Copies sent of a new message: at 30 % loss, all of them are lost once in two million times."""
RELAY_EPOCHS: Final = 2
"""A pulled message is relayed only up to this age, and never if it was found by the full synchronisation of a joining
peer."""
MAX_EXPIRED: Final = 16_384
"""Expired messages that are remembered, so that one is not accepted again if the clock is set back."""

# looking up an enum member is a call, too slow for every message
_ACCEPTED: Final = Stage.ACCEPTED
_FORWARDED: Final = Stage.FORWARDED


class Intake:
    """One peer's intake; writes to the peer's outbox and events."""

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
        self._acceptance = Acceptance(rules)
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
        self._expired: OrderedDict[Address, None] = OrderedDict()

    def note_expired(self, address: Address) -> None:
        """A message has expired; if it comes again because the clock was set back, it is not accepted again."""
        self._expired[address] = None
        if len(self._expired) > MAX_EXPIRED:
            self._expired.popitem(last=False)

    def receive(self, messages: Sequence[bytes], contact: Contact, now: int) -> None:
        """Handle content messages from a contact, in order of arrival."""
        dag, admit, address_of = self._dag, self._acceptance.admit, self._address_of
        entries, push_only, now_ms = dag.entries, dag.push_only, now // 1000
        admits, share = dag.room.admits, contact.share
        contact.delivered += len(messages)
        accepted: list[Entry] = []
        relayed: list[Entry] = []
        for message in messages:
            address = address_of(message)
            if address in entries or address in push_only:
                self.duplicates += 1
                self._repair.own.confirm(address)
                continue
            try:
                entry = admit(message, address, now_ms)
                if not admits(share, len(message)):
                    raise NoRoom("the peer holds as many messages as it may, or as many from this source")
            except Refusal as refusal:
                self._refuse(refusal, message, contact.endpoint, now)
                continue
            entry.source = share
            if address in self._expired:
                self._take_back(entry, now)
                continue
            accepted.append(entry)
            if self._accept(entry, contact, now, now_ms):
                relayed.append(entry)
        if accepted:
            self.accepted += len(accepted)
            self._neighbours.note_accepted(contact, len(accepted))
            self._repair.gossip.note_accepted(now_ms - min([entry.timestamp_ms for entry in accepted]), now)
        if relayed:
            self._relay(relayed, self._contacts.route_from(contact), now)

    def publish(self, message: bytes, now: int) -> Address:
        """Accept a message composed here and push it, unless it is already known; raises a `Refusal`."""
        entry = self._acceptance.admit(message, self._address_of(message), now // 1000)
        if entry.address in self._dag:
            return entry.address
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
        if entry.ttl_epochs:
            self._repair.own.add(entry.address, now)
        return entry.address

    def _accept(self, entry: Entry, contact: Contact, now: int, now_ms: int) -> bool:
        """Accept a new message from a contact; True if it should be relayed."""
        added = self._dag.add(entry)
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
        if self.has_application:
            self._events.append(Observation(at_us=now, stage=Stage.DELIVERED, message=entry.address))
            self._events.append(MessageAccepted(entry.address, decode_content(entry.raw), contact.uri, now))
        if added is not NO_FINDINGS:
            self._report(entry, added)
            if added.missing:
                repair.want_references(entry, added.missing, contact, now)
        if repair.own.unconfirmed:
            repair.confirm_referred(entry)
        if want is None or not want.attempts:
            return True
        return not want.is_history and age_ms <= RELAY_EPOCHS * self._rules.epoch_ms

    def _take_back(self, entry: Entry, now: int) -> None:
        """Keep a message again that had expired by a clock which has been set back since."""
        del self._expired[entry.address]
        self._dag.add(entry)
        self._repair.note_arrival(entry, now // 1000 - entry.timestamp_ms, now)
        self.duplicates += 1

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
        """All links and, if they are few, other contacts: a message whose first copies are all lost spreads late."""
        linked = self._contacts.linked
        more = self._contacts.pick(
            FIRST_PUSHES - len(linked), lambda contact: contact.is_reachable and not contact.is_linked
        )
        return make_route([*linked, *more])
