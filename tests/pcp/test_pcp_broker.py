"""The seed, section by section: delivery, wildcards, broker messages, and the broker's duties."""

import json

import pytest

from dovetail.model.errors import LocalProtocolError
from dovetail.model.hop import Reason, Stage
from dovetail.pcp.events import MessageHandled
from dovetail.pcp.settings import ALLOW_ALL, BodyRule, Rule
from pcp.pcp_frames import ID, NOW, frame_v1, raw_v1, read_v1
from pcp.pcp_world import INVENTORY, World

A, C, D = "pcp://client_a/controller", "pcp://client_b/agent", "pcp://client_c/agent"


def three_clients(**settings: object) -> tuple[World, int, int, int]:
    world = World(**settings)
    return world, world.associate("client_a", "controller"), world.associate("client_b"), world.associate("client_c")


# Client to client messages


def test_client_to_client_one_target_gets_the_very_bytes():
    world, a, c, d = three_clients()
    frame = world.send(a, world.message(A, C, data=b"\x00\x01"))
    assert world.received[c] == [frame]
    assert not world.received[d]
    assert not world.received[a]
    assert world.hops(frame) == [(Stage.ACCEPTED, A, None), (Stage.DELIVERED, C, None)]
    assert world.observations(frame)[0].raw == frame


def test_each_of_the_supplied_uris_gets_it():
    world, a, c, d = three_clients()
    frame = world.send(a, world.message(A, C, D))
    assert world.received[c] == world.received[d] == [frame]


# Client to client messages using wildcards


@pytest.mark.parametrize("target", ["pcp://*/agent", "pcp://*/*"])
def test_wildcard_expands_to_all_of_the_type_one_copy_each(target):
    world, a, c, d = three_clients()
    frame = world.send(a, world.message(A, target))
    assert world.received[c] == world.received[d] == [frame]
    assert world.received[a] == ([frame] if target == "pcp://*/*" else [])
    delivered = [seen for seen in world.observations(frame) if seen.stage is Stage.DELIVERED]
    assert len(delivered) == 1  # one observation, however many recipients
    assert set(delivered[0].counterparts) == ({A, C, D} if target == "pcp://*/*" else {C, D})


def test_wildcard_of_a_name():
    world = World()
    a = world.associate("client_a", "controller")
    one, two = world.associate("client_b", "agent"), world.associate("client_b", "other")
    frame = world.send(a, world.message(A, "pcp://client_b/*"))
    assert world.received[one] == world.received[two] == [frame]


def test_overlapping_targets_give_one_copy():
    world, a, c, _ = three_clients()
    frame = world.send(a, world.message(A, C, "pcp://*/agent", C, "pcp://*/*"))
    assert world.received[c] == [frame]
    assert [hop for hop in world.hops(frame) if hop[1] == C] == [(Stage.DELIVERED, C, None)]


def test_fan_out_shares_one_frame():
    world, a, c, d = three_clients()
    world.send(a, world.message(A, "pcp://*/agent"))
    assert world.received[c][0] is world.received[d][0]


def test_order_between_one_sender_and_one_receiver_is_kept():
    world, a, c, _ = three_clients()
    frames = [world.message(A, target) for target in [C, "pcp://*/agent"] * 5]
    for frame in frames:
        world.broker.receive_frame(frame, a, world.now)
    world.drain()
    assert world.received[c] == frames


# Client to broker messages


@pytest.mark.parametrize("target", ["pcp:///server", "pcp:///broker"])
def test_broker_answers_to_both_names_and_signs_as_server(target):
    world, a, _, _ = three_clients()
    frame = world.send(a, world.message(A, target, message_type=INVENTORY, data=b'{"query":["pcp://*/agent"]}'))
    ((envelope, data),) = world.replies(a)
    assert envelope["sender"] == "pcp:///server"
    assert envelope["targets"] == [A]
    assert envelope["in-reply-to"] == read_v1(frame)[0]["id"]
    assert data == {"uris": [C, D]}
    assert world.hops(frame) == [(Stage.ACCEPTED, A, None), (Stage.DELIVERED, target, None)]


def test_broker_reply_is_journaled_as_created_and_delivered():
    world, a, _, _ = three_clients()
    world.send(a, world.message(A, "pcp:///server", message_type=INVENTORY, data=b'{"query":[]}'))
    assert [hop[:2] for hop in world.hops(world.received[a][0])] == [(Stage.CREATED, None), (Stage.DELIVERED, A)]


def test_broker_refuses_a_task_it_does_not_have():
    world, a, _, _ = three_clients()
    frame = world.send(a, world.message(A, "pcp:///server"))
    ((envelope, data),) = world.replies(a)
    assert envelope["message_type"] == "http://puppetlabs.com/error_message"
    assert data["id"] == read_v1(frame)[0]["id"]
    assert world.hops(frame)[-1] == (Stage.REJECTED, "pcp:///server", Reason.UNKNOWN_REQUEST)


# Destination report


def test_destination_report_comes_before_delivery_expanded_and_sorted():
    world, a, c, d = three_clients()
    e = world.associate("client_0")
    frame = world.send(a, world.message(A, "pcp://*/agent", "pcp://nobody/agent", destination_report=True))
    ((envelope, data),) = world.replies(a)
    assert envelope["message_type"] == "http://puppetlabs.com/destination_report"
    assert data == {"id": read_v1(frame)[0]["id"], "targets": ["pcp://client_0/agent", C, D]}
    assert world.received[c] == world.received[d] == world.received[e] == [frame]
    stages = [seen.stage for seen in world.observations()]
    assert stages[-5:] == [
        Stage.ACCEPTED,
        Stage.CREATED,  # the report
        Stage.UNDELIVERABLE,  # pcp://nobody/agent
        Stage.DELIVERED,  # the report
        Stage.DELIVERED,  # the message
    ]


def test_destination_report_is_written_before_a_copy_to_oneself():
    world, a, _, _ = three_clients()
    frame = world.send(a, world.message(A, A, destination_report=True))
    assert world.replies(a)[0][0]["message_type"].endswith("destination_report")
    assert world.received[a][1] == frame


def test_destination_report_of_nobody_is_empty():
    world, a, _, _ = three_clients()
    frame = world.send(a, world.message(A, "pcp://*/ghost", destination_report=True))
    assert [data["targets"] for _, data in world.replies(a)] == [[]]
    assert world.hops(frame)[-1] == (Stage.UNDELIVERABLE, "pcp://*/ghost", Reason.NO_RECIPIENT)


@pytest.mark.parametrize("flag", [False, None])
def test_no_destination_report_unless_asked(flag):
    world, a, _, _ = three_clients()
    world.send(a, world.message(A, C, destination_report=flag))
    assert not world.received[a]


@pytest.mark.parametrize(
    "targets", [["pcp:///server"], ["pcp:///server", "pcp:///server"], ["pcp:///server", "pcp:///broker"]]
)
def test_destination_report_is_ignored_on_inventory_requests(targets):
    world, a, _, _ = three_clients()
    request = {"message_type": INVENTORY, "data": b'{"query":[]}', "destination_report": True}
    world.send(a, world.message(A, *targets, **request))
    assert [envelope["message_type"] for envelope, _ in world.replies(a)] == [
        "http://puppetlabs.com/inventory_response"
    ]


# Delivery authorization


def test_unauthorized_is_all_or_nothing():
    rules = (Rule(allow=False, target=D), *ALLOW_ALL)
    for targets in ([C, D], ["pcp://*/agent"], ["pcp://*/*"], ["pcp://client_c/*"], [D], [C, "pcp://*/agent"]):
        world, a, c, d = three_clients(rules=rules)
        frame = world.send(a, world.message(A, *targets, destination_report=True))
        ((envelope, data),) = world.replies(a)
        assert envelope["message_type"] == "http://puppetlabs.com/unauthorized"
        assert envelope["in-reply-to"] == read_v1(frame)[0]["id"]
        assert data is None
        assert not world.received[c]
        assert not world.received[d]
        world.assert_rejected(frame, Reason.UNAUTHORIZED)


def test_no_match_denies():
    rules = (Rule(allow=True, message_type="http://puppetlabs.com/associate_request"),)
    world, a, c, _ = three_clients(rules=rules)
    world.assert_rejected(world.send(a, world.message(A, C)), Reason.UNAUTHORIZED)
    assert not world.received[c]


def test_inventory_requests_go_through_authorisation():
    rules = (Rule(allow=False, message_type=INVENTORY), *ALLOW_ALL)
    world, a, _, _ = three_clients(rules=rules)
    frame = world.send(a, world.message(A, "pcp:///broker", message_type=INVENTORY, data=b'{"query":[]}'))
    world.assert_rejected(frame, Reason.UNAUTHORIZED)


@pytest.mark.parametrize("message_type", ["http://x/\0", "a b", "rpc*", "é", "x\n"])
def test_message_type_characters_are_checked_before_rules(message_type):
    world, a, c, _ = three_clients(rules=(Rule(allow=False, target=C), *ALLOW_ALL))
    frame = world.send(a, world.message(A, C, message_type=message_type))
    world.assert_rejected(frame, Reason.FORBIDDEN_CHARACTERS)
    ((envelope, data),) = world.replies(a)
    assert envelope["message_type"] == "http://puppetlabs.com/error_message"
    assert "has characters that are not allowed" in data["description"]
    assert not world.received[c]


@pytest.mark.parametrize("target", ["pcp://client_b\0/agent", "pcp://client b/agent", "pcp://clienté/agent"])
def test_target_characters_are_checked_before_rules(target):
    world, a, c, _ = three_clients(rules=(Rule(allow=False, target=C), *ALLOW_ALL))
    frame = world.send(a, world.message(A, C, target))
    world.assert_rejected(frame, Reason.FORBIDDEN_CHARACTERS)
    assert not world.received[c]


def test_target_characters_are_checked_also_of_a_type_that_was_allowed_before():
    world, a, c, _ = three_clients()
    world.send(a, world.message(A, C))
    frame = world.send(a, world.message(A, "pcp://client_b\0/agent"))
    world.assert_rejected(frame, Reason.FORBIDDEN_CHARACTERS)
    assert len(world.received[c]) == 1


def test_sender_must_be_the_sessions_own():
    world, a, c, _ = three_clients()
    frame = world.send(a, world.message(C, C))
    world.assert_rejected(frame, Reason.SENDER_MISMATCH)
    ((envelope, data),) = world.replies(a)
    assert envelope["message_type"] == "http://puppetlabs.com/error_message"
    assert data["id"] == read_v1(frame)[0]["id"]
    assert not world.received[c]


# Message expiration


def test_expired_message_is_told_to_the_sender_and_not_delivered():
    world, a, c, _ = three_clients()
    frame = world.send(a, world.message(A, C, expires="2026-11-15T19:59:00Z", destination_report=True))
    ((envelope, data),) = world.replies(a)
    assert envelope["message_type"] == "http://puppetlabs.com/ttl_expired"
    assert data == {"id": read_v1(frame)[0]["id"]}
    assert not world.received[c]
    assert world.hops(frame) == [(Stage.ACCEPTED, A, None), (Stage.EXPIRED, C, Reason.LIFETIME_OVER)]


def test_expiry_counts_offset_and_fraction():
    world, a, c, _ = three_clients()
    world.send(a, world.message(A, C, expires="2026-11-15T20:59:00.000001+01:00"))
    assert len(world.received[c]) == 1
    world.send(a, world.message(A, C, expires="2026-11-15T20:59:00.000000+01:00"))
    assert len(world.received[c]) == 1


def test_clock_skew_is_tolerated_where_configured():
    world, a, c, _ = three_clients(clock_skew_ms=1000)
    world.send(a, world.message(A, C, expires="2026-11-15T19:58:59.5Z"))
    assert len(world.received[c]) == 1


def test_authorisation_comes_before_expiry():
    world, a, _, _ = three_clients(rules=(Rule(allow=False, target=C), *ALLOW_ALL))
    frame = world.send(a, world.message(A, C, expires="2026-11-15T00:00:00Z"))
    world.assert_rejected(frame, Reason.UNAUTHORIZED)


# Error handling


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (b"", Reason.MALFORMED),
        (b"garbage in, error out", Reason.UNSUPPORTED_VERSION),
        (frame_v1(b"x")[:-1], Reason.MALFORMED),
        (raw_v1(b"{"), Reason.MALFORMED),
        (frame_v1(extra=1), Reason.INVALID_SCHEMA),
        (frame_v1(targets=["nowhere"]), Reason.BAD_URI),
    ],
)
def test_error_message_where_it_cannot_be_parsed_or_violates_the_schema(frame, reason):
    world, a, _, _ = three_clients()
    world.send(a, frame)
    ((envelope, data),) = world.replies(a)
    assert envelope["message_type"] == "http://puppetlabs.com/error_message"
    assert data["description"]
    world.assert_rejected(frame, reason)


def test_error_message_names_the_id_where_it_can_be_read():
    world, a, _, _ = three_clients()
    world.send(a, frame_v1(extra=1))
    world.send(a, b"garbage in, error out")
    first, second = world.replies(a)
    assert first[1]["id"] == first[0]["in-reply-to"] == ID
    assert "id" not in second[1]
    assert "in-reply-to" not in second[0]


def test_text_frame_in_v1_is_an_error():
    world, a, _, _ = three_clients()
    frame = world.send(a, world.message(A, C), is_text=True)
    world.assert_rejected(frame, Reason.WRONG_FRAME)


@pytest.mark.parametrize("targets", [["pcp://ghost/agent"], ["pcp://*/ghost"], ["pcp://ghost/*"], []])
def test_no_action_where_nobody_is_registered(targets):
    world, a, _, _ = three_clients()
    frame = world.send(a, world.message(A, *targets))
    assert not world.received[a]
    expected = [(Stage.UNDELIVERABLE, target, Reason.NO_RECIPIENT) for target in targets or [None]]
    assert world.hops(frame) == [(Stage.ACCEPTED, A, None), *expected]


def test_evidence_of_a_rejected_message_is_bounded():
    world, a, _, _ = three_clients(evidence_bytes=10)
    frame = world.send(a, b"\x02" + b"x" * 1000)
    (seen,) = world.observations(frame)
    assert (seen.raw, seen.size) == (frame[:10], 1001)


# Debug data


def test_no_debug_chunk_unless_hops_are_on():
    world, a, c, _ = three_clients()
    world.send(a, world.message(A, C))
    assert read_v1(world.received[c][0])[2] == []


def test_debug_chunk_has_hops_and_the_rest_is_unchanged():
    world, a, c, d = three_clients(hops=True, name="broker.example.com")
    frame = world.message(A, "pcp://*/agent", data=b"\x00")
    with_foreign = raw_v1(frame[6 : 6 + int.from_bytes(frame[2:6])], b"\x00", (b"foreign", b'{"hops":[]}'))
    world.send(a, with_foreign)
    _, _, debug = read_v1(world.received[c][0])
    assert world.received[c][0].startswith(with_foreign)
    assert debug[:2] == [b"foreign", b'{"hops":[]}']
    server = "pcp://broker.example.com/server"
    assert json.loads(debug[2]) == {
        "hops": [
            {"server": server, "time": "2026-11-15T19:59:00.000000Z", "stage": "accepted"},
            {"server": server, "time": "2026-11-15T19:59:00.000000Z", "stage": "delivered"},
        ]
    }
    assert world.received[d] == world.received[c]
    assert world.hops(with_foreign)[0] == (Stage.ACCEPTED, A, None)  # the address is of the accepted bytes


def test_hops_are_appended_to_our_own_debug_chunk():
    world, a, c, _ = three_clients(hops=True)
    own = b'{"hops":[{"server":"pcp://broker/server","time":"2026-11-15T19:58:00Z"}]}'
    other = own.replace(b"broker", b"other")
    frame = frame_v1(b"d", (own, b"foreign", other), sender=A, targets=[C])
    world.send(a, frame)
    _, data, debug = read_v1(world.received[c][0])
    assert data == b"d"
    assert len(debug) == 3
    assert [hop.get("stage") for hop in json.loads(debug[0])["hops"]] == [None, "accepted", "delivered"]
    assert debug[1:] == [b"foreign", other]


# Beyond the seed: bodies, access log, misuse, trace


def test_bodies_can_be_kept_out_of_the_journal():
    world, a, c, _ = three_clients(bodies=(BodyRule(message_type="http://secret/*", bodies="address"),))
    frame = world.send(a, world.message(A, C, message_type="http://secret/x"))
    (accepted, delivered) = world.observations(frame)
    assert accepted.raw is None
    assert accepted.size == len(frame)
    assert delivered.raw is None
    assert world.received[c] == [frame]


def test_bodies_kept_out_of_the_journal_are_no_evidence_either():
    rules = (Rule(allow=False, message_type="http://secret/*"), *ALLOW_ALL)
    world, a, _, _ = three_clients(rules=rules, bodies=(BodyRule(message_type="http://secret/*", bodies="address"),))
    frame = world.send(a, world.message(A, C, message_type="http://secret/x"))
    (seen,) = world.observations(frame)
    assert (seen.reason, seen.raw, seen.size) == (Reason.UNAUTHORIZED, None, len(frame))


def test_each_message_is_told_for_the_access_log():
    world = World(logs_messages=True)
    a, _ = world.associate("client_a", "controller"), world.associate("client_b")
    world.send(a, world.message(A, C))
    world.send(a, b"garbage!")
    told = [event for event in world.events if isinstance(event, MessageHandled)][-2:]
    assert [(event.outcome, event.reason) for event in told] == [
        ("routed", None),
        ("rejected", Reason.UNSUPPORTED_VERSION),
    ]
    assert (told[0].sender, told[0].targets) == (A, (C,))


def test_a_message_to_several_or_translated_is_told_as_routed():
    world = World(logs_messages=True)
    a = world.associate("client_a", "controller")
    world.connect_v2("client_b")
    for name in "xy":
        world.associate(name, "other")
    for target, recipients in ((C, 1), ("pcp://*/other", 2)):
        world.send(a, world.message(A, target))
        (told,) = [event for event in world.events if isinstance(event, MessageHandled) and event.targets == (target,)]
        assert (told.outcome, told.recipients) == ("routed", recipients)


def test_what_was_queued_is_told_again_when_it_has_its_outcome():
    world = World(logs_messages=True)
    a, b = world.associate("client_a", "controller"), world.associate("client_b")
    world.pause(b)
    world.send(a, world.message(A, C))
    world.send(a, world.message(A, C, extra=1))
    world.resume(b)
    told = [event for event in world.events if isinstance(event, MessageHandled)][-3:]
    assert [event.outcome for event in told] == ["queued", "rejected", "delivered"]
    assert (told[1].message_type, told[1].targets) == ("http://example.com/ping", (C,))
    assert told[2].recipients == 1


def test_counts_by_stage_and_reason():
    world, a, _, _ = three_clients()
    world.send(a, world.message(A, "pcp://*/agent"))
    world.send(a, b"garbage!")
    counts = world.broker.counts()
    assert counts["accepted", ""] == 4
    assert counts["rejected", "unsupported_version"] == 1
    assert counts["delivered", ""] == 3 + 3 + 2 + 1  # requests, responses, message, error


def test_opening_on_a_path_that_is_not_mounted_is_our_own_mistake():
    with pytest.raises(LocalProtocolError):
        World().open("x", "/elsewhere")


def test_frames_of_a_closed_connection_are_ignored():
    world, a, c, _ = three_clients()
    world.close(a)
    world.send(a, world.message(A, C))
    assert not world.received[c]


def test_trace_names_the_rule_for_each_client_without_delivering():
    rules = (Rule(allow=False, target=D, name="not this one"), *ALLOW_ALL)
    world, _, c, _ = three_clients(rules=rules)
    trace = world.broker.trace(A, "http://example.com/ping", ["pcp://*/agent", "pcp://ghost/agent", "pcp://*/ghost"])
    assert [(verdict.target, verdict.is_allowed, verdict.rule.name) for verdict in trace.verdicts] == [
        (C, True, "allow all"),
        (D, False, "not this one"),
        ("pcp://ghost/agent", True, "allow all"),
    ]
    assert trace.unmatched == ["pcp://ghost/agent", "pcp://*/ghost"]
    assert trace.is_allowed is False
    assert not world.received[c]
    forbidden = world.broker.trace(A, "bad type", [C])
    assert forbidden.forbidden is not None
    assert forbidden.is_allowed is False


def test_times_are_the_ones_given():
    world, a, _, _ = three_clients()
    frame = world.send(a, world.message(A, C))
    assert {seen.at_us for seen in world.observations(frame)} == {NOW}
    assert world.observations(frame)[0].expires_us == NOW + 60_000_000
