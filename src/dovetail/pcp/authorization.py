"""Who may send what to whom: ordered rules, the first match decides, no match denies.

Theory of operation. The sender and type of a message are fixed, so the rules that can still match are few and the same
for many senders: they are compiled into a `Policy`, an index of the first matching rule by exact target, by name, by
type and for all, shared by all senders with the same remaining rules. A policy judges one URI in at most four lookups
and caches its verdicts up to a limit.

A wildcard target is judged on every client it expands to, without visiting each of them: rules that name a client are
exceptions; all other clients of one type share one verdict. If that verdict is to allow, only the exceptions can deny;
if it is to deny, the first client that is no exception settles it. Either way the work is bounded by the number of
rules, not of clients. Only if a rule names its targets by a pattern or a group, and may come before that shared
verdict, is each client judged.

Which client type a certificate may claim is checked before any rule, on association: `may_claim`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from dovetail.pcp.names import Groups, Names
from dovetail.pcp.settings import PcpSettings, Rule
from dovetail.pcp.uri import BROKER_URI, BROKER_URIS, WILDCARD, Uri, parse_uri

MAX_POLICIES = 10_000
MAX_VERDICTS = 10_000
MAX_CACHED_CHARS = 128
"""Longer targets are judged each time: the cache of a policy stays below 4 MB, whatever is sent."""


class Verdict(NamedTuple):
    """The decision on one target and the rule that made it; no rule means that none matched."""

    target: str
    is_allowed: bool
    rule: Rule | None

    def describe(self) -> str:
        """The target and the deciding rule, as one line."""
        return f"{self.target}: {'no rule matches' if self.rule is None else self.rule.describe()}"


class Clients(Protocol):
    """What judging a wildcard needs to know of the connected clients: their URIs by type and by name."""

    @property
    def by_type(self) -> Mapping[str, Mapping[str, object]]: ...

    @property
    def by_name(self) -> Mapping[str, Mapping[str, object]]: ...


def matches_type(pattern: str, message_type: str) -> bool:
    """True if a message type equals the pattern, or starts with what precedes the pattern's final `*`."""
    if pattern.endswith(WILDCARD):
        return message_type.startswith(pattern[:-1])
    return pattern == message_type


class Policy:
    """The rules that remain for one sender and message type, by the targets they match."""

    __slots__ = ("_all", "_exact", "_names", "_patterns", "_rules", "_types", "_verdicts", "is_open")

    def __init__(self, rules: Sequence[Rule], groups: Groups) -> None:
        self._rules = rules
        last = len(rules)
        self._exact: dict[str, int] = {}
        self._names: dict[str, int] = {}
        self._types: dict[str, int] = {}
        self._patterns: list[tuple[int, Names, str]] = []
        self._all = last
        for index, rule in enumerate(rules):
            name, client_type = parse_uri(rule.target)
            if name == WILDCARD and client_type == WILDCARD:
                self._all = index
                break  # no later rule can be the first match
            if name == WILDCARD:
                self._types.setdefault(client_type, index)
            elif name and (names := Names([name], groups)).only is None:
                self._patterns.append((index, names, client_type))
            elif client_type == WILDCARD:
                self._names.setdefault(name, index)
            else:
                self._exact.setdefault(BROKER_URI if rule.target in BROKER_URIS else rule.target, index)
        self._verdicts: dict[str, Verdict] = {}
        self.is_open = self._all == 0 < last and rules[0].allow  # everything is allowed, whatever the target

    def judge(self, target: str) -> Verdict:
        """The verdict on one URI without wildcards."""
        verdict = self._verdicts.get(target)
        if verdict is None:
            if len(self._verdicts) >= MAX_VERDICTS:
                self._verdicts.clear()
            verdict = self._judge(target)
            if len(target) <= MAX_CACHED_CHARS:
                self._verdicts[target] = verdict
        return verdict

    def _judge(self, target: str) -> Verdict:
        index = self._all
        if self._exact or self._names or self._types or self._patterns:
            name, client_type = parse_uri(target)
            index = min(
                index,
                self._exact.get(BROKER_URI if target in BROKER_URIS else target, index),
                self._names.get(name, index),
                self._types.get(client_type, index),
                next(
                    (
                        number
                        for number, names, pattern in self._patterns
                        if pattern in (WILDCARD, client_type) and names.match(name)
                    ),
                    index,
                ),
            )
        rule = self._rules[index] if index < len(self._rules) else None
        return Verdict(target, rule is not None and rule.allow, rule)

    def find_denied(self, pattern: Uri, clients: Clients) -> Verdict | None:
        """A verdict that denies one of the clients a wildcard expands to, or None if all are allowed."""
        if pattern.name != WILDCARD:
            return self._first_denied(clients.by_name.get(pattern.name, {}))
        if pattern.client_type != WILDCARD:
            return self._find_denied_of_type(pattern.client_type, clients.by_type.get(pattern.client_type, {}))
        for client_type, members in clients.by_type.items():
            denied = self._find_denied_of_type(client_type, members)
            if denied is not None:
                return denied
        return None

    def _find_denied_of_type(self, client_type: str, members: Mapping[str, object]) -> Verdict | None:
        if not members:
            return None  # no client of this type is connected: skip the rules
        shared = min(self._all, self._types.get(client_type, self._all))
        is_shared = all(
            number > shared or pattern not in (WILDCARD, client_type) for number, _, pattern in self._patterns
        )
        if is_shared and shared < len(self._rules) and self._rules[shared].allow:
            exceptions = [*self._exact, *(f"pcp://{name}/{client_type}" for name in self._names)]
            return self._first_denied(uri for uri in exceptions if uri in members)
        return self._first_denied(members)

    def _first_denied(self, uris: Iterable[str]) -> Verdict | None:
        for uri in uris:
            verdict = self.judge(uri)
            if not verdict.is_allowed:
                return verdict
        return None


class Authorization:
    """The rules of a broker."""

    def __init__(self, settings: PcpSettings) -> None:
        self._rules = settings.rules
        self._groups = settings.groups
        self._senders = tuple(self._read_sender(rule) for rule in self._rules)
        self._types = {name: Names(names, settings.groups) for name, names in settings.types.items()}
        self._policies: dict[tuple[int, ...], Policy] = {}

    def _read_sender(self, rule: Rule) -> tuple[Names, str]:
        name, client_type = parse_uri(rule.sender)
        return Names([name], self._groups), client_type

    def may_claim(self, uri: str) -> bool:
        """True if the certificate of the name in a URI may claim the client type in it."""
        name, client_type = parse_uri(uri)
        names = self._types.get(client_type)
        return not self._types if names is None else names.match(name)

    def policy(self, sender: str, message_type: str) -> Policy:
        """The policy for messages of one type from one sender; keep it for the life of the session."""
        name, client_type = parse_uri(sender)
        remaining = tuple(
            index
            for index, (rule, (names, pattern)) in enumerate(zip(self._rules, self._senders, strict=True))
            if names.match(name)
            and pattern in (WILDCARD, client_type)
            and matches_type(rule.message_type, message_type)
        )
        policy = self._policies.get(remaining)
        if policy is None:
            if len(self._policies) >= MAX_POLICIES:
                self._policies.clear()
            policy = self._policies[remaining] = Policy([self._rules[index] for index in remaining], self._groups)
        return policy
