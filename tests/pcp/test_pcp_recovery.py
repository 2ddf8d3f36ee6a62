"""After a restart the broker still owes what it accepted and could not hand over."""

import pytest

from dovetail.model.hop import Reason, Stage
from pcp.pcp_frames import NOW, read_v1
from pcp.pcp_world import World

A, B = "pcp://client_a/agent", "pcp://client_b/agent"


ANYBODY = "pcp://*/agent"


def restart(*lives: World, now: int = NOW) -> World:
    """After a restart with the journals of all these lives."""
    after = World()
    after.broker.restore([hop for life in lives for hop in life.journal()], now)
    after.drain()
    return after


def come_back(world: World, name: str) -> list[bytes]:
    """What a client that associates gets after the response."""
    connection = world.open(name)
    world.send(connection, world.associate_request(f"pcp://{name}/agent"))
    return world.received[connection][1:]


def crashed_world(*targets: str, **settings: object) -> tuple[World, bytes]:
    """client_a wrote to client_b, which does not read."""
    world = World(**settings)
    a, b = world.associate("client_a"), world.associate("client_b")
    world.send(a, world.message(A, B))
    world.pause(b)
    return world, world.send(a, world.message(A, *targets))


@pytest.mark.parametrize("targets", [(B, "pcp://ghost/agent", ANYBODY, B), (ANYBODY,), ("pcp://client_b/*",)])
def test_what_had_no_outcome_is_redelivered_after_a_restart(targets):
    before, owed = crashed_world(*targets)
    after = restart(before)
    assert come_back(after, "client_b") == [owed]
    assert come_back(after, "client_a") == []
    assert after.hops(owed) == [(Stage.REDELIVERED, B, None)]


@pytest.mark.parametrize("target", [B, ANYBODY])
def test_a_message_that_had_an_outcome_and_was_accepted_again_is_owed_again(target):
    """First there was nobody, or somebody read it; then it came again, and client_b did not read."""
    for connects_late in (True, False):
        before = World()
        a = before.associate("client_a", "controller")
        sender = "pcp://client_a/controller"
        b = None if connects_late else before.associate("client_b")
        owed = before.send(a, before.message(sender, target))
        before.pause(b or before.associate("client_b"))
        before.send(a, owed)
        after = restart(before)
        assert come_back(after, "client_b") == [owed]
        assert after.hops(owed) == [(Stage.REDELIVERED, B, None)]
        assert restart(before, after).hops(owed) == []


def test_members_of_a_wildcard_are_known_before_anything_was_handed_over():
    before = World()
    a = before.associate("client_a")
    before.associate("client_b")
    owed = before.message(A, ANYBODY)
    before.broker.receive_frame(owed, a, NOW)
    before.events += before.take_events()  # committed; then the broker is killed
    after = restart(before)
    assert (come_back(after, "client_a"), come_back(after, "client_b")) == ([owed], [owed])


def test_what_expired_meanwhile_gets_its_outcome_and_its_sender_hears_it_once():
    """It may have been handed over right before the crash: the reason says so, and nothing claims that it was not."""
    before, owed = crashed_world(B, ANYBODY, "pcp://client_a/agent")
    after = restart(before, now=NOW + 3_600_000_000)
    assert after.hops(owed) == [(Stage.EXPIRED, B, Reason.INTERRUPTED)]
    after.now = NOW + 3_600_000_000
    a = after.open("client_a")
    after.send(a, after.associate_request(A, expires="2026-11-16T20:00:00Z"))
    assert [fields["message_type"].rpartition("/")[2] for fields, _ in after.replies(a)] == [
        "associate_response",
        "ttl_expired",
    ]


def test_what_expires_after_a_restart_may_have_arrived_before_it():
    before, owed = crashed_world(B)
    after = restart(before)
    after.pass_time(61_000)
    assert after.hops(owed) == [(Stage.EXPIRED, B, Reason.INTERRUPTED)]


def test_a_notice_that_waits_is_restored():
    before, _ = crashed_world(B)
    before.close("1")
    before.pass_time(61_000)
    after = restart(before)
    (notice,) = come_back(after, "client_a")
    assert read_v1(notice)[0]["message_type"] == "http://puppetlabs.com/ttl_expired"


def test_a_message_whose_bytes_are_not_kept_gets_an_outcome():
    before, owed = crashed_world(B, bodies=({"message_type": "*", "bodies": "address"},))
    assert restart(before).hops(owed) == [(Stage.UNDELIVERABLE, B, Reason.INTERRUPTED)]


def test_messages_of_version_2_and_the_brokers_own_do_not_wait_but_get_an_outcome():
    before = World()
    a = before.connect_v2("client_a")
    before.associate("client_b")
    before.pause("2")
    sent = before.send(a, before.message_v2(B, data=1), is_text=True)
    before.send("2", b"garbage!")
    created = [seen for seen in before.observations() if seen.stage is Stage.CREATED][-1]
    after = restart(before)
    assert after.hops(sent) == [(Stage.UNDELIVERABLE, B, Reason.INTERRUPTED)]
    assert after.hops(created.raw) == [(Stage.UNDELIVERABLE, B, Reason.INTERRUPTED)]
    assert come_back(after, "client_b") == []


@pytest.mark.parametrize("target", [A, ANYBODY])
def test_a_message_that_was_refused_before_it_was_accepted_is_redelivered_to_its_own_sender(target):
    """The refusal names the sender, in the same turn here; it is not the outcome for the recipient of that name."""
    before = World()
    a = before.open("client_a")
    owed = before.message(A, target)
    associating = before.associate_request(A)
    before.broker.receive_frames([(data, a, False) for data in (owed, associating, owed)], NOW)
    before.events += before.take_events()  # committed; then the broker is killed
    assert before.hops(owed)[:2] == [(Stage.REJECTED, A, Reason.NOT_ASSOCIATED), (Stage.ACCEPTED, A, None)]
    assert come_back(restart(before), "client_a") == [owed]
