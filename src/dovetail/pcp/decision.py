"""Decides what happens to a message: every check after decoding, in the order of the specification, in one place.

`decide` reads the session, the rules, the connected clients and the time, and changes none of them: the broker executes
the decision. The order is: associated, sender is the session's, authorised for every target, not expired, then the
route.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from dovetail.model.hop import Reason
from dovetail.pcp.association import find_refusal
from dovetail.pcp.inventory import Registry
from dovetail.pcp.permission_cache import PermissionCache
from dovetail.pcp.routing import Route, find_denied, find_forbidden, find_route
from dovetail.pcp.session import DeliverToOne, Session
from dovetail.pcp.uri import BROKER_URIS
from dovetail.pcp.vocabulary import ASSOCIATE_REQUEST


class Answer(enum.Enum):
    """What the sender of a refused message is sent."""

    NOTHING = enum.auto()
    ERROR = enum.auto()
    UNAUTHORIZED = enum.auto()
    ASSOCIATION_REFUSED = enum.auto()


class Refuse(NamedTuple):
    """The message is not accepted."""

    reason: Reason
    detail: str
    answer: Answer = Answer.ERROR


class Deliver(NamedTuple):
    """Accept it for a route."""

    route: Route
    keeps_body: bool


class Expire(NamedTuple):
    """Accept it, but deliver it to nobody: it has expired."""

    route: Route
    keeps_body: bool


class Associate(NamedTuple):
    """Accept it, and associate the session."""

    route: Route
    keeps_body: bool


Decision = Refuse | DeliverToOne | Deliver | Expire | Associate
NOT_ASSOCIATED = Refuse(Reason.NOT_ASSOCIATED, "sent before the session was associated", Answer.NOTHING)


class Decider:
    """Decides about messages; reads `permissions` and `registry`, which others change."""

    __slots__ = ("_by_uri", "_permissions", "_registry")

    def __init__(self, registry: Registry, permissions: PermissionCache) -> None:
        self._registry = registry
        self._by_uri = registry.by_uri
        self._permissions = permissions

    def decide(
        self, session: Session, sender: str, message_type: str, targets: list[str], is_expired: bool
    ) -> Decision:
        """The decision on a message with these fields that arrived through this session."""
        uri = session.uri
        if message_type == ASSOCIATE_REQUEST and session.version == 1 and BROKER_URIS.issuperset(targets or ("",)):
            return self._decide_association(session, sender, targets, is_expired)
        if sender != uri:
            return NOT_ASSOCIATED if uri is None else Refuse(Reason.SENDER_MISMATCH, f"sender is not {uri}")
        permission = session.permissions.get(message_type)
        receiver = self._by_uri.get(targets[0]) if len(targets) == 1 else None
        if len(targets) > 1:
            targets = list(dict.fromkeys(targets))  # a target repeated a thousand times is judged once
        if permission is None or receiver is None:
            forbidden = find_forbidden(message_type, [target for target in targets if target not in self._by_uri])
            if forbidden is not None:
                return Refuse(Reason.FORBIDDEN_CHARACTERS, forbidden)
            permission = permission or self._permissions.look_up(session, message_type)
        policy = permission.policy
        if not policy.is_open:
            verdict = policy.judge(targets[0]) if receiver else find_denied(targets, policy, self._registry)
            if verdict is not None and not verdict.is_allowed:
                return Refuse(Reason.UNAUTHORIZED, verdict.describe(), Answer.UNAUTHORIZED)
        if is_expired:
            return Expire(find_route(targets, self._registry), permission.keeps_body)
        if receiver is not None:
            return DeliverToOne(receiver, permission.keeps_body)
        return Deliver(find_route(targets, self._registry), permission.keeps_body)

    def _decide_association(self, session: Session, sender: str, targets: list[str], is_expired: bool) -> Decision:
        refusal = find_refusal(session, sender, self._permissions.authorization)
        if refusal is not None:
            return Refuse(refusal.reason, refusal.detail, Answer.ASSOCIATION_REFUSED)
        decision = Expire if is_expired else Associate
        return decision(find_route(targets, self._registry), self._permissions.keeps_body(ASSOCIATE_REQUEST))
