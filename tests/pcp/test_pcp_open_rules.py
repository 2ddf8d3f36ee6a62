"""Which configurations let anyone command all clients."""

import msgspec
import pytest

from dovetail.pcp.open_rules import find_open_rules
from dovetail.pcp.settings import PcpSettings

ASSOCIATE = {"message_type": "http://puppetlabs.com/associate_request", "target": "pcp:///server", "allow": True}
COMMAND = {"name": "command", "sender": "pcp://*/controller", "allow": True}
ANSWER = {"sender": "pcp://*/agent", "target": "pcp://*/controller", "allow": True}
PING, FLEET = "http://example.com/ping", "*.fleet.example.com"
TYPES = {"controller": ["boss", "*.ops.example.com"], "agent": ["*"]}


def settings(**fields: object) -> PcpSettings:
    return msgspec.convert(fields, PcpSettings)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"rules": [ASSOCIATE, COMMAND, ANSWER], "types": TYPES},
        {"rules": [ASSOCIATE, {**COMMAND, "sender": "pcp://@bosses/*"}], "groups": {"bosses": ["boss"]}},
        {"rules": [{**ASSOCIATE, "sender": "pcp://boss/controller"}, {**COMMAND, "target": "pcp://*/agent"}]},
        {"rules": [ASSOCIATE, {**ANSWER, "target": "pcp://*/agent", "message_type": PING}], "types": TYPES},
        {"rules": [ASSOCIATE, {**ANSWER, "target": "pcp://collector-*/agent"}], "types": TYPES},
        {"rules": [ASSOCIATE, {**COMMAND, "message_type": PING}, ANSWER], "types": TYPES},
        {"rules": [ASSOCIATE, {"allow": True}], "types": {"controller": ["boss"]}},
        {"rules": [ASSOCIATE, COMMAND, ANSWER], "types": {"controller": ["*.ops.example.com"], "agent": [FLEET]}},
        {"rules": [ASSOCIATE, COMMAND, ANSWER], "types": {"controller": ["boss"], "agent": [FLEET]}},
    ],
)
def test_rules_that_bind_types_or_names_to_certificates_are_safe(fields):
    assert find_open_rules(settings(**fields)) == []


def test_whoever_may_claim_to_be_a_controller_commands_all():
    warnings = find_open_rules(settings(rules=[ASSOCIATE, COMMAND, ANSWER]))
    assert warnings[-1] == (
        "a client with any certificate may connect as type 'controller' and send anything to every client"
        " of type 'agent',"
        " any other type, type 'controller' (rule 'command: allow pcp://*/controller -> pcp://*/* *');"
        " say in `types` which certificates may connect as which type"
    )


def test_a_rule_that_lets_anybody_command_also_lets_anybody_associate():
    """The rule for commands has no message type, so it allows the associate request too."""
    assert find_open_rules(settings(rules=[{**ASSOCIATE, "sender": "pcp://boss/controller"}, COMMAND]))


@pytest.mark.parametrize(
    "fields",
    [
        {"rules": [{"allow": True}]},
        {"rules": [{"allow": True}], "types": {"agent": ["*"]}},
        {"rules": [ASSOCIATE, COMMAND], "types": {"controller": ["@all"], "agent": ["*"]}, "groups": {"all": ["*"]}},
        {"rules": [ASSOCIATE, {**COMMAND, "target": "pcp://*/agent"}]},
        {"rules": [ASSOCIATE, {**COMMAND, "message_type": PING}]},
        {"rules": [ASSOCIATE, {**COMMAND, "target": f"pcp://{FLEET}/agent"}]},
        {"rules": [ASSOCIATE, {**COMMAND, "target": "pcp://@fleet/agent"}], "groups": {"fleet": [FLEET]}},
        {"rules": [ASSOCIATE, COMMAND], "types": {"controller": [FLEET], "agent": [FLEET]}},
        {"rules": [ASSOCIATE, COMMAND], "types": {"controller": ["*.example.com"], "agent": [FLEET]}},
        {"rules": [ASSOCIATE, COMMAND], "types": {"controller": [FLEET], "agent": ["legacy-*", FLEET]}},
        {"rules": [ASSOCIATE, {"allow": True}], "types": {"agent": [FLEET]}},
        {"rules": [{"allow": True, "sender": f"pcp://{FLEET}/*"}]},
    ],
)
def test_rules_that_let_anybody_command_are_told(fields):
    assert find_open_rules(settings(**fields))


def test_names_that_all_clients_have_are_told():
    types = {"controller": [FLEET], "agent": [FLEET]}
    (warning,) = find_open_rules(settings(rules=[ASSOCIATE, {**COMMAND, "target": "pcp://*/agent"}], types=types))
    assert warning.startswith(
        "a client with any certificate named '*.fleet.example.com' may connect as type 'controller' and send anything"
        " to every client of type 'agent' named '*.fleet.example.com' (rule"
    )


def test_a_rule_for_many_message_types_is_told_with_them():
    rule = {**COMMAND, "message_type": "http://example.com/*", "target": "pcp://*/agent"}
    warnings = find_open_rules(settings(rules=[ASSOCIATE, rule]))
    (warning,) = warnings
    assert warning.startswith(
        "a client with any certificate may connect as type 'controller' and send every http://example.com/*"
        " to every client of type 'agent' (rule"
    )
