"""Rules: first match decides, no match denies, wildcards are checked for every client they expand to."""

import fnmatch
import itertools

from dovetail.pcp.authorization import Authorization, matches_type
from dovetail.pcp.inventory import Registry
from dovetail.pcp.routing import find_denied
from dovetail.pcp.session import Mount, Session
from dovetail.pcp.settings import PcpSettings, Rule
from dovetail.pcp.uri import parse_uri

NAMES, TYPES = "ab", "xy"
CLIENTS = [f"pcp://{name}/{kind}" for name in NAMES for kind in TYPES]
PATTERNS = [f"pcp://{name}/{kind}" for name in [*NAMES, "*"] for kind in [*TYPES, "*"]]


def registry_of(uris: tuple[str, ...]) -> Registry:
    registry = Registry()
    for number, uri in enumerate(uris):
        registry.add(uri, Session(str(number), "name", Mount(1, None), 0))
    return registry


def covers(pattern: str, uri: str) -> bool:
    (name, kind), (own_name, own_kind) = parse_uri(pattern), parse_uri(uri)
    return fnmatch.fnmatchcase(own_name, "[ab]" if name == "@both" else name) and kind in ("*", own_kind)


def brute_force(
    rules: tuple[Rule, ...], sender: str, message_type: str, target: str, connected: tuple[str, ...]
) -> bool:
    """Expand, then walk the rules for each client: slow and obviously correct."""
    expanded = [uri for uri in connected if covers(target, uri)] if "*" in target else [target]
    for uri in expanded:
        for rule in rules:
            if (
                covers(rule.sender, sender)
                and covers(rule.target, uri)
                and matches_type(rule.message_type, message_type)
            ):
                if not rule.allow:
                    return False
                break
        else:
            return False
    return True


def assert_same(rules: tuple[Rule, ...], connected: tuple[str, ...]) -> None:
    registry = registry_of(connected)
    groups = {"both": ("a", "b")}
    policy = Authorization(PcpSettings(rules=rules, groups=groups)).policy("pcp://a/x", "t")
    for target in PATTERNS:
        expected = brute_force(rules, "pcp://a/x", "t", target, connected)
        assert (find_denied([target], policy, registry) is None) is expected, (rules, connected, target)
        assert expected or not policy.is_open, (rules, connected, target)


SUBSETS = [subset for size in range(5) for subset in itertools.combinations(CLIENTS, size)]
TARGET_RULES = [Rule(allow=allow, target=target) for target in PATTERNS for allow in (True, False)]


def test_wildcard_verdicts_equal_brute_force_expansion_for_all_lists_of_two_rules():
    for rules in itertools.product(TARGET_RULES, repeat=2):
        for connected in SUBSETS[::3]:
            assert_same(rules, connected)


def test_wildcard_verdicts_equal_brute_force_expansion_for_lists_of_three_rules():
    for rules in itertools.islice(itertools.product(TARGET_RULES, repeat=3), 0, None, 7):
        assert_same(rules, SUBSETS[-1])


def test_wildcard_verdicts_equal_brute_force_expansion_where_rules_name_patterns_and_groups():
    patterns = [f"pcp://{name}/{kind}" for name in ("a*", "*b", "@both") for kind in ("x", "*")]
    named = [Rule(allow=allow, target=target) for target in patterns for allow in (True, False)]
    for pair in itertools.product(named, TARGET_RULES):
        for rules in (pair, pair[::-1], (*pair, Rule(allow=True))):
            assert_same(rules, SUBSETS[-1])


def test_the_sender_may_be_named_by_a_pattern_or_a_group():
    rules = (Rule(allow=True, sender="pcp://@ops/x"), Rule(allow=True, sender="pcp://web-*/y"))
    authorization = Authorization(PcpSettings(rules=rules, groups={"ops": ("boss", "*.ops.example.com")}))
    allowed = ["pcp://boss/x", "pcp://a.ops.example.com/x", "pcp://web-1/y"]
    denied = ["pcp://boss/y", "pcp://agent/x", "pcp://web-1/x"]
    for sender in (*allowed, *denied):
        verdict = authorization.policy(sender, "t").judge("pcp://b/y")
        assert verdict.is_allowed is (sender in allowed), sender


def test_a_type_that_is_listed_may_be_claimed_only_by_whom_it_lists():
    types = {"controller": ("boss", "@ops"), "agent": ("*",)}
    authorization = Authorization(PcpSettings(types=types, groups={"ops": ("*.ops",)}))
    assert [authorization.may_claim(f"pcp://{name}/controller") for name in ("boss", "a.ops", "agent1")] == [1, 1, 0]
    assert authorization.may_claim("pcp://agent1/agent")
    assert not authorization.may_claim("pcp://boss/other")
    assert Authorization(PcpSettings()).may_claim("pcp://anybody/whatever")


def test_sender_and_message_type_select_the_rules():
    rules = (
        Rule(allow=False, sender="pcp://a/*", message_type="http://x/*"),
        Rule(allow=True, sender="pcp://*/x", message_type="http://x/1"),
        Rule(allow=True, message_type="http://y"),
    )
    authorization = Authorization(PcpSettings(rules=rules))
    for sender in CLIENTS:
        for message_type in ("http://x/1", "http://x/2", "http://y", "http://y/more"):
            verdict = authorization.policy(sender, message_type).judge("pcp://b/y")
            assert verdict.is_allowed is brute_force(rules, sender, message_type, "pcp://b/y", ())


def test_a_pattern_of_message_types_matches_what_starts_with_all_that_precedes_its_star():
    assert matches_type("http://x/a*", "http://x/a")
    assert matches_type("http://x/a*", "http://x/ab")
    assert not matches_type("http://x/a*", "http://x/b")


def test_verdict_names_the_first_matching_rule():
    rules = (Rule(allow=True, target="pcp://a/x", name="first"), Rule(allow=False, target="pcp://*/x", name="second"))
    policy = Authorization(PcpSettings(rules=rules)).policy("pcp://b/y", "t")
    assert policy.judge("pcp://a/x").rule is rules[0]
    assert policy.judge("pcp://b/x").rule is rules[1]
    assert policy.judge("pcp://b/y").rule is None
    assert not policy.judge("pcp://b/y").is_allowed


def test_both_names_of_the_broker_are_one_target():
    for written in ("pcp:///server", "pcp:///broker"):
        policy = Authorization(PcpSettings(rules=(Rule(allow=True, target=written),))).policy("pcp://a/x", "t")
        assert policy.judge("pcp:///server").is_allowed
        assert policy.judge("pcp:///broker").is_allowed


def test_a_wildcard_over_many_clients_looks_at_rules_not_clients():
    registry = registry_of(tuple(f"pcp://host{number}/agent" for number in range(50_000)))
    rules = (Rule(allow=False, target="pcp://host49999/agent"), Rule(allow=True))
    policy = Authorization(PcpSettings(rules=rules)).policy("pcp://a/x", "t")
    denied = find_denied(["pcp://*/agent"], policy, registry)
    assert denied is not None
    assert denied.target == "pcp://host49999/agent"
    assert len(policy._verdicts) == 1


def test_long_targets_are_judged_and_not_cached():
    """Anybody may send to names that nobody has, each of a thousand characters."""
    policy = Authorization(PcpSettings(rules=(Rule(allow=True, target="pcp://*/agent"),))).policy("pcp://a/agent", "x")
    assert policy.judge(f"pcp://{'n' * 900}/agent").is_allowed
    assert not policy.judge(f"pcp://{'n' * 900}/other").is_allowed
    assert policy._verdicts == {}
