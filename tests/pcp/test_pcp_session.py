"""Sessions: association in v1, the path in v2, superseding, timeouts."""

import pytest

from dovetail.model.hop import Reason, Stage
from dovetail.pcp.events import SessionEnded, SessionOpened
from dovetail.pcp.session import Mount, parse_mount
from dovetail.pcp.settings import ALLOW_ALL, PcpSettings, Rule
from pcp.pcp_frames import frame_v1
from pcp.pcp_world import ASSOCIATE, World

A = "pcp://client_a/agent"
B = "pcp://client_b/agent"


@pytest.mark.parametrize(
    ("path", "mount"),
    [
        ("/pcp", Mount(1, None)),
        ("/pcp/", Mount(1, None)),
        ("/pcp/agent", Mount(1, "agent")),
        ("/pcp2/controller", Mount(2, "controller")),
        ("/pcp2", Mount(2, None)),
        ("/pcp2/a?x=1", Mount(2, "a")),
        ("/pcp/a/b", None),
        ("/pcp3", None),
        ("/", None),
        ("/pcp/" + "a" * 3000, None),
    ],
)
def test_mount_paths(path, mount):
    assert parse_mount(path, PcpSettings()) == mount


def test_association_response_has_the_id_of_the_request():
    world = World()
    connection = world.open("client_a")
    frame = world.send(
        connection, world.associate_request("pcp://client_a/controller", id="6f1e7a46-1c1c-4b5e-9d1a-2f1f6a3c9b11")
    )
    ((envelope, data),) = world.replies(connection)
    assert envelope["message_type"] == "http://puppetlabs.com/associate_response"
    assert envelope["targets"] == ["pcp://client_a/controller"]
    assert data == {"id": "6f1e7a46-1c1c-4b5e-9d1a-2f1f6a3c9b11", "success": True}
    assert world.inventory() == {"pcp://client_a/controller"}
    assert world.hops(frame) == [
        (Stage.ACCEPTED, "pcp://client_a/controller", None),
        (Stage.DELIVERED, "pcp:///server", None),
    ]
    assert SessionOpened(connection=connection, uri="pcp://client_a/controller", version=1) in world.events


def test_messages_before_association_are_dropped_and_journaled():
    world = World()
    connection = world.open("client_a")
    world.associate("client_b")
    frame = world.send(connection, world.message(A, B))
    assert not world.received[connection]
    world.assert_rejected(frame, Reason.NOT_ASSOCIATED)
    other = world.send(connection, world.associate_request(A, targets=[B]))
    world.assert_rejected(other, Reason.NOT_ASSOCIATED)


def test_malformed_before_association_gets_an_error_message():
    world = World()
    connection = world.open("client_a")
    world.send(connection, frame_v1(message_type=ASSOCIATE, extra=1))
    assert world.replies(connection)[0][0]["message_type"] == "http://puppetlabs.com/error_message"
    assert world.closes() == []


def test_expired_association_gets_ttl_expired():
    world = World()
    connection = world.open("client_a")
    frame = world.send(connection, world.associate_request(A, expires="2026-11-15T19:00:00Z"))
    assert world.replies(connection)[0][0]["message_type"] == "http://puppetlabs.com/ttl_expired"
    assert world.hops(frame)[-1] == (Stage.EXPIRED, "pcp:///server", Reason.LIFETIME_OVER)
    assert world.inventory() == set()


@pytest.mark.parametrize(
    ("sender", "path", "reason"),
    [
        ("pcp://client_b/agent", "/pcp", Reason.SENDER_MISMATCH),
        ("pcp://client_a/agent", "/pcp/controller", Reason.SENDER_MISMATCH),
        ("pcp://client_a/server", "/pcp", Reason.BAD_URI),
        ("pcp://client_a/*", "/pcp", Reason.BAD_URI),
        ("pcp://client_a/a b", "/pcp", Reason.FORBIDDEN_CHARACTERS),
        ("pcp://client_a/denied", "/pcp", Reason.UNAUTHORIZED),
    ],
)
def test_refused_association_says_why_then_closes_4002(sender, path, reason):
    world = World(rules=(Rule(allow=False, sender="pcp://*/denied", message_type=ASSOCIATE), *ALLOW_ALL))
    connection = world.open("client_a", path)
    frame = world.send(connection, world.associate_request(sender))
    ((_, data),) = world.replies(connection)
    assert data["success"] is False
    assert data["reason"]
    assert world.closes() == [(connection, 4002)]
    assert world.inventory() == set()
    world.assert_rejected(frame, reason)


def test_associating_again_on_the_same_connection_succeeds():
    world = World()
    connection = world.associate("client_a")
    world.send(connection, world.associate_request(A))
    assert world.replies(connection)[0][1]["success"] is True
    assert world.closes() == []
    assert world.inventory() == {A}


def test_associating_again_as_somebody_else_fails():
    world = World()
    connection = world.associate("client_a")
    world.send(connection, world.associate_request("pcp://client_a/controller"))
    assert world.replies(connection)[0][1]["success"] is False
    assert world.closes() == [(connection, 4002)]


def test_superseding_the_new_one_succeeds_then_the_old_is_closed_4000():
    world = World()
    old, new = world.associate("client_a"), world.associate("client_a")
    sender = world.associate("client_b")
    assert world.closes() == [(old, 4000)]
    frame = world.send(sender, world.message(B, A))
    assert world.received[new] == [frame]
    assert not world.received[old]


def test_a_late_close_of_the_old_connection_does_not_remove_the_new():
    world = World()
    old, new = world.associate("client_a"), world.associate("client_a")
    world.close(old)
    assert world.inventory() == {A}
    world.close(new)
    assert world.inventory() == set()
    ended = [event for event in world.events if isinstance(event, SessionEnded)]
    assert [(event.connection, event.was_superseded) for event in ended] == [(old, True), (new, False)]


def test_a_supersede_storm_leaves_nothing_behind():
    world = World()
    connections = [world.associate("client_a") for _ in range(500)]
    assert world.broker.connection_count == 1
    assert world.closes() == [(connection, 4000) for connection in connections[:-1]]
    assert world.inventory() == {A}


def test_a_dropped_wire_disassociates_at_once():
    world = World()
    connection, sender = world.associate("client_a"), world.associate("client_b")
    world.close(connection)
    frame = world.send(sender, world.message(B, A))
    assert world.hops(frame)[-1] == (Stage.UNDELIVERABLE, A, Reason.NO_RECIPIENT)


def test_no_association_in_time_closes():
    world = World(association_timeout_ms=30_000)
    never, late = world.open("client_a"), world.open("client_b")
    world.pass_time(29_999)
    assert world.closes() == []
    world.send(late, world.associate_request(B, expires="2026-11-15T21:00:00Z"))
    world.pass_time(10)
    assert world.closes() == [(never, 4002)]
    assert world.broker.connection_count == 1


def test_a_clock_that_is_set_back_gives_no_more_time_to_associate():
    world = World(association_timeout_ms=30_000)
    never = world.open("client_a")
    world.now -= 3_600_000_000
    world.broker.handle_timer(world.now)
    world.pass_time(30_000)
    assert world.closes() == [(never, 4002)]


def test_idle_clients_are_dropped_and_pings_count_as_activity():
    world = World(idle_timeout_ms=360_000)
    silent, pinging = world.associate("client_a"), world.associate("client_b")
    for _ in range(5):
        world.pass_time(90_000)
        world.broker.receive_ping(pinging, world.now)
    assert world.closes() == [(silent, 1001)]
    assert world.inventory() == {B}


def test_no_timer_is_wanted_when_nobody_is_there():
    world = World()
    assert world.broker.next_timer() is None
    connection = world.associate("client_a")
    world.close(connection)
    world.pass_time(1_000_000)
    assert world.broker.next_timer() is None


def test_operator_can_close_a_session():
    world = World()
    connection = world.associate("client_a")
    world.broker.close(connection, 1012, "revoked", world.now)
    world.drain()
    assert world.closes() == [(connection, 1012)]
    assert world.inventory() == set()


# Version 2: the session is the path


def test_v2_is_associated_by_its_path():
    world = World()
    world.open("client_a", "/pcp2/controller")
    world.open("client_b", "/pcp2")
    assert world.inventory() == {"pcp://client_a/controller", "pcp://client_b/agent"}


@pytest.mark.parametrize(
    ("name", "path"),
    [("client_a", "/pcp2/server"), ("client_a", "/pcp2/*"), ("a/b", "/pcp2"), ("a b", "/pcp2"), ("*", "/pcp2")],
)
def test_v2_refused_sessions_are_closed_4002(name, path):
    world = World()
    connection = world.open(name, path)
    assert world.closes() == [(connection, 4002)]
    assert world.inventory() == set()


def test_v2_sessions_go_through_authorisation():
    world = World(rules=(Rule(allow=False, sender="pcp://client_a/*", message_type=ASSOCIATE), *ALLOW_ALL))
    connection = world.open("client_a", "/pcp2")
    assert world.closes() == [(connection, 4002)]


def test_v2_supersedes_v1_and_the_other_way_round():
    world = World()
    first = world.associate("client_a")
    second = world.connect_v2("client_a")
    third = world.associate("client_a")
    assert world.closes() == [(first, 4000), (second, 4000)]
    world.close(third)
    assert world.inventory() == set()
