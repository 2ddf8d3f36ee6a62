"""What a peer knows of the other peers it has heard of, in bounded memory.

A contact is validated once it has echoed a ticket that was sent to its endpoint: then the endpoint is not spoofed.
Until then it is sent at most `AMPLIFICATION` times the bytes that came from it, besides a bounded number of hellos;
only pinned contacts, whose endpoints are configured, are sent more. The ticket may be that of a hello, or of a
time-range pull (UEP-12), so peers that do not speak the peer exchange can prove their address too.
It is proven once it has sent a message with valid work that we lacked, or listed messages that we know to exist.
Peers that only occupy links do neither, so proven ones are always preferred.

When a validated contact is forgotten, its peer address and watermark are remembered: on its return, from any endpoint,
it is asked for all the time in between. So two parts of a swarm that were partitioned for long exchange their messages
as soon as a peer of one meets a peer of the other that it knew before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, Protocol

import msgspec

from dovetail.swarm.limits import TokenBucket
from dovetail.swarm.peer_exchange import NO_PROOF, Endpoint, PeerAddress, is_forward_peer
from dovetail.swarm.uri import endpoint_uri, peer_uri

AMPLIFICATION: Final = 3
MAX_CONTACTS: Final = 192
"""Validated contacts, of which the pinned and linked ones are never replaced."""
MAX_STRANGERS: Final = 512
"""Endpoints that have not echoed a ticket yet; the one heard least recently is replaced."""
MAX_FORGOTTEN: Final = 1_024
"""Forgotten contacts whose peer addresses are remembered, with the time up to which we were in sync with them."""
HEARD_MARGIN_MS: Final = 30_000
"""What was published this long before a contact was last heard is assumed to have reached both of us."""
SERVE_BURST_SECONDS: Final = 0.5
STRANGERS: Final = Endpoint("strangers")
"""Stands for all endpoints that have not proved their address."""


class RandomSource(Protocol):
    """The injected source of randomness."""

    def random(self) -> float:
        """A number from 0.0 up to but excluding 1.0."""
        ...

    def getrandbits(self, k: int, /) -> int:
        """An integer of `k` random bits."""
        ...


class ListCursor(msgspec.Struct, frozen=True, gc=False):
    """A list that was cut within a millisecond: the ticket it answered, and the addresses before and at its end."""

    ticket: bytes
    timestamp_ms: int
    begin: bytes
    end: bytes


class Contact:
    """One other peer, or an endpoint that claims to be one."""

    __slots__ = (
        "address",
        "ask_due_us",
        "challenge",
        "challenged_us",
        "conflict_due_us",
        "delivered",
        "endpoint",
        "given_token",
        "heard_us",
        "held_token",
        "hello_due_us",
        "hello_had_proof",
        "hello_sent_us",
        "hello_ticket",
        "is_ahead",
        "is_backward",
        "is_forward",
        "is_hello_answered",
        "is_masked",
        "is_pinned",
        "is_plain",
        "is_proven",
        "is_self",
        "is_validated",
        "known_until_ms",
        "knows_us",
        "linked_us",
        "list_cursor",
        "past_tickets",
        "queries",
        "received_bytes",
        "refused_until_us",
        "requested",
        "sent_bytes",
        "serving",
        "silent_us",
        "speaks_exchange",
        "unanswered",
        "uri",
        "uris",
        "watermark_ms",
    )

    def __init__(self, endpoint: Endpoint, now: int, serving: TokenBucket, queries: TokenBucket) -> None:
        self.endpoint = endpoint
        self.uri = endpoint_uri(endpoint)
        self.uris = (self.uri,)
        """The same as a tuple, as used in observations."""
        self.address: PeerAddress | None = None
        self.is_ahead: bool | None = None
        self.is_pinned = False
        self.is_validated = False
        self.speaks_exchange = False
        """True if it was validated by a hello or an answer."""
        self.is_plain = False
        """True if it takes part without the peer exchange."""
        self.is_self = False
        """True if the endpoint leads back to this peer."""
        self.is_proven = False
        self.is_masked = False
        self.is_forward = False
        self.is_backward = False
        self.heard_us = now
        self.hello_ticket: bytes | None = None
        """The ticket of a hello whose answer is awaited."""
        self.is_hello_answered = False
        self.past_tickets: tuple[bytes, ...] = ()
        """Tickets of the last hellos, the newest first."""
        self.challenge: bytes | None = None
        """The ticket of a time-range pull that lets it prove its address."""
        self.challenged_us = 0
        self.ask_due_us = now
        self.conflict_due_us = 0
        self.given_token: bytes | None = None
        self.held_token = NO_PROOF
        self.hello_had_proof = False
        self.knows_us = False
        self.hello_sent_us = 0
        self.hello_due_us = now
        self.unanswered = 0
        self.silent_us = now
        """When the first of the unanswered hellos was sent."""
        self.requested = 0
        self.refused_until_us = 0
        self.linked_us = 0
        self.delivered = 0
        self.watermark_ms: int | None = None
        self.known_until_ms: int | None = None
        """Without a watermark: up to when we were in sync with it before it went away."""
        self.list_cursor: ListCursor | None = None
        """Where the next list continues, if the last one was cut within a millisecond."""
        self.received_bytes = 0
        self.sent_bytes = 0
        self.serving = serving
        self.queries = queries

    @property
    def reached_ms(self) -> int | None:
        """Up to when we are, or were before it went away, in sync with it."""
        return self.known_until_ms if self.watermark_ms is None else self.watermark_ms

    @property
    def is_reachable(self) -> bool:
        """True if it may be sent more than it sent us: its endpoint is proved, or configured."""
        return (self.is_validated or self.is_pinned) and not self.is_self

    @property
    def share(self) -> Endpoint:
        """The source that its messages and hashes are counted for: strangers share one."""
        return self.endpoint if self.is_reachable else STRANGERS

    @property
    def will_answer(self) -> bool:
        """True if it is expected to answer pulls: it has validated us, or answers everybody."""
        return self.knows_us or (self.is_plain and self.is_validated)

    @property
    def is_linked(self) -> bool:
        """True if messages are relayed between us."""
        return self.is_forward or self.is_backward

    def budget_bytes(self, now: int) -> int:
        """How many bytes of replies may be sent: no amplification towards strangers, a rate limit for the rest."""
        if self.is_reachable:
            return int(self.serving.available(now))
        return AMPLIFICATION * self.received_bytes - self.sent_bytes

    def may_send(self, size: int, now: int) -> bool:
        """True if a reply of this size may be sent; it is then taken from the budget."""
        if self.is_reachable:
            return self.serving.take(size, now)
        if size > self.budget_bytes(now):
            return False
        self.sent_bytes += size
        return True


class Route(msgspec.Struct, frozen=True, gc=False):
    """The contacts a message is relayed to, and their URIs for the journal."""

    receivers: tuple[Contact, ...]
    uris: tuple[str, ...]


def make_route(receivers: Iterable[Contact]) -> Route:
    """The route to these contacts, with their current URIs."""
    receivers = tuple(receivers)
    return Route(receivers, tuple([contact.uri for contact in receivers]))


class Contacts:
    """All contacts by endpoint: known ones, and strangers (not validated) in the order they were last heard."""

    def __init__(
        self,
        local: PeerAddress,
        swarm_name: str,
        random_source: RandomSource,
        serve_bytes_per_second: int,
        queries_per_second: int,
    ) -> None:
        self.local = local
        self._swarm_name = swarm_name
        self._random = random_source
        self._serve_rate = serve_bytes_per_second
        self._query_rate = queries_per_second
        self._known: dict[Endpoint, Contact] = {}
        self._strangers: dict[Endpoint, Contact] = {}
        self._forgotten: dict[PeerAddress, int] = {}
        self._forward: list[Contact] | None = None
        self._routes: dict[Endpoint, Route] = {}

    def __len__(self) -> int:
        return len(self._known) + len(self._strangers)

    def __iter__(self) -> Iterator[Contact]:
        yield from self._known.values()
        yield from self._strangers.values()

    @property
    def known(self) -> list[Contact]:
        """Contacts that are validated or pinned."""
        return list(self._known.values())

    @property
    def stranger_count(self) -> int:
        """How many endpoints are remembered that have not echoed a ticket."""
        return len(self._strangers)

    @property
    def forward(self) -> list[Contact]:
        """Contacts we relay to."""
        if self._forward is None:
            self._forward = [contact for contact in self._known.values() if contact.is_forward]
        return self._forward

    def route_from(self, source: Contact) -> Route:
        """The route of a message from this contact: all we relay to, except itself."""
        route = self._routes.get(source.endpoint)
        if route is None:
            if len(self._routes) >= MAX_CONTACTS:
                self._routes.clear()
            route = make_route([contact for contact in self.forward if contact is not source])
            self._routes[source.endpoint] = route
        return route

    @property
    def backward(self) -> list[Contact]:
        """Contacts that relay to us."""
        return [contact for contact in self._known.values() if contact.is_backward]

    @property
    def linked(self) -> list[Contact]:
        """Contacts with a link in either direction."""
        return [contact for contact in self._known.values() if contact.is_linked]

    def find(self, endpoint: Endpoint) -> Contact | None:
        """The contact of an endpoint, if there is one."""
        return self._known.get(endpoint) or self._strangers.get(endpoint)

    def uri_of(self, endpoint: Endpoint) -> str:
        """The URI of an endpoint in the journal."""
        contact = self.find(endpoint)
        return contact.uri if contact else endpoint_uri(endpoint)

    def get_or_add(self, endpoint: Endpoint, now: int) -> Contact:
        """The contact of an endpoint; a new one is added as a stranger."""
        contact = self._known.get(endpoint)
        if contact is not None:
            return contact
        contact = self._strangers.pop(endpoint, None)
        if contact is None:
            if len(self._strangers) >= MAX_STRANGERS:
                del self._strangers[next(iter(self._strangers))]
            serving = TokenBucket(self._serve_rate, self._serve_rate * SERVE_BURST_SECONDS)
            contact = Contact(endpoint, now, serving, TokenBucket(self._query_rate, 2 * self._query_rate))
        self._strangers[endpoint] = contact
        return contact

    def pin(self, endpoint: Endpoint, now: int) -> Contact:
        """Add an endpoint from the bootstrap list; it is never forgotten."""
        contact = self.get_or_add(endpoint, now)
        contact.is_pinned = True
        self._strangers.pop(endpoint, None)
        self._known[endpoint] = contact
        return contact

    def identify(self, contact: Contact, address: PeerAddress) -> None:
        """Record the peer address that a contact claims."""
        if contact.address == address:
            return
        contact.address = address
        if contact.known_until_ms is None:
            # the address is only claimed: a false one costs one question that asks for more than needed
            contact.known_until_ms = self._forgotten.get(address)
        contact.is_ahead = is_forward_peer(self.local, address)
        contact.uri = peer_uri(self._swarm_name, address)
        contact.uris = (contact.uri,)
        self._routes.clear()

    def validate(self, contact: Contact) -> None:
        """Mark a contact that echoed a ticket: its endpoint is not spoofed."""
        contact.is_validated = True
        if contact.endpoint in self._strangers:
            if len(self._known) >= MAX_CONTACTS:
                self._evict()
            del self._strangers[contact.endpoint]
            self._known[contact.endpoint] = contact

    def set_link(self, contact: Contact, *, forward: bool | None = None, backward: bool | None = None) -> None:
        """Change the links between us and a contact."""
        if forward is not None:
            contact.is_forward = forward
        if backward is not None:
            contact.is_backward = backward
            contact.delivered = 0
        self._links_changed()

    def forget(self, contact: Contact) -> None:
        """Remove a contact that is neither pinned nor linked."""
        if contact.address is not None and contact.is_validated:
            self._remember(contact.address, contact)
        self._strangers.pop(contact.endpoint, None)
        self._known.pop(contact.endpoint, None)
        self._links_changed()

    def pick(self, count: int, is_suitable: Callable[[Contact], bool]) -> list[Contact]:
        """Up to `count` suitable contacts at random, proven ones first, then those that have validated us."""
        if count <= 0:
            return []
        suitable = [contact for contact in self._known.values() if is_suitable(contact)]
        ranked = sorted(
            [
                (not contact.is_proven, not contact.knows_us, self._random.random(), at)
                for at, contact in enumerate(suitable)
            ]
        )
        return [suitable[row[-1]] for row in ranked[:count]]

    def handle_clock_step(self) -> None:
        """The clock was set back: times recorded by the wrong clock are discarded."""
        self._forgotten.clear()
        for contact in self:
            contact.watermark_ms = contact.known_until_ms = None

    def _remember(self, address: PeerAddress, contact: Contact) -> None:
        reached_ms = contact.reached_ms
        if reached_ms is None:
            reached_ms = contact.heard_us // 1000 - HEARD_MARGIN_MS
        self._forgotten.pop(address, None)
        if len(self._forgotten) >= MAX_FORGOTTEN:
            del self._forgotten[next(iter(self._forgotten))]
        self._forgotten[address] = reached_ms

    def _links_changed(self) -> None:
        self._forward = None
        self._routes.clear()

    def _evict(self) -> None:
        replaceable = [contact for contact in self._known.values() if not contact.is_pinned and not contact.is_linked]
        if replaceable:
            self.forget(min(replaceable, key=lambda contact: (contact.is_proven, contact.heard_us)))
