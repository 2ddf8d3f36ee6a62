"""Decisions one by one: each check in the order of the specification, and what passes all of them."""

import msgspec
import pytest

from counting import count_calls
from dovetail.model.address import address_of
from dovetail.model.hop import Reason
from dovetail.pcp.codec_v1 import decode_frame
from dovetail.pcp.decision import Answer, Associate, Decision, Deliver, Expire, Refuse
from dovetail.pcp.lifetimes import NEVER_US, Lifetimes
from dovetail.pcp.message import message_of
from dovetail.pcp.session import DeliverToOne
from dovetail.pcp.settings import ALLOW_ALL, Rule
from pcp.pcp_frames import BROKER, NOW, SENDER, TARGET
from pcp.pcp_world import ASSOCIATE, World

PING = "http://example.com/ping"
RULES = (Rule(allow=False, target="pcp://secret/*"), Rule(allow=False, message_type="no"), *ALLOW_ALL)


class Deciding:
    """A broker with a controller, two agents, and a connection that has not associated."""

    def __init__(self) -> None:
        self.world = World(rules=RULES)
        self.sender = self.world.associate("client_a", "controller")
        self.receiver = self.world.associate("client_b")
        self.world.associate("secret")
        self.stranger = self.world.open("client_d")

    def session(self, connection: int):
        return self.world.broker._sessions[str(connection)]

    def decide(self, *targets: str, sender=SENDER, kind=PING, is_expired=False, connection=None) -> Decision:
        session = self.session(self.sender if connection is None else connection)
        return self.world.broker._decide(session, sender, kind, list(targets), is_expired)


@pytest.fixture
def deciding() -> Deciding:
    return Deciding()


def test_one_connected_client(deciding):
    assert deciding.decide(TARGET) == DeliverToOne(deciding.session(deciding.receiver), True)


def test_a_route_of_several_kinds(deciding):
    decision = deciding.decide(TARGET, "pcp://client_b/*", "pcp://ghost/agent", BROKER)
    assert isinstance(decision, Deliver)
    assert (list(decision.route.sessions), decision.route.unmatched) == ([TARGET], ["pcp://ghost/agent"])
    assert decision.route.broker == [BROKER]


def test_the_association_of_a_stranger(deciding):
    request = {"sender": "pcp://client_d/agent", "kind": ASSOCIATE, "connection": deciding.stranger}
    assert isinstance(deciding.decide(BROKER, **request), Associate)
    assert isinstance(deciding.decide(BROKER, **request, is_expired=True), Expire)


@pytest.mark.parametrize(
    ("targets", "changes", "reason", "answer"),
    [
        ([TARGET], {"sender": "pcp://client_b/agent"}, Reason.SENDER_MISMATCH, Answer.ERROR),
        ([TARGET], {"kind": "p\u00e9"}, Reason.FORBIDDEN_CHARACTERS, Answer.ERROR),
        (["pcp://a\0b/agent", "pcp://secret/agent"], {}, Reason.FORBIDDEN_CHARACTERS, Answer.ERROR),
        ([TARGET], {"kind": "no"}, Reason.UNAUTHORIZED, Answer.UNAUTHORIZED),
        (["pcp://secret/agent"], {}, Reason.UNAUTHORIZED, Answer.UNAUTHORIZED),
        (["pcp://*/agent"], {}, Reason.UNAUTHORIZED, Answer.UNAUTHORIZED),
        ([TARGET, "pcp://secret/agent"], {"is_expired": True}, Reason.UNAUTHORIZED, Answer.UNAUTHORIZED),
    ],
)
def test_refusals(deciding, targets, changes, reason, answer):
    decision = deciding.decide(*targets, **changes)
    assert isinstance(decision, Refuse)
    assert (decision.reason, decision.answer) == (reason, answer)


def test_each_check_comes_before_the_next(deciding):
    """Sender, characters, rules, lifetime: each message has all the faults of those after it."""
    secret, forbidden = "pcp://secret/agent", "pcp://a\0b/agent"
    assert deciding.decide(secret, forbidden, sender="pcp://x/agent", is_expired=True).reason is Reason.SENDER_MISMATCH
    assert deciding.decide(secret, forbidden, is_expired=True).reason is Reason.FORBIDDEN_CHARACTERS
    assert deciding.decide(secret, kind="n\0o", is_expired=True).reason is Reason.FORBIDDEN_CHARACTERS
    assert deciding.decide(secret, is_expired=True).reason is Reason.UNAUTHORIZED
    assert isinstance(deciding.decide(TARGET, is_expired=True), Expire)


def test_before_the_association_only_the_association_is_decided(deciding):
    stranger = {"sender": "pcp://client_d/agent", "connection": deciding.stranger}
    assert deciding.decide(TARGET, **stranger).reason is Reason.NOT_ASSOCIATED
    refused = deciding.decide(BROKER, sender="pcp://client_a/agent", kind=ASSOCIATE, connection=deciding.stranger)
    assert (refused.reason, refused.answer) == (Reason.SENDER_MISMATCH, Answer.ASSOCIATION_REFUSED)


def test_expired_is_what_does_not_expire_later_than_the_clock_less_its_skew():
    assert Lifetimes(5, 10).latest_expired_us(NOW) == NOW - 5_000


@pytest.mark.parametrize(
    ("expires_us", "ends_us", "reason"),
    [
        (NOW, NOW + 5_000, Reason.LIFETIME_OVER),
        (NOW + 4_999, NOW + 9_999, Reason.LIFETIME_OVER),
        (NOW + 5_001, NOW + 10_000, Reason.HELD_TOO_LONG),
        (NEVER_US, NOW + 10_000, Reason.HELD_TOO_LONG),
    ],
)
def test_what_waits_ends_with_its_lifetime_or_with_the_longest_that_is_allowed(deciding, expires_us, ends_us, reason):
    lifetimes = Lifetimes(clock_skew_ms=5, max_lifetime_ms=10)
    frame = decode_frame(deciding.world.message(SENDER, TARGET))
    message = msgspec.structs.replace(message_of(frame, address_of(b""), NOW), expires_us=expires_us)
    assert lifetimes.end_us(message) == ends_us
    assert lifetimes.find_end(message, ends_us - 1) is None
    assert lifetimes.find_end(message, ends_us) is reason


def test_what_has_no_lifetime_does_not_wait_and_is_not_given_up(deciding):
    frame = decode_frame(deciding.world.message(SENDER, TARGET))
    message = msgspec.structs.replace(message_of(frame, address_of(b""), NOW), expires_us=None)
    assert Lifetimes(0, 1).find_end(message, NOW + 1_000_000) is None


def test_a_target_that_stands_there_many_times_is_judged_once(deciding):
    once = count_calls(lambda: deciding.decide("pcp://*/agent", "pcp://client_b/*"))
    often = count_calls(lambda: deciding.decide(*["pcp://*/agent", "pcp://client_b/*"] * 10_000))
    assert often <= once


def test_wildcards_that_stand_for_nobody_cost_no_look_at_the_rules():
    world = World(rules=(*(Rule(allow=False, target=f"pcp://h{number}/agent") for number in range(500)), *ALLOW_ALL))
    sender = world.associate("client_a", "controller")
    targets = [f"pcp://*/type{number}" for number in range(1000)]
    session = world.broker._sessions[str(sender)]
    assert count_calls(lambda: world.broker._decide(session, SENDER, PING, targets, False)) < 100 * len(targets)
