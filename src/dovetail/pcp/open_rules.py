"""Finds rules that let anyone command everyone: evaluates the rules for a certificate that no rule names.

Rules for single message types are left out: agents may well report to each other. A rule for all types that start with
some text counts.

A stranger is a client with a certificate of the CA whose name is not in the configuration. It is dangerous if it can
claim a type that the rules allow to send any message to clients that other strangers can be: in a fleet of agents, to
command the agents.
"""

from __future__ import annotations

from dovetail.pcp.association import may_associate
from dovetail.pcp.authorization import Authorization
from dovetail.pcp.settings import PcpSettings
from dovetail.pcp.uri import SERVER_TYPE, WILDCARD, client_uri, parse_uri

# names and types that no configuration can contain: they have characters that no client may have
_STRANGER, _OTHER = "a-stranger~", "another-stranger~"
_ANY_TYPE, _ANY_MESSAGE = "any-type~", "any-message~"


def find_open_rules(settings: PcpSettings) -> list[str]:
    """One sentence for each kind of client that any certificate may be, and may then command others as."""
    authorization = Authorization(settings)
    written = {parse_uri(uri).client_type for rule in settings.rules for uri in (rule.sender, rule.target)}
    types = sorted({*written, *settings.types, _ANY_TYPE} - {WILDCARD, SERVER_TYPE})
    claimed = [each for each in types if may_associate(client_uri(_STRANGER, each), authorization)]
    patterns = {rule.message_type for rule in settings.rules if rule.message_type.endswith(WILDCARD)}
    found = []
    for claim in claimed:
        for pattern in sorted({WILDCARD, *patterns}, key=lambda each: (len(each), each)):
            policy = authorization.policy(client_uri(_STRANGER, claim), pattern.removesuffix(WILDCARD) + _ANY_MESSAGE)
            verdicts = {each: policy.judge(client_uri(_OTHER, each)) for each in claimed}
            commanded = [each for each, verdict in verdicts.items() if verdict.is_allowed]
            if commanded:
                rule = verdicts[commanded[0]].rule
                assert rule is not None
                found.append(
                    f"any certificate may call itself {_show(claim)} and send"
                    f" {'anything' if pattern == WILDCARD else f'every {pattern}'} to every client of"
                    f" {', '.join(map(_show, commanded))} (rule {rule.describe()!r});"
                    " name in `types` whose certificates may claim it"
                )
                break
    return found


def _show(client_type: str) -> str:
    return "any other type" if client_type == _ANY_TYPE else f"type {client_type!r}"
