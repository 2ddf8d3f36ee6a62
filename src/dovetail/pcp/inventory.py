"""The connected clients by URI, type and name, and the subscribers to changes.

Exact targets, `pcp://*/type` and `pcp://name/*` are lookups; nothing scans the clients. Changes are collected and sent
to subscribers in batches; a subscription starts at its position in the current batch, so that it gets nothing from
before its response and misses nothing after it.
"""

from __future__ import annotations

from dovetail.model.errors import RemoteProtocolError
from dovetail.model.hop import Reason
from dovetail.pcp.session import Session, Subscription
from dovetail.pcp.uri import WILDCARD, PatternSet, Uri, parse_uri
from dovetail.pcp.vocabulary import INVENTORY_REQUEST, decode_inventory_request

CONNECTED = 1
DISCONNECTED = -1


class Registry:
    """The associated sessions. `by_uri`, `by_type` and `by_name` are read elsewhere and written only here."""

    __slots__ = ("by_name", "by_type", "by_uri")

    def __init__(self) -> None:
        self.by_uri: dict[str, Session] = {}
        self.by_type: dict[str, dict[str, Session]] = {}
        self.by_name: dict[str, dict[str, Session]] = {}

    def add(self, uri: str, session: Session) -> Session | None:
        """Register; returns the session that had this URI before."""
        before = self.by_uri.get(uri)
        name, client_type = parse_uri(uri)
        self.by_uri[uri] = session
        self.by_type.setdefault(client_type, {})[uri] = session
        self.by_name.setdefault(name, {})[uri] = session
        return before

    def remove(self, uri: str, session: Session) -> bool:
        """Unregister, unless another session has taken the URI over in the meantime."""
        if self.by_uri.get(uri) is not session:
            return False
        name, client_type = parse_uri(uri)
        del self.by_uri[uri]
        for index, key in ((self.by_type, client_type), (self.by_name, name)):
            members = index[key]
            del members[uri]
            if not members:
                del index[key]
        return True

    def members(self, pattern: Uri) -> dict[str, Session]:
        """The clients that a wildcard expands to now; callers must not change the result."""
        if pattern.name != WILDCARD:
            return self.by_name.get(pattern.name, {})
        if pattern.client_type != WILDCARD:
            return self.by_type.get(pattern.client_type, {})
        return self.by_uri

    def expand(self, patterns: tuple[str, ...]) -> list[str]:
        """The URIs connected now that match any of the patterns, sorted and unique."""
        found: set[str] = set()
        for text in patterns:
            pattern = parse_uri(text)
            if pattern.is_wildcard:
                found.update(self.members(pattern))
            elif text in self.by_uri:
                found.add(text)
        return sorted(found)


def read_request(message_type: str, content: bytes | None) -> tuple[PatternSet, bool]:
    """What an inventory request asks for, and whether it subscribes to changes; raises RemoteProtocolError."""
    if message_type != INVENTORY_REQUEST:
        raise RemoteProtocolError(Reason.UNKNOWN_REQUEST, "the broker has no task for this")
    try:
        request = decode_inventory_request(content)
        return PatternSet(request.query), request.subscribe is True
    except ValueError as error:
        raise RemoteProtocolError(Reason.INVALID_SCHEMA, str(error)) from None


class Changes:
    """The current batch of inventory changes and its subscribers."""

    __slots__ = ("_changes", "_interval_us", "_subscribers", "due_us")

    def __init__(self, interval_us: int) -> None:
        self._interval_us = interval_us
        self._changes: list[tuple[str, int]] = []
        self._subscribers: dict[Session, None] = {}
        self.due_us: int | None = None

    def subscribe(self, session: Session, patterns: PatternSet) -> None:
        """Send this session changes from now on; replaces an earlier subscription."""
        session.subscription = Subscription(patterns, len(self._changes))
        self._subscribers[session] = None

    def unsubscribe(self, session: Session) -> None:
        """Send this session no more changes."""
        session.subscription = None
        self._subscribers.pop(session, None)
        if not self._subscribers:
            self._changes.clear()
            self.due_us = None

    def note(self, uri: str, change: int, now: int) -> None:
        """Record that a client connected (1) or disconnected (-1)."""
        if not self._subscribers:
            return
        self._changes.append((uri, change))
        if self.due_us is None:
            self.due_us = now + self._interval_us

    def is_due(self, now: int) -> bool:
        """True if the batch is to be closed; also if the clock was set back since it began."""
        return self.due_us is not None and not now < self.due_us <= now + self._interval_us

    def take(self) -> list[tuple[Session, list[tuple[str, int]]]]:
        """Close the batch; returns each subscriber with the changes that concern it."""
        changes, self._changes, self.due_us = self._changes, [], None
        batches = []
        for session in tuple(self._subscribers):
            subscription = session.subscription
            if subscription is None:
                continue
            session.subscription = subscription._replace(start=0)
            news = changes[subscription.start :]
            mine = [change for change in news if subscription.patterns.matches(change[0])]
            if mine:
                batches.append((session, mine))
        return batches
