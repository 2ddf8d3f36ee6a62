"""Who gets a message, and whether that is allowed: one answer for delivery and for `trace`."""

from __future__ import annotations

from typing import NamedTuple

from dovetail.pcp.authorization import Authorization, Policy, Verdict
from dovetail.pcp.inventory import Registry
from dovetail.pcp.session import Session
from dovetail.pcp.uri import BROKER_URIS, has_message_type_characters, has_target_characters, parse_uri


class Route(NamedTuple):
    """Where a message goes. Each client once; `unmatched` are the targets that match no connected client."""

    sessions: dict[str, Session]
    unmatched: list[str]
    broker: list[str]
    has_wildcard: bool


def find_forbidden(message_type: str, targets: list[str]) -> str | None:
    """Find a character that rules cannot contain; checked before any rule is evaluated."""
    if not has_message_type_characters(message_type):
        return f"message type {message_type[:80]!r} has characters that are not allowed"
    for target in targets:
        if not has_target_characters(target):
            return f"target {target[:80]!r} has characters that are not allowed"
    return None


def find_route(targets: list[str], registry: Registry) -> Route:
    """Expand the targets to the clients connected now; a client matched by several targets gets one copy."""
    sessions: dict[str, Session] = {}
    unmatched: list[str] = []
    broker: list[str] = []
    has_wildcard = False
    for target in dict.fromkeys(targets):
        if target in BROKER_URIS:
            broker.append(target)
            continue
        session = registry.by_uri.get(target)
        if session is not None:
            sessions[target] = session
            continue
        pattern = parse_uri(target)
        members = registry.members(pattern) if pattern.is_wildcard else {}
        if members and len(targets) == 1:
            return Route(members, [], [], True)  # not copied: a route is only read
        if members:
            sessions.update(members)
            has_wildcard = True
        else:
            unmatched.append(target)
    return Route(sessions, unmatched, broker, has_wildcard)


def find_denied(targets: list[str], policy: Policy, registry: Registry) -> Verdict | None:
    """The verdict that denies the message, or None: every target, and all clients matched by wildcards, are allowed."""
    for target in targets:
        if target not in registry.by_uri and (pattern := parse_uri(target)).is_wildcard:
            denied = policy.find_denied(pattern, registry)
            if denied is not None:
                return denied
        else:
            verdict = policy.judge(target)
            if not verdict.is_allowed:
                return verdict
    return None


class Trace(NamedTuple):
    """What would happen to a message: a verdict per client and definite target, and the overall result."""

    verdicts: list[Verdict]
    unmatched: list[str]
    forbidden: str | None
    is_allowed: bool


def trace_route(
    sender: str, message_type: str, targets: list[str], authorization: Authorization, registry: Registry
) -> Trace:
    """Each client that would get a message with the rule that decides, without delivering it."""
    forbidden = find_forbidden(message_type, targets)
    if forbidden is not None:
        return Trace([], [], forbidden, False)
    policy = authorization.policy(sender, message_type)
    route = find_route(targets, registry)
    definite = [target for target in route.unmatched if not parse_uri(target).is_wildcard]
    judged = [*route.broker, *sorted({*route.sessions, *definite})]
    return Trace(
        [policy.judge(uri) for uri in judged],
        route.unmatched,
        None,
        find_denied(targets, policy, registry) is None,
    )
