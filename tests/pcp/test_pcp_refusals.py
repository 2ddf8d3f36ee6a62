"""Refusals above a rate are counted and summarised, not handled one by one."""

import json
from collections import Counter

from dovetail.model.hop import Reason, Stage
from pcp.pcp_frames import BROKER, read_v1
from pcp.pcp_world import World

A, B = "pcp://client_a/agent", "pcp://client_b/agent"


def rejected(world: World) -> Counter[str]:
    return Counter(seen.counterparts[0] for seen in world.observations() if seen.stage is Stage.REJECTED)


def notes(world: World) -> list[dict]:
    raws = [seen.raw for seen in world.observations() if seen.raw and b"refusals_sampled" in seen.raw]
    assert all(read_v1(raw)[0]["targets"] == [BROKER] for raw in raws)
    return [json.loads(read_v1(raw)[1]) for raw in raws]


def test_above_the_rate_refusals_are_noted_by_their_number():
    world = World(refusals_per_s=3)
    a, b = world.associate("client_a"), world.associate("client_b")
    for _ in range(10):
        world.send(a, b"rubbish!")
    world.send(a, world.message("pcp://somebody/agent", B))
    world.send(b, b"rubbish!")
    assert rejected(world) == {A: 3, B: 1}
    assert (len(world.received[a]), len(world.received[b])) == (3, 1)
    assert notes(world) == []
    world.pass_time(1_100)
    assert [(note["client"], note["count"], note["reasons"]) for note in notes(world)] == [
        (A, 8, {Reason.UNSUPPORTED_VERSION.value: 7, Reason.SENDER_MISMATCH.value: 1})
    ]
    assert dict(world.broker.sampled_refusals) == notes(world)[0]["reasons"]
    envelope, content = world.replies(a)[-1]
    assert "in-reply-to" not in envelope
    assert content == {
        "description": "8 more messages refused within a second: 1 sender_mismatch, 7 unsupported_version"
    }
    assert (len(world.received[a]), len(world.received[b])) == (4, 1)


def test_a_clock_that_is_set_back_ends_the_second():
    world = World(refusals_per_s=1)
    a = world.associate("client_a")
    world.send(a, b"rubbish!")
    world.send(a, b"rubbish!")
    world.now -= 3_600_000_000
    world.send(a, b"rubbish!")
    assert rejected(world) == {A: 2}
    assert [note["count"] for note in notes(world)] == [1]


def test_who_has_gone_is_told_nothing():
    world = World(refusals_per_s=1)
    a = world.associate("client_a")
    for _ in range(3):
        world.send(a, b"rubbish!")
    world.close(a)
    world.pass_time(1_100)
    assert [note["count"] for note in notes(world)] == [2]
    assert len(world.received[a]) == 1


def test_after_a_second_refusals_are_handled_in_full_again():
    world = World(refusals_per_s=1)
    a = world.associate("client_a")
    for _ in range(3):
        world.send(a, b"rubbish!")
        world.send(a, b"rubbish!")
        world.now += 1_000_000  # no timer in between: the next refusal records what the last second left
    world.send(a, b"rubbish!")
    assert rejected(world) == {A: 4}
    assert [note["count"] for note in notes(world)] == [1, 1, 1]


def test_refusals_of_all_together_have_a_rate():
    world = World(refusals_per_s=2, total_refusals_per_s=5)
    for number in range(150):
        connection = world.associate(f"client_{number}")
        world.send(connection, b"rubbish!")
    assert sum(rejected(world).values()) == 5
    world.pass_time(1_100)
    named = notes(world)
    assert len(named) == 101
    assert (named[-1]["client"], named[-1]["count"]) == ("others", 45)
    assert sum(note["count"] for note in named) == 145


def test_an_association_is_answered_and_closed_above_the_rate_too():
    world = World(refusals_per_s=1, total_refusals_per_s=1)
    for number in range(2):
        connection = world.open(f"client_{number}")
        world.send(connection, world.associate_request("pcp://other/agent"))
        assert world.replies(connection)[0][1]["success"] is False
    assert [code for _, code in world.closes()] == [4002, 4002]
