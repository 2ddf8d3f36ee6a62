"""Finds rules that let anyone command everyone: evaluates the rules for a certificate that no rule names.

A stranger is a client with a certificate of the CA whose name is not in the configuration. It is dangerous if it can
claim a type that the rules allow to send any message to clients that other strangers can be: in a fleet of agents, to
command the agents. Where no stranger may associate at all, the names of all clients fit patterns, and the widest of
these patterns take the place of strangers.

A rule for a single message type, or to names that fit a pattern, counts only from one type to another: agents may well
report to each other, or to some that collect reports.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain

from dovetail.pcp.association import may_associate
from dovetail.pcp.authorization import Authorization
from dovetail.pcp.names import Names
from dovetail.pcp.settings import PcpSettings
from dovetail.pcp.uri import SERVER_TYPE, WILDCARD, client_uri, parse_uri

# names and types that no configuration can contain: they have characters that no client may have
_STRANGER, _OTHER = "~a-stranger.example~", "~another-stranger.example~"
_ANY_TYPE, _ANY_MESSAGE = "any-type~", "any-message~"


def find_open_rules(settings: PcpSettings) -> list[str]:
    """One sentence for each kind of client that any certificate may be, and may then command others as."""
    authorization = Authorization(settings)
    names = _find_patterns(settings)
    strangers = [WILDCARD]
    if not _claimed(WILDCARD, settings, authorization):
        strangers = _widest([each for each in names if _claimed(each, settings, authorization)])
    return [
        found
        for who in strangers
        for claim in _claimed(who, settings, authorization)
        for found in _find_commanded(who, claim, names, settings, authorization, are_all=len(strangers) == 1)
    ]


def _find_commanded(
    who: str, claim: str, names: list[str], settings: PcpSettings, authorization: Authorization, *, are_all: bool
) -> Iterator[str]:
    """A sentence if certificates with names like `who`, which all clients may be, can command others as this type."""
    claimed = _claimed(who, settings, authorization)
    written = {rule.message_type for rule in settings.rules} - {WILDCARD}
    patterns = sorted(written, key=lambda each: (not each.endswith(WILDCARD), len(each), each))
    for message_type in [WILDCARD, *patterns]:
        sent = message_type.removesuffix(WILDCARD) + _ANY_MESSAGE if message_type.endswith(WILDCARD) else message_type
        policy = authorization.policy(client_uri(_fit(who, _STRANGER), claim), sent)
        for other in [who, *(names if who == WILDCARD else ())]:
            is_narrow = other != who or sent == message_type or not are_all
            uris = {each: client_uri(_fit(other, _OTHER), each) for each in claimed if not is_narrow or each != claim}
            verdicts = {each: policy.judge(uri) for each, uri in uris.items() if may_associate(uri, authorization)}
            commanded = [each for each, verdict in verdicts.items() if verdict.is_allowed]
            if commanded:
                rule = verdicts[commanded[0]].rule
                assert rule is not None
                yield (
                    f"a client with any certificate{_named(who)} may connect as {_show(claim, claimed)} and send"
                    f" {_show_message(message_type)} to every client of"
                    f" {', '.join(_show(each, claimed) for each in commanded)}{_named(other)}"
                    f" (rule {rule.describe()!r}); say in `types` which certificates may connect as which type"
                )
                return


def _claimed(who: str, settings: PcpSettings, authorization: Authorization) -> list[str]:
    """The client types that certificates with names like this may claim."""
    written = {parse_uri(uri).client_type for rule in settings.rules for uri in (rule.sender, rule.target)}
    types = sorted({*written, *settings.types, _ANY_TYPE} - {WILDCARD, SERVER_TYPE})
    return [each for each in types if may_associate(client_uri(_fit(who, _STRANGER), each), authorization)]


def _find_patterns(settings: PcpSettings) -> list[str]:
    """The name patterns of a configuration, apart from the one that all names fit."""
    written = {parse_uri(uri).name for rule in settings.rules for uri in (rule.sender, rule.target)}
    listed = chain(*settings.groups.values(), *settings.types.values())
    return sorted(each for each in {*written, *listed} - {WILDCARD} if WILDCARD in each)


def _widest(patterns: Iterable[str]) -> list[str]:
    """Those patterns that are not part of another one."""
    found: list[str] = []
    for pattern in sorted(patterns, key=lambda each: (len(each), each)):
        if not Names(found, {}).match(_fit(pattern, _STRANGER)):
            found.append(pattern)
    return found


def _fit(pattern: str, name: str) -> str:
    return pattern.replace(WILDCARD, name)


def _named(pattern: str) -> str:
    return "" if pattern == WILDCARD else f" named {pattern!r}"


def _show(client_type: str, among: list[str]) -> str:
    if client_type != _ANY_TYPE:
        return f"type {client_type!r}"
    return "any type" if among == [_ANY_TYPE] else "any other type"


def _show_message(message_type: str) -> str:
    return "anything" if message_type == WILDCARD else f"every {message_type}"
