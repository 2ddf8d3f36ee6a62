"""Inventory: requests with wildcards, subscriptions, batches."""

import json

import pytest

from dovetail.model.hop import Reason, Stage
from pcp.pcp_frames import compact, read_v1
from pcp.pcp_world import INVENTORY, World

ME = "pcp://watcher/controller"


def watcher() -> tuple[World, int]:
    world = World()
    return world, world.associate("watcher", "controller")


def ask(world: World, connection: int, *query: str, **more: object) -> bytes:
    data = compact({"query": list(query), **more})
    expires = "2026-11-15T23:00:00Z"
    return world.send(
        connection, world.message(ME, "pcp:///server", message_type=INVENTORY, data=data, expires=expires)
    )


def changes(world: World, connection: int) -> list[list[tuple[str, int]]]:
    return [
        [(change["client"], change["change"]) for change in data["changes"]]
        for envelope, data in world.replies(connection)
        if envelope["message_type"] == "http://puppetlabs.com/inventory_update"
    ]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        (["pcp://*/*"], ["pcp://a/agent", "pcp://a/other", "pcp://b/agent", ME]),
        (["pcp://*/agent"], ["pcp://a/agent", "pcp://b/agent"]),
        (["pcp://a/*"], ["pcp://a/agent", "pcp://a/other"]),
        (["pcp://b/agent", "pcp://b/*", "pcp://ghost/agent"], ["pcp://b/agent"]),
        ([], []),
    ],
)
def test_response_lists_who_is_connected_now_sorted(query, expected):
    world, me = watcher()
    for name, kind in (("b", "agent"), ("a", "other"), ("a", "agent")):
        world.associate(name, kind)
    gone = world.associate("gone")
    world.close(gone)
    request = ask(world, me, *query)
    ((envelope, data),) = world.replies(me)
    assert envelope["message_type"] == "http://puppetlabs.com/inventory_response"
    assert envelope["in-reply-to"] == read_v1(request)[0]["id"]
    assert data == {"uris": expected}


@pytest.mark.parametrize(
    "data",
    [
        None,
        b"",
        b"x",
        b"[]",
        b"{}",
        b'{"query":"pcp://*/*"}',
        b'{"query":["nowhere"]}',
        b'{"query":[],"extra":1}',
        b'{"query":[],"query":["pcp://*/*"]}',
        b'{"query":[],"subscribe":"yes"}',
        b'{"query":' + b"[" * 9999 + b"]" * 9999 + b"}",
    ],
)
def test_bad_request_gets_an_error_message(data):
    world, me = watcher()
    frame = world.send(me, world.message(ME, "pcp:///server", message_type=INVENTORY, data=data))
    ((envelope, _),) = world.replies(me)
    assert envelope["message_type"] == "http://puppetlabs.com/error_message"
    assert world.hops(frame)[-1] == (Stage.REJECTED, "pcp:///server", Reason.INVALID_SCHEMA)


def test_updates_are_batched_each_second_and_filtered():
    world, me = watcher()
    ask(world, me, "pcp://*/agent", subscribe=True)
    one = world.associate("a")
    world.associate("b", "other")
    world.pass_time(999)
    assert changes(world, me) == []
    world.close(one)
    world.pass_time(1)
    assert changes(world, me) == [[("pcp://a/agent", 1), ("pcp://a/agent", -1)]]
    world.pass_time(5_000)
    assert len(changes(world, me)) == 1


def test_an_update_does_not_wait_for_a_clock_that_was_set_back():
    world, me = watcher()
    ask(world, me, "pcp://*/agent", subscribe=True)
    world.associate("a")
    world.now -= 3_600_000_000
    world.broker.handle_timer(world.now)
    world.drain()
    assert changes(world, me) == [[("pcp://a/agent", 1)]]


def test_no_update_before_the_response_and_none_lost_after_it():
    world, me = watcher()
    other = world.associate("other", "controller")
    data = compact({"query": ["pcp://*/*"], "subscribe": True})
    world.send(other, world.message("pcp://other/controller", "pcp:///server", message_type=INVENTORY, data=data))
    world.associate("before")
    ask(world, me, "pcp://*/agent", subscribe=True)
    world.associate("after")
    world.pass_time(1_000)
    assert world.replies(me)[0][1] == {"uris": ["pcp://before/agent"]}
    assert changes(world, me) == [[("pcp://after/agent", 1)]]
    assert changes(world, other) == [[("pcp://before/agent", 1), ("pcp://after/agent", 1)]]


def test_every_batch_has_all_changes_since_the_one_before():
    world, me = watcher()
    ask(world, me, "pcp://*/agent", subscribe=True)
    world.associate("a")
    world.pass_time(1_000)
    world.associate("b")
    world.associate("c")
    world.pass_time(1_000)
    assert changes(world, me) == [[("pcp://a/agent", 1)], [("pcp://b/agent", 1), ("pcp://c/agent", 1)]]


def test_a_new_request_replaces_the_subscription():
    world, me = watcher()
    ask(world, me, "pcp://*/agent", subscribe=True)
    ask(world, me, "pcp://*/other", subscribe=True)
    world.associate("a")
    world.associate("a", "other")
    world.pass_time(1_000)
    assert changes(world, me) == [[("pcp://a/other", 1)]]


@pytest.mark.parametrize("more", [{}, {"subscribe": False}])
def test_false_or_absent_cancels(more):
    world, me = watcher()
    ask(world, me, "pcp://*/agent", subscribe=True)
    world.associate("a")
    ask(world, me, "pcp://*/agent", **more)
    world.pass_time(5_000)
    assert changes(world, me) == []


def test_subscription_ends_with_the_session():
    world, me = watcher()
    ask(world, me, "pcp://*/agent", subscribe=True)
    world.close(me)
    again = world.associate("watcher", "controller")
    world.associate("a")
    world.pass_time(5_000)
    assert changes(world, again) == []


def test_superseding_is_no_change():
    world, me = watcher()
    world.associate("a")
    ask(world, me, "pcp://*/agent", subscribe=True)
    world.associate("a")
    world.pass_time(5_000)
    assert changes(world, me) == []


def test_v2_clients_can_ask_and_subscribe():
    world = World()
    me = world.connect_v2("watcher", "controller")
    request = world.message_v2(None, message_type=INVENTORY, data={"query": ["pcp://*/*"], "subscribe": True})
    world.send(me, request, is_text=True)
    world.associate("a")
    world.pass_time(1_000)
    response, update = world.replies_v2(me)
    assert response["data"] == {"uris": [ME]}
    assert response["in_reply_to"] == json.loads(request)["id"]
    assert update["data"] == {"changes": [{"client": "pcp://a/agent", "change": 1}]}
