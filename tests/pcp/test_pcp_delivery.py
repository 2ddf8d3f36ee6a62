"""Queues of slow connections, re-delivery, and the one outcome per target."""

import json
import tracemalloc

import pytest

from dovetail.model.hop import Observation, Reason, Stage
from dovetail.model.wire import CloseLink, SendFrames
from dovetail.pcp.events import SlowConsumerFound
from pcp.pcp_frames import NOW, read_v1
from pcp.pcp_world import World, frame_bytes

A, B, C = "pcp://client_a/agent", "pcp://client_b/agent", "pcp://client_c/agent"
LATER = "2026-11-15T20:30:00Z"


def two_clients(**settings: object) -> tuple[World, int, int]:
    world = World(**settings)
    return world, world.associate("client_a"), world.associate("client_b")


def outcomes(world: World, frame: bytes) -> list[tuple[Stage, str | None, Reason | None]]:
    return [hop for hop in world.hops(frame)[1:] if hop[0] is not Stage.ROUTED]


def test_a_paused_connection_gets_nothing_until_it_has_room():
    world, a, b = two_clients()
    world.pause(b)
    frames = [world.send(a, world.message(A, B)) for _ in range(3)]
    assert not world.received[b]
    assert outcomes(world, frames[0]) == []
    assert world.broker.queued_bytes > sum(map(len, frames))
    assert world.broker.queued_bytes > world.broker.backlogs()[B] > sum(map(len, frames))
    world.resume(b)
    assert world.received[b] == frames
    assert outcomes(world, frames[0]) == [(Stage.DELIVERED, B, None)]
    assert world.broker.queued_bytes == 0


def test_what_comes_after_the_queue_stays_behind_it():
    world, a, b = two_clients()
    world.pause(b)
    big = world.send(a, world.message(A, B, data=b"x" * 300_000))
    second = world.send(a, world.message(A, B))
    world.broker.receive_resumed(b, world.now)
    world.broker.handle_timer(world.now)
    third = world.send(a, world.message(A, B))
    assert world.received[b] == [big]  # one slice; the rest when the timer is handled, which is due immediately
    assert world.broker.next_timer() == world.now
    world.pass_time(0)
    assert world.received[b] == [big, second, third]


def test_what_is_enqueued_when_the_transport_turns_out_to_be_full_is_delivered_later():
    world, a, b = two_clients()
    frame = world.message(A, B)
    world.broker.receive_frame(frame, a, world.now)
    world.broker.receive_paused(b, 0, world.now)
    world.drain()
    assert outcomes(world, frame) == []
    world.resume(b)
    assert outcomes(world, frame) == [(Stage.DELIVERED, B, None)]


def test_pausing_again_stops_the_slices():
    world, a, b = two_clients()
    world.pause(b)
    frames = [world.send(a, world.message(A, B, data=b"x" * 300_000)) for _ in range(3)]
    world.resume(b)
    world.pause(b)
    world.pass_time(100)
    assert world.received[b] == frames[:1]
    world.resume(b)
    world.pass_time(0)
    assert world.received[b] == frames


def test_wire_that_breaks_before_the_frame_was_written_is_redelivered_in_order():
    world, a, b = two_clients()
    world.pause(b)
    frames = [world.send(a, world.message(A, B, expires=LATER)) for _ in range(3)]
    world.close(b)
    world.pass_time(60_000)
    again = world.open("client_b")
    world.send(again, world.associate_request(B, expires=LATER))
    assert world.received[again][1:] == frames
    for frame in frames:
        assert outcomes(world, frame) == [(Stage.REDELIVERED, B, None)]


def test_redelivery_comes_after_the_association_response():
    world, a, b = two_clients()
    world.pause(b)
    frame = world.send(a, world.message(A, B, expires=LATER))
    world.close(b)
    again = world.open("client_b")
    assert not world.received[again]
    world.send(again, world.associate_request(B))
    assert world.replies(again)[0][0]["message_type"] == "http://puppetlabs.com/associate_response"
    assert world.received[again][1:] == [frame]


def test_wire_that_breaks_within_the_turn_is_redelivered():
    world, a, b = two_clients()
    frame = world.message(A, B, expires=LATER)
    world.broker.receive_frame(frame, a, world.now)
    world.broker.receive_closed(b, world.now)
    world.drain()
    assert not world.received[b]
    assert outcomes(world, frame) == []
    again = world.open("client_b")
    world.send(again, world.associate_request(B))
    assert world.received[again][1:] == [frame]
    assert outcomes(world, frame) == [(Stage.REDELIVERED, B, None)]


def test_a_broken_wire_gets_nothing_more_but_what_came_through_it_counts():
    world, a, b = two_clients()
    first = world.message(A, B, expires=LATER)
    world.broker.receive_frame(first, a, world.now)
    world.broker.receive_broken(b, world.now)
    second = world.message(B, A)
    world.broker.receive_frame(second, b, world.now)
    world.broker.receive_closed(b, world.now)
    world.drain()
    assert not world.received[b]
    assert world.received[a] == [second]
    again = world.open("client_b")
    world.send(again, world.associate_request(B))
    assert world.received[again][1:] == [first]
    assert outcomes(world, first) == [(Stage.REDELIVERED, B, None)]


def test_superseding_passes_the_queue_to_the_new_connection():
    world, a, b = two_clients()
    world.pause(b)
    frame = world.send(a, world.message(A, B))
    new = world.open("client_b")
    world.send(new, world.associate_request(B))
    assert world.received[new][1:] == [frame]
    assert outcomes(world, frame) == [(Stage.REDELIVERED, B, None)]


def test_redelivered_hop_stands_in_the_debug_chunk():
    world, a, b = two_clients(hops=True)
    world.pause(b)
    world.send(a, world.message(A, B))
    world.close(b)
    again = world.open("client_b")
    world.send(again, world.associate_request(B))
    debug = read_v1(world.received[again][1])[2]
    assert [hop["stage"] for hop in json.loads(debug[0])["hops"]] == ["accepted", "redelivered"]


def test_not_back_before_expires_tells_the_sender_once():
    world, a, b = two_clients()
    c = world.associate("client_c")
    world.pause(b)
    world.pause(c)
    frame = world.send(a, world.message(A, B, C))
    world.close(b)
    world.close(c)
    world.pass_time(61_000)
    ((envelope, data),) = world.replies(a)
    assert envelope["message_type"] == "http://puppetlabs.com/ttl_expired"
    assert data == {"id": read_v1(frame)[0]["id"]}
    assert set(outcomes(world, frame)) == {
        (Stage.EXPIRED, B, Reason.LIFETIME_OVER),
        (Stage.EXPIRED, C, Reason.LIFETIME_OVER),
    }
    assert world.broker.queued_bytes == 0


def test_expires_in_the_queue_of_a_connection_that_does_not_read():
    world, a, b = two_clients()
    world.pause(b)
    short = world.send(a, world.message(A, B))
    long = world.send(a, world.message(A, B, expires=LATER))
    world.pass_time(61_000)
    assert outcomes(world, short) == [(Stage.EXPIRED, B, Reason.LIFETIME_OVER)]
    world.resume(b)
    assert world.received[b] == [long]


def test_redelivery_is_bounded_the_oldest_give_way():
    world, a, b = two_clients(redelivery_messages=2)
    world.pause(b)
    frames = [world.send(a, world.message(A, B, expires=LATER)) for _ in range(3)]
    world.close(b)
    assert outcomes(world, frames[0]) == [(Stage.EXPIRED, B, Reason.REDELIVERY_OVERFLOW)]
    assert world.replies(a)[0][0]["message_type"] == "http://puppetlabs.com/ttl_expired"
    again = world.open("client_b")
    world.send(again, world.associate_request(B))
    assert world.received[again][1:] == frames[1:]


@pytest.mark.parametrize("quota", [{"sender_queue_messages": 2}, {"sender_queue_bytes": 3_500}])
def test_what_waits_of_one_sender_is_bounded_and_others_do_not_feel_it(quota):
    world, a, b = two_clients(**quota)
    c = world.associate("client_c")
    world.pause(b)
    other = world.send(c, world.message(C, B, expires=LATER))
    frames = [world.send(a, world.message(A, B, expires=LATER)) for _ in range(3)]
    assert outcomes(world, frames[0]) == [(Stage.EXPIRED, B, Reason.SENDER_QUOTA)]
    assert world.replies(a)[0][0]["message_type"] == "http://puppetlabs.com/ttl_expired"
    world.resume(b)
    assert world.received[b] == [other, *frames[1:]]
    assert world.broker.held.largest(5) == []


def test_what_waits_of_one_sender_for_clients_that_are_away_is_bounded():
    world, a, b = two_clients(sender_queue_messages=2)
    c = world.associate("client_c")
    frames = []
    for connection, uri in ((b, B), (c, C)):
        world.pause(connection)
        frames += [world.send(a, world.message(A, uri, expires=LATER)) for _ in range(2)]
        world.close(connection)
    assert [outcomes(world, frame) != [] for frame in frames] == [True, True, False, False]
    assert [(sender, count) for sender, count, _ in world.broker.held.largest(5)] == [("pcp://client_a", 2)]


def test_all_client_types_of_one_certificate_share_what_may_wait():
    world, a, b = two_clients(sender_queue_messages=2)
    other = world.associate("client_a", "other")
    world.pause(b)
    first = world.send(a, world.message(A, B, expires=LATER))
    for _ in range(2):
        world.send(other, world.message("pcp://client_a/other", B, expires=LATER))
    assert outcomes(world, first) == [(Stage.EXPIRED, B, Reason.SENDER_QUOTA)]


def test_a_sender_over_its_quota_amid_a_fan_out_reaches_those_whose_outbox_that_frees():
    world, a, b = two_clients(sender_queue_messages=1)
    c = world.associate("client_c")
    world.pause(b)
    world.pause(c)
    old = world.send(a, world.message(A, B, expires=LATER))
    world.broker.receive_resumed(b, world.now)  # with the old message still to hand over
    new = world.send(a, world.message(A, C, B, expires=LATER))
    assert outcomes(world, old) == [(Stage.EXPIRED, B, Reason.SENDER_QUOTA)]
    assert outcomes(world, new) == [(Stage.DELIVERED, B, None)]


def test_a_connection_that_ends_with_more_than_a_senders_share_leaves_each_message_an_outcome():
    world, a, b = two_clients(sender_queue_messages=2)
    frames = [world.message(A, B, expires=LATER) for _ in range(4)]
    world.broker.receive_frames([(frame, a, False) for frame in frames], world.now)
    world.broker.receive_paused(b, 0, world.now)
    world.broker.receive_closed(b, world.now)
    world.drain()
    expired = [(Stage.EXPIRED, B, Reason.SENDER_QUOTA)]
    assert [outcomes(world, frame) for frame in frames] == [expired, expired, [], []]
    world.send(world.open("client_b"), world.associate_request(B))
    assert [outcomes(world, frame) for frame in frames[2:]] == [[(Stage.REDELIVERED, B, None)]] * 2


def test_a_v2_message_over_the_quota_is_undeliverable_and_its_sender_is_told():
    world = World(sender_queue_messages=1)
    b, sender = world.associate("client_b"), world.connect_v2("client_a")
    world.pause(b)
    first = world.send(sender, world.message_v2(B), is_text=True)
    world.send(sender, world.message_v2(B), is_text=True)
    assert outcomes(world, first) == [(Stage.UNDELIVERABLE, B, Reason.SENDER_QUOTA)]
    assert world.replies_v2(sender)[0]["message_type"] == "http://puppetlabs.com/error_message"


def test_nothing_waits_longer_than_the_longest_lifetime():
    world, a, b = two_clients(max_lifetime_ms=30_000)
    world.pause(b)
    frame = world.send(a, world.message(A, B, expires="2099-01-01T00:00:00Z"))
    world.close(b)
    world.pass_time(29_000)
    assert outcomes(world, frame) == []
    world.pass_time(2_000)
    assert outcomes(world, frame) == [(Stage.EXPIRED, B, Reason.HELD_TOO_LONG)]
    assert world.replies(a)[0][0]["message_type"] == "http://puppetlabs.com/ttl_expired"


def test_a_v2_message_waits_for_a_connection_that_does_not_read_as_long_as_it_lives():
    world = World(max_lifetime_ms=1_000)
    a, b = world.connect_v2("client_a"), world.associate("client_b")
    world.pause(b)
    frame = world.send(a, world.message_v2(B, data=1), is_text=True)
    world.pass_time(10_000)
    assert outcomes(world, frame) == []
    world.resume(b)
    assert outcomes(world, frame) == [(Stage.DELIVERED, B, None)]


@pytest.mark.parametrize(("size", "targets"), [(10, 1), (10_000, 1), (10, 1000)])
def test_what_waits_is_counted_at_what_it_takes(size, targets):
    world, a, b = two_clients(sender_queue_bytes=1 << 40, queue_bytes=1 << 40)
    others = [f"pcp://host-number-{number}.example.com/agent" for number in range(targets - 1)]
    world.pause(b)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(100):
            world.send(a, world.message(A, B, *others, data=b"x" * size, expires=LATER))
            world.events.clear()
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert 0.8 * taken < world.broker.queued_bytes < 1.5 * taken


def test_the_bytes_of_a_message_for_many_count_once():
    world, a, _ = two_clients()
    paused = [world.associate(f"slow{number}") for number in range(50)]
    for connection in paused:
        world.pause(connection)
    world.send(a, world.message(A, "pcp://*/agent", data=b"x" * 10_000, expires=LATER))
    assert world.broker.queued_bytes < 60_000
    for connection in paused:
        world.resume(connection)
    assert world.broker.queued_bytes == 0


def test_slow_consumer_is_closed_named_and_its_messages_wait():
    world, a, b = two_clients(queue_bytes=4_000)
    c = world.associate("client_c")
    world.pause(b)
    frames = []
    while not world.closes():
        frames.append(world.send(a, world.message(A, "pcp://*/agent", expires=LATER)))
    assert world.closes() == [(b, 1011)]
    (slow,) = [event for event in world.events if isinstance(event, SlowConsumerFound)]
    assert slow.uri == B
    assert slow.queued_bytes > 4_000 >= slow.queued_bytes * (1 - 1 / len(frames))  # not without the last one
    assert len(world.received[c]) == len(frames)  # the others are not affected
    assert world.inventory() == {A, C}
    again = world.open("client_b")
    world.send(again, world.associate_request(B))
    assert world.received[again][1:] == frames[-len(world.received[again][1:]) :]
    for frame in frames:
        assert len([hop for hop in outcomes(world, frame) if hop[1] == B]) == 1


def test_one_message_larger_than_the_queue_may_wait_alone():
    world, a, b = two_clients(queue_bytes=1_000)
    world.pause(b)
    world.send(a, world.message(A, B, data=b"x" * 5_000))
    assert world.closes() == []


def test_one_message_larger_than_the_queue_may_wait_alone_for_a_client_that_is_away():
    world, a, b = two_clients(queue_bytes=1_000)
    world.pause(b)
    frame = world.send(a, world.message(A, B, data=b"x" * 5_000))
    world.close(b)
    assert outcomes(world, frame) == []
    again = world.open("client_b")
    world.send(again, world.associate_request(B))
    assert world.received[again][1:] == [frame]


def test_all_queues_together_are_bounded():
    world, a, b = two_clients(memory_bytes=20_000)
    world.pause(b)
    for _ in range(50):
        world.send(a, world.message(A, B, expires=LATER))
        assert world.broker.queued_bytes <= 10_000


def test_the_brokers_own_messages_wait_for_a_connection_that_does_not_read():
    world, a, _ = two_clients()
    world.pause(a)
    world.send(a, b"garbage!")
    created = [seen for seen in world.observations() if seen.stage is Stage.CREATED][-1]
    world.resume(a)
    assert outcomes(world, created.raw) == [(Stage.DELIVERED, A, None)]


def test_the_brokers_own_messages_do_not_wait_for_a_later_session():
    world, a, _ = two_clients()
    world.pause(a)
    world.send(a, b"garbage!")
    created = [seen for seen in world.observations() if seen.stage is Stage.CREATED][-1]
    world.close(a)
    lost = [seen for seen in world.observations() if seen.message == created.message][-1]
    assert (lost.stage, lost.reason, lost.counterparts) == (Stage.UNDELIVERABLE, Reason.CONNECTION_LOST, (A,))
    again = world.associate("client_a")
    assert not world.received[again]


# What the kernel has not accepted


def test_what_the_kernel_has_not_taken_is_not_delivered_until_it_has():
    world, a, b = two_clients()
    world.fill(b, room=300)
    first, second = (world.message(A, B) for _ in range(2))
    for frame in (first, second):
        world.broker.receive_frame(frame, a, world.now)
    world.drain()
    assert world.received[b] == [first]
    assert (outcomes(world, first), outcomes(world, second)) == ([(Stage.DELIVERED, B, None)], [])
    world.resume(b)
    assert outcomes(world, second) == [(Stage.DELIVERED, B, None)]


@pytest.mark.parametrize(("whole", "rest"), [(0, 0), (0, 1), (1, 0), (1, -1), (2, 0), (2, 1), (2, -1)])
def test_what_the_kernel_had_not_taken_when_the_connection_ended_is_redelivered_once_and_in_order(whole, rest):
    world, a, b = two_clients()
    frames = [world.message(A, B, expires=LATER) for _ in range(3)]
    world.fill(b, whole * frame_bytes(frames[0]) + rest)
    for frame in frames:
        world.broker.receive_frame(frame, a, world.now)
    world.drain()
    frames.append(world.send(a, world.message(A, B, expires=LATER)))  # this one was never handed over
    world.close(b)
    again = world.open("client_b")
    world.send(again, world.associate_request(B))
    taken = world.received[b]
    assert len(taken) == whole - (rest < 0)
    assert [*taken, *world.received[again][1:]] == frames
    for frame in frames:
        stage = Stage.DELIVERED if frame in taken else Stage.REDELIVERED
        assert outcomes(world, frame) == [(stage, B, None)]


def test_a_message_to_many_is_delivered_to_those_whose_kernel_took_it():
    world, a, b = two_clients()
    world.fill(b)
    frame = world.send(a, world.message(A, "pcp://*/agent", expires=LATER))
    assert outcomes(world, frame) == [(Stage.DELIVERED, A, None)]
    assert (Stage.ROUTED, B, None) in world.hops(frame)
    world.close(b)
    again = world.open("client_b")
    world.send(again, world.associate_request(B))
    assert outcomes(world, frame)[1:] == [(Stage.REDELIVERED, B, None)]


def test_what_was_not_sent_and_cannot_wait_is_undeliverable():
    world = World()
    a, b = world.connect_v2("client_a"), world.associate("client_b")
    world.fill(b)
    frame = world.send(a, world.message_v2(B, data=1), is_text=True)
    assert outcomes(world, frame) == []
    world.close(b)
    assert outcomes(world, frame) == [(Stage.UNDELIVERABLE, B, Reason.CONNECTION_LOST)]
    assert world.replies_v2(a)[0]["message_type"] == "http://puppetlabs.com/error_message"


def test_what_was_not_sent_expires_where_the_client_does_not_come_back():
    world, a, b = two_clients()
    world.fill(b)
    frame = world.send(a, world.message(A, B))
    world.close(b)
    world.pass_time(61_000)
    assert outcomes(world, frame) == [(Stage.EXPIRED, B, Reason.LIFETIME_OVER)]
    assert world.replies(a)[0][0]["message_type"] == "http://puppetlabs.com/ttl_expired"


def test_a_new_connection_waits_until_it_is_known_what_the_old_one_sent():
    world, a, b = two_clients()
    world.fill(b)
    first = world.send(a, world.message(A, B, expires=LATER))
    second = world.send(a, world.message(A, B, expires=LATER))
    new = world.open("client_b")
    world.broker.receive_frame(world.associate_request(B), new, world.now)
    for item in world.broker.to_send():
        if isinstance(item, SendFrames):
            for link in item.links:
                world.received[link] += item.frames
    world.take_events()  # the old one is to be closed, but is still open
    third = world.send(a, world.message(A, B, expires=LATER))
    world.pause(new)
    world.resume(new)  # room for more changes nothing
    assert len(world.received[new]) == 1  # the association's response
    world.close(b)
    assert world.received[new][1:] == [first, second, third]


def test_a_new_connection_gets_nothing_that_the_old_one_sent_while_it_closed():
    world, a, b = two_clients()
    world.fill(b)
    first = world.send(a, world.message(A, B, expires=LATER))
    new = world.open("client_b")
    world.broker.receive_frame(world.associate_request(B), new, world.now)
    world.broker.to_send()
    world.take_events()
    world.resume(b)  # the kernel accepted the rest before it was closed
    world.close(b)
    assert world.received[b] == [first]
    assert outcomes(world, first) == [(Stage.DELIVERED, B, None)]
    assert world.received[new] == []


def test_shutting_down_delivers_only_what_the_kernel_takes():
    world, a, b = two_clients()
    c = world.associate("client_c")
    world.fill(b)
    frame = world.message(A, B, C, expires=LATER)
    world.broker.receive_frame(frame, a, world.now)
    for connection in (a, b, c):
        world.broker.close(connection, 1001, "shutting down", world.now)
    world.drain()
    assert outcomes(world, frame) == [(Stage.DELIVERED, C, None)]
    world.restart()
    again = world.open("client_b")
    world.send(again, world.associate_request(B))
    assert world.received[again][1:] == [frame]


def test_a_refused_association_that_was_not_sent_is_undeliverable():
    world = World()
    connection = world.open("client_a")
    world.fill(connection)
    world.send(connection, world.associate_request("pcp://other/agent"))
    created = [seen for seen in world.observations() if seen.stage is Stage.CREATED][-1]
    assert world.hops(created.raw)[1][0] is Stage.UNDELIVERABLE


def test_ttl_expired_waits_for_a_sender_that_is_away():
    world, a, b = two_clients()
    world.pause(b)
    frame = world.send(a, world.message(A, B))
    world.close(b)
    world.close(a)
    world.pass_time(61_000)
    assert outcomes(world, frame) == [(Stage.EXPIRED, B, Reason.LIFETIME_OVER)]
    again = world.open("client_a")
    world.send(again, world.associate_request(A, expires=LATER))
    (_, response), (notice, data) = world.replies(again)
    assert response["success"] is True
    message_id = read_v1(frame)[0]["id"]
    assert (notice["message_type"], notice["in-reply-to"]) == ("http://puppetlabs.com/ttl_expired", message_id)
    assert data == {"id": message_id}
    assert [hop[0] for hop in world.hops(world.received[again][1])] == [Stage.CREATED, Stage.REDELIVERED]


def test_ttl_expired_is_translated_for_a_sender_that_comes_back_in_version_2():
    world, a, b = two_clients(hops=True)
    world.pause(b)
    frame = world.send(a, world.message(A, B))
    world.close(b)
    world.close(a)
    world.pass_time(61_000)
    (notice,) = world.replies_v2(world.connect_v2("client_a"))
    message_id = read_v1(frame)[0]["id"]
    assert notice["message_type"] == "http://puppetlabs.com/ttl_expired"
    assert (notice["in_reply_to"], notice["data"]) == (message_id, {"id": message_id})


def test_ttl_expired_survives_a_wire_that_breaks_before_it_was_written():
    world, a, b = two_clients()
    world.pause(b)
    world.send(a, world.message(A, B))
    world.close(b)
    world.pause(a)
    world.pass_time(61_000)
    world.close(a)
    again = world.open("client_a")
    world.send(again, world.associate_request(A, expires=LATER))
    assert world.replies(again)[1][0]["message_type"] == "http://puppetlabs.com/ttl_expired"


def test_ttl_expired_that_waits_is_bounded_in_time_and_number():
    world, a, b = two_clients(notice_ttl_ms=60_000, redelivery_messages=2)
    world.pause(b)
    for number in range(3):
        world.send(a, world.message(A, B, expires=f"2026-11-15T20:00:0{number}Z"))
    world.close(a)
    world.pass_time(65_000)
    given_up = [seen for seen in world.observations() if seen.reason is Reason.REDELIVERY_OVERFLOW]
    assert [seen.counterparts for seen in given_up] == [(A,)]
    world.pass_time(60_000)
    assert world.broker.queued_bytes == 0
    again = world.open("client_a")
    world.send(again, world.associate_request(A, expires=LATER))
    assert len(world.received[again]) == 1  # the association's response


def test_whom_a_wildcard_stands_for_is_observed_with_the_acceptance():
    world, a, b = two_clients()
    world.associate("client_c")
    world.pause(b)
    frame = world.send(a, world.message(A, "pcp://*/agent", C))
    assert world.hops(frame) == [
        (Stage.ACCEPTED, A, None),
        (Stage.ROUTED, B, None),  # the others have their outcome in the same commit
        (Stage.DELIVERED, A, None),
        (Stage.DELIVERED, C, None),
    ]


def test_before_anything_is_handed_over_all_that_a_wildcard_stands_for_is_observed():
    world, a, _ = two_clients()
    world.broker.receive_frame(world.message(A, "pcp://*/agent"), a, world.now)
    accepted, routed = world.take_events()
    assert (accepted.stage, routed.stage, routed.counterparts) == (Stage.ACCEPTED, Stage.ROUTED, (A, B))


def test_recipients_that_the_bytes_name_are_not_observed_again():
    world, a, b = two_clients()
    world.pause(b)
    assert world.hops(world.send(a, world.message(A, B, C))) == [
        (Stage.ACCEPTED, A, None),
        (Stage.UNDELIVERABLE, C, Reason.NO_RECIPIENT),
    ]


def test_recipients_are_observed_where_the_bytes_are_not_kept():
    world, a, b = two_clients(bodies=({"message_type": "*", "bodies": "address"},))
    world.pause(b)
    assert world.hops(world.send(a, world.message(A, B))) == [(Stage.ACCEPTED, A, None), (Stage.ROUTED, B, None)]


def test_v2_messages_do_not_wait_and_their_sender_is_told():
    world = World()
    a, b = world.connect_v2("client_a"), world.associate("client_b")
    world.pause(b)
    frame = world.send(a, world.message_v2(B, data=1), is_text=True)
    world.close(b)
    assert outcomes(world, frame) == [(Stage.UNDELIVERABLE, B, Reason.CONNECTION_LOST)]
    (error,) = world.replies_v2(a)
    assert error["message_type"] == "http://puppetlabs.com/error_message"
    assert error["in_reply_to"] == json.loads(frame)["id"]


def test_deadlines_of_finished_messages_do_not_pile_up():
    world, a, b = two_clients()
    for _ in range(3_000):
        world.pause(b)
        world.broker.receive_frame(world.message(A, B, expires="9999-01-01T00:00:00Z"), a, NOW)
        world.resume(b)
    assert len(world.received[b]) == 3_000
    assert len(world.broker._delivery._deadlines) <= 1_001


def test_deliveries_are_observed_when_they_are_handed_over():
    world, a, b = two_clients()
    frame = world.message(A, B)
    world.broker.receive_frame(frame, a, world.now)
    first = world.take_events()
    assert [event.stage for event in first] == [Stage.ACCEPTED]
    assert world.broker.to_send() == [SendFrames([b], [frame])]
    assert [event.stage for event in world.take_events()] == [Stage.DELIVERED]


def test_what_is_pending_for_a_connection_that_is_closed_goes_before_the_close():
    world, a, b = two_clients()
    frame = world.message(A, B)
    world.broker.receive_frame(frame, a, world.now)
    world.broker.close(b, 1001, "shutting down", world.now)
    assert [event.stage for event in world.take_events() if isinstance(event, Observation)] == [Stage.ACCEPTED]
    assert world.broker.to_send()[:2] == [SendFrames([b], [frame]), CloseLink(b, 1001, "shutting down")]
    world.drain()
    assert (Stage.DELIVERED, B, None) in world.hops(frame)


def test_what_was_to_go_before_a_close_waits_for_the_client_if_the_connection_breaks_first():
    world, a, b = two_clients()
    frame = world.message(A, B)
    world.broker.receive_frame(frame, a, world.now)
    world.broker.close(b, 1001, "shutting down", world.now)
    world.events += world.take_events()
    world.broker.receive_broken(b, world.now)
    world.broker.receive_closed(b, world.now)
    world.drain()
    assert world.received[b] == []
    again = world.open("client_b")
    world.send(again, world.associate_request(B))
    assert world.received[again][-1] == frame
    assert [stage for stage, _, _ in world.hops(frame)] == [Stage.ACCEPTED, Stage.REDELIVERED]
