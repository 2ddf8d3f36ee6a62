"""A message that matches a template is decided as if it had been decoded; anything else is decoded."""

import random

import pytest

from dovetail.model.hop import Reason, Stage
from dovetail.pcp.codec_v1 import decode_frame
from dovetail.pcp.frame_template import Template, make_template, match_template
from dovetail.pcp.settings import ALLOW_ALL, PcpSettings, Rule
from pcp.pcp_frames import EXPIRES, ID, SENDER, TARGET, chunk, compact, envelope, frame_v1, raw_v1
from pcp.pcp_world import World

OTHER_ID = "0a1B2c3D-0000-4000-8000-00000000000f"


def template_of(message: bytes) -> Template:
    template = make_template(message, decode_frame(message))
    assert template is not None
    return template


@pytest.mark.parametrize("expires", [EXPIRES, "2026-11-15T20:00:00.5Z", "2026-11-15T20:00:00.123Z"])
def test_a_message_that_differs_in_id_expiry_and_data_fits(expires):
    template = template_of(frame_v1(b"first", expires=expires))
    later = expires.replace("20:00:00", "20:59:59")
    for message in (
        frame_v1(b"another", id=OTHER_ID, expires=later),
        frame_v1(None, id=OTHER_ID, expires=later),
    ):
        assert match_template(template, message) == decode_frame(message).expires_us


@pytest.mark.parametrize(
    "message",
    [
        frame_v1(b"x", targets=["pcp://client_c/agent"]),
        frame_v1(b"x", sender="pcp://client_c/controller"),
        frame_v1(b"x", message_type="http://example.com/pong"),
        frame_v1(b"x", id=ID[:-1] + "g"),
        frame_v1(b"x", id=ID[:-2] + "\u00e9"),
        frame_v1(b"x", expires="2026-11-15T20:00:00.00000xZ"),
        frame_v1(b"x", expires="2026-11-15T20:00:00.-00001Z"),
        frame_v1(b"x", expires="2026-13-15T20:00:00.000000Z"),
        frame_v1(b"x", expires="2026-11-15T200000.1.000000Z"),
        frame_v1(b"x", expires="2026-11-15T20:00:00,000000Z"),
        frame_v1(b"x", expires="2026-11-15T20:00:00.00000Z"),
        frame_v1(b"x", destination_report=True),
        frame_v1(b""),
        frame_v1(b"x", (b"{}",)),
        frame_v1(b"x") + b"\x02",
        frame_v1(b"x")[:-1],
        frame_v1(b"x")[:40],
        b"\x02" + frame_v1(b"x")[1:],
        raw_v1(compact(envelope()) + b" ", b"x"),
        raw_v1(compact(envelope())) + chunk(0x12, b"x"),
        raw_v1(compact(envelope())) + chunk(1, compact(envelope())),
        raw_v1(compact(envelope())) + chunk(2, b"x", -1),
    ],
)
def test_what_differs_elsewhere_does_not_fit(message):
    assert match_template(template_of(frame_v1(b"x")), message) is None


@pytest.mark.parametrize(
    "message",
    [
        frame_v1(b"x", in_reply_to=OTHER_ID),
        frame_v1(b"x", (b"{}",)),
        frame_v1(b""),
        frame_v1(b"x", expires="2026-11-15T20:00:00Z"),
        frame_v1(b"x", expires="2026-11-15T20:00:00.000000+00:00"),
        frame_v1(b"x", expires="2026-11-15T20:00:00.0000001Z"),
        raw_v1(compact(envelope()).replace(b'"id":', b'"id" :'), b"x"),
        raw_v1(compact(envelope()).replace(b'"id":', b'"\\u0069d":'), b"x"),
        raw_v1(compact(envelope()).replace(b"T20:", b"\\u005420:"), b"x"),
        frame_v1(b"x", message_type="t" * 3000),
    ],
)
def test_no_template_is_made_where_bytes_alone_do_not_tell(message):
    assert make_template(message, decode_frame(message)) is None


def test_no_template_where_the_expiry_stands_first():
    fields = envelope()
    message = raw_v1(compact({"expires": fields.pop("expires"), **fields}), b"x")
    assert make_template(message, decode_frame(message)) is None


def test_whatever_fits_decodes_to_the_same_envelope():
    """Mutations of a message, more of them inside the two variable parts."""
    source = random.Random(5)
    message = frame_v1(b'{"a":1}')
    template, first = template_of(message), decode_frame(message).envelope
    second_at = message.index(b'"expires":"') + len(b'"expires":"')
    zone_at = message.index(b'"', second_at) - 1
    places = [*range(13, 49), *range(second_at, zone_at), *range(len(message))]
    fitting = 0
    for _ in range(20_000):
        mutated = bytearray(message)
        for _ in range(source.randint(1, 3)):
            mutated[source.choice(places)] = source.choice(b'0123456789abcdefABCDEF-:.TZ+_ "\\,W')
        expires_us = match_template(template, bytes(mutated))
        if expires_us is None:
            continue
        fitting += 1
        frame = decode_frame(bytes(mutated))
        assert frame.expires_us == expires_us
        assert frame.forward == mutated
        assert (frame.envelope.targets, frame.envelope.sender) == (first.targets, first.sender)
        assert frame.envelope.message_type == first.message_type
    assert fitting > 500


# In the broker


def world_with_template(**settings: object) -> tuple[World, int, int]:
    world = World(**settings)
    sender, receiver = world.associate("client_a", "controller"), world.associate("client_b")
    for _ in range(3):  # the first two are decoded: the second makes the template
        world.send(sender, world.message(SENDER, TARGET))
    assert world.broker._sessions[str(sender)].template is not None
    world.received.clear()
    return world, sender, receiver


def test_messages_like_the_one_before_are_journaled_and_delivered_like_any_other():
    world, sender, receiver = world_with_template()
    frames = [world.send(sender, world.message(SENDER, TARGET, data=b"%d" % n)) for n in range(3)]
    assert world.received[receiver] == frames
    for frame in frames:
        assert world.hops(frame) == [(Stage.ACCEPTED, SENDER, None), (Stage.DELIVERED, TARGET, None)]
        accepted = world.observations(frame)[0]
        assert (accepted.raw, accepted.expires_us) == (frame, decode_frame(frame).expires_us)


def test_an_expired_message_like_the_one_before_is_told():
    world, sender, receiver = world_with_template()
    frame = world.send(sender, world.message(SENDER, TARGET, expires="2026-11-15T19:58:59.999999Z"))
    assert world.hops(frame)[1] == (Stage.EXPIRED, TARGET, Reason.LIFETIME_OVER)
    assert world.received[receiver] == []
    assert world.replies(sender)[0][0]["message_type"] == "http://puppetlabs.com/ttl_expired"


def test_a_receiver_that_is_gone_or_came_back_is_seen():
    world, sender, receiver = world_with_template()
    world.close(receiver)
    frame = world.send(sender, world.message(SENDER, TARGET))
    assert world.hops(frame)[1] == (Stage.UNDELIVERABLE, TARGET, Reason.NO_RECIPIENT)
    again = world.associate("client_b")
    frame = world.send(sender, world.message(SENDER, TARGET))
    assert world.received[again] == [frame]


def test_a_receiver_that_does_not_read_gets_it_later_in_order():
    world, sender, receiver = world_with_template()
    world.pause(receiver)
    frames = [world.send(sender, world.message(SENDER, TARGET)) for _ in range(3)]
    assert world.received[receiver] == []
    world.resume(receiver)
    frames.append(world.send(sender, world.message(SENDER, TARGET)))
    assert world.received[receiver] == frames


def test_a_wire_that_breaks_in_the_same_turn_brings_it_back_whole():
    world, sender, receiver = world_with_template()
    frame = world.message(SENDER, TARGET)
    world.broker.receive_frame(frame, str(sender), world.now)
    world.close(receiver)
    assert world.hops(frame) == [(Stage.ACCEPTED, SENDER, None)]
    again = world.open("client_b")
    world.send(again, world.associate_request(TARGET))
    assert world.hops(frame)[1] == (Stage.REDELIVERED, TARGET, None)
    assert world.received[again][-1] == frame


def test_a_malformed_message_like_the_one_before_is_refused():
    world, sender, _ = world_with_template()
    frame = world.send(sender, world.message(SENDER, TARGET, id="not-a-uuid-but-as-long-as-one-is-now"))
    world.assert_rejected(frame, Reason.INVALID_SCHEMA)


def test_a_text_frame_is_refused_though_its_bytes_fit():
    world, sender, _ = world_with_template()
    frame = world.send(sender, world.message(SENDER, TARGET), is_text=True)
    world.assert_rejected(frame, Reason.WRONG_FRAME)


def test_changed_rules_are_seen():
    world, sender, receiver = world_with_template()
    world.broker.change_rules(PcpSettings(rules=(Rule(allow=False, target=TARGET), *ALLOW_ALL)), world.now)
    world.drain()
    frame = world.send(sender, world.message(SENDER, TARGET))
    world.assert_rejected(frame, Reason.UNAUTHORIZED)
    assert world.received[receiver] == []


def test_the_template_is_the_senders_own():
    world, _, receiver = world_with_template()
    other = world.associate("client_c", "controller")
    frame = world.send(other, world.message(SENDER, TARGET))
    world.assert_rejected(frame, Reason.SENDER_MISMATCH)
    assert world.received[receiver] == []


@pytest.mark.parametrize("settings", [{"hops": True}, {"logs_messages": True}])
def test_no_template_where_every_message_is_told_or_marked(settings):
    world = World(**settings)
    sender, _ = world.associate("client_a", "controller"), world.associate("client_b")
    for _ in range(3):
        world.send(sender, world.message(SENDER, TARGET))
    assert world.broker._sessions[str(sender)].template is None
