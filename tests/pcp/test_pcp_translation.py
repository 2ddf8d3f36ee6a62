"""v1 and v2 clients talk to each other."""

import json

import pytest

from dovetail.model.hop import Reason, Stage
from pcp.pcp_frames import ID, read_v1
from pcp.pcp_world import World

V1, V2 = "pcp://one/agent", "pcp://two/agent"
ERROR = "http://puppetlabs.com/error_message"


def both(**settings: object) -> tuple[World, int, int]:
    world = World(**settings)
    return world, world.associate("one"), world.connect_v2("two")


def test_v1_to_v2():
    world, one, two = both()
    frame = world.send(one, world.message(V1, V2, data=b'{"a": 1}', in_reply_to=ID))
    assert world.replies_v2(two) == [
        {
            "id": read_v1(frame)[0]["id"],
            "message_type": "http://example.com/ping",
            "target": V2,
            "sender": V1,
            "in_reply_to": ID,
            "data": {"a": 1},
        }
    ]
    assert world.hops(frame) == [(Stage.ACCEPTED, V1, None), (Stage.DELIVERED, V2, None)]


def test_v1_without_data_to_v2_has_no_data():
    world, one, two = both()
    world.send(one, world.message(V1, V2, data=None))
    assert "data" not in world.replies_v2(two)[0]


def test_v1_multicast_to_v2_is_one_translated_copy_each():
    world, one, two = both()
    three = world.connect_v2("three")
    world.send(one, world.message(V1, "pcp://*/agent"))
    assert [world.replies_v2(c)[0]["target"] for c in (two, three)] == [V2, "pcp://three/agent"]
    assert len(world.received[one]) == 1


def test_v2_to_v1():
    world, one, two = both(translated_ttl_ms=60_000)
    world.send(two, world.message_v2(V1, data=[1, "x"], in_reply_to=ID), is_text=True)
    ((envelope, data),) = world.replies(one)
    assert data == [1, "x"]
    assert envelope["sender"] == V2
    assert envelope["targets"] == [V1]
    assert envelope["in-reply-to"] == ID
    assert envelope["expires"] == "2026-11-15T20:00:00.000000Z"


def test_v2_to_v2_is_unchanged_but_always_has_a_sender():
    world, _, two = both()
    three = world.connect_v2("three")
    with_sender = world.send(two, world.message_v2("pcp://three/agent", sender=V2, data=1), is_text=True)
    world.send(two, world.message_v2("pcp://three/agent"), is_text=True)
    assert world.received[three][0] == with_sender
    assert world.replies_v2(three)[1]["sender"] == V2


@pytest.mark.parametrize("data", [b"\x00\xff", b"not json", b"[" * 5000])
def test_what_cannot_be_translated_gets_the_sender_a_version_error(data):
    world, one, two = both()
    other = world.associate("other")
    frame = world.send(one, world.message(V1, V2, "pcp://other/agent", data=data))
    assert not world.received[two]
    assert world.received[other] == [frame]
    ((envelope, content),) = world.replies(one)
    assert envelope["message_type"] == "http://puppetlabs.com/version_error"
    assert set(content) == {"id", "target", "reason"}
    assert (content["id"], content["target"]) == (read_v1(frame)[0]["id"], V2)
    assert set(world.hops(frame)[1:]) == {
        (Stage.UNDELIVERABLE, V2, Reason.NOT_TRANSLATABLE),
        (Stage.DELIVERED, "pcp://other/agent", None),
    }


def test_error_data_is_translated_both_ways():
    world, one, two = both()
    error = b'{"id":"6f1e7a46-1c1c-4b5e-9d1a-2f1f6a3c9b11","description":"no"}'
    world.send(one, world.message(V1, V2, message_type=ERROR, data=error))
    assert world.replies_v2(two)[0]["data"] == "no"
    world.send(two, world.message_v2(V1, message_type=ERROR, in_reply_to=ID, data="no"), is_text=True)
    assert world.replies(one)[0][1] == {"id": ID, "description": "no"}


@pytest.mark.parametrize(
    ("content", "answered"),
    [({"id": ID, "description": "no"}, ID), ({"id": "x", "description": "no"}, None), ({"description": "no"}, None)],
)
def test_a_v1_error_keeps_the_id_it_names_in_v2(content, answered):
    world, one, two = both()
    world.send(one, world.message(V1, V2, message_type=ERROR, data=json.dumps(content).encode()))
    (error,) = world.replies_v2(two)
    assert error.get("in_reply_to") == answered
    assert error["data"] == "no"


def test_v2_unknown_target_gets_an_error_whose_data_is_a_string():
    world, _, two = both()
    frame = world.send(two, world.message_v2("pcp://ghost/agent"), is_text=True)
    (error,) = world.replies_v2(two)
    assert error["message_type"] == ERROR
    assert isinstance(error["data"], str)
    assert error["in_reply_to"] == json.loads(frame)["id"]
    assert error["sender"] == "pcp:///server"
    assert world.hops(frame)[-1] == (Stage.UNDELIVERABLE, "pcp://ghost/agent", Reason.NO_RECIPIENT)


def test_v2_has_no_multicast():
    world, _, two = both()
    frame = world.send(two, world.message_v2("pcp://*/agent"), is_text=True)
    world.assert_rejected(frame, Reason.INVALID_SCHEMA)
    assert world.replies_v2(two)[0]["message_type"] == ERROR


def test_v2_no_target_means_the_broker():
    world, _, two = both()
    frame = world.send(two, world.message_v2(None), is_text=True)
    assert world.hops(frame)[-1] == (Stage.REJECTED, "pcp:///server", Reason.UNKNOWN_REQUEST)


def test_v2_sender_must_be_the_sessions_own():
    world, _, two = both()
    frame = world.send(two, world.message_v2(V1, sender=V1), is_text=True)
    world.assert_rejected(frame, Reason.SENDER_MISMATCH)


def test_v2_travels_in_text_frames():
    world, _, two = both()
    frame = world.send(two, world.message_v2(V1), is_text=False)
    world.assert_rejected(frame, Reason.WRONG_FRAME)


def test_v2_garbage_gets_an_error_string():
    world, _, two = both()
    world.send(two, b"garbage", is_text=True)
    world.send(two, world.message_v2(V1, id=ID, extra=1), is_text=True)
    first, second = world.replies_v2(two)
    assert isinstance(first["data"], str)
    assert "in_reply_to" not in first
    assert second["in_reply_to"] == ID


def test_v2_unauthorized_has_in_reply_to_and_no_data():
    from dovetail.pcp.settings import ALLOW_ALL, Rule

    world, one, two = both(rules=(Rule(allow=False, target=V1), *ALLOW_ALL))
    frame = world.send(two, world.message_v2(V1), is_text=True)
    (reply,) = world.replies_v2(two)
    assert reply["message_type"] == "http://puppetlabs.com/unauthorized"
    assert reply["in_reply_to"] == json.loads(frame)["id"]
    assert "data" not in reply
    assert not world.received[one]
