"""Hops become spans: ids from addresses, hops as events, failures as errors, everything bounded."""

import hashlib

from dovetail.fabrics import fabric_named
from dovetail.model.address import address_of
from dovetail.model.hop import Hop, Reason, Stage
from dovetail.otel.spans import MAX_EVENTS, MAX_TEXT, OpenSpan, build_span, read_subject, span_id, split
from otel.otel_samples import AGENT, LOST, REPLY, REQUEST, SERVER, T0

PCP = fabric_named("pcp")
ADDRESS = address_of(REQUEST)


def hop(seq: int = 0, stage: Stage = Stage.ACCEPTED, at_us: int = T0, **more: object) -> Hop:
    return Hop(server=SERVER, seq=seq, at_us=at_us, fabric="pcp", stage=stage, message=ADDRESS, **more)


def build(*hops: Hop, raw: bytes | None = REQUEST, answered: bytes | None = None, is_here: bool = False):
    (opened,) = split(hops, 1 << 63)
    return build_span(opened, PCP, read_subject(raw, SERVER, PCP), answered, is_answered_here=is_here)


def test_ids_are_those_of_the_address():
    span = build(hop(), hop(1, Stage.DELIVERED, T0 + 5, counterpart=AGENT))
    assert span.trace_id == ADDRESS[:16]
    assert span.span_id == hashlib.sha256(SERVER.encode() + b"\0" + ADDRESS).digest()[:8]
    assert span.parent_span_id is None
    assert (span.start_us, span.end_us) == (T0, T0 + 5)


def test_an_answer_is_in_the_trace_of_its_question_and_below_its_span_where_the_server_saw_it():
    assert read_subject(REPLY, SERVER, PCP).answered == bytes.fromhex("6f1e7a461c1c4b5e9d1a2f1f6a3c9b11")
    elsewhere = build(hop(), answered=address_of(LOST))
    assert (elsewhere.trace_id, elsewhere.parent_span_id) == (address_of(LOST)[:16], None)
    here = build(hop(), answered=address_of(LOST), is_here=True)
    assert here.parent_span_id == span_id(SERVER, address_of(LOST))


def test_attributes_are_those_of_the_messaging_conventions():
    span = build(hop(size=480), hop(1, Stage.DELIVERED, counterpart=AGENT))
    assert span.name == "accepted pcp://*/agent"
    assert span.is_sending
    assert span.attributes == {
        "messaging.system": "dovetail",
        "messaging.operation.name": "accepted",
        "messaging.operation.type": "send",
        "messaging.destination.template": "pcp://*/agent",
        "messaging.destination.name": AGENT,
        "messaging.message.id": ADDRESS.hex(),
        "messaging.message.envelope.size": 480,
        "server.address": "broker.example",
        "dovetail.fabric": "pcp",
        "dovetail.seq": 0,
        "dovetail.message.type": "http://e/ask",
        "dovetail.message.name": "6f1e7a46-1c1c-4b5e-9d1a-2f1f6a3c9b11",
    }
    assert span.link == (bytes.fromhex("0af7651916cd43dd8448eb211c80319c"), bytes.fromhex("b7ad6b7169203331"))


def test_what_did_not_arrive_is_an_error():
    span = build(hop(), hop(1, Stage.UNDELIVERABLE, counterpart=AGENT, reason=Reason.NO_RECIPIENT))
    assert (span.failure, span.attributes["error.type"]) == ("no_recipient", "no_recipient")
    assert not span.is_sending
    assert span.events[1].attributes == {
        "dovetail.seq": 1,
        "dovetail.counterpart": AGENT,
        "error.type": "no_recipient",
    }
    assert build(hop(), hop(1, Stage.EXPIRED)).failure == "expired"


def test_a_later_hop_begins_a_span_of_its_own_and_purging_none():
    hops = [hop(), hop(1, at_us=T0 + 5_000_000), hop(2, Stage.PURGED, T0 + 90_000_000)]
    first, later = split(hops, 4_999_999)
    assert (first.is_later, later.is_later) == (False, True)
    assert split(hops, 5_000_000)[0].hops == hops[:2]
    span = build_span(later, PCP, read_subject(None, SERVER, PCP), None, is_answered_here=False)
    assert (span.span_id, span.parent_span_id) == (span_id(SERVER, ADDRESS, 1), span_id(SERVER, ADDRESS))
    assert span.trace_id == ADDRESS[:16]


def test_a_broadcast_is_one_span_with_a_bounded_number_of_events():
    opened = OpenSpan(is_later=False)
    for seq in range(10_000):
        opened.add(hop(seq, Stage.DELIVERED, T0 + seq, raw=b"x" * 100))
    span = build_span(opened, PCP, read_subject(None, SERVER, PCP), None, is_answered_here=False)
    assert (len(span.events), span.dropped_events) == (MAX_EVENTS, 10_000 - MAX_EVENTS)
    assert span.end_us == T0 + 9_999
    assert all(each.raw is None for each in opened.hops)


def test_clocks_of_other_centuries_and_endless_names_stay_within_bounds():
    span = build(hop(at_us=-5), hop(1, at_us=1 << 62, counterpart="pcp://" + "x" * 100_000))
    assert span.start_us == 0
    assert span.end_us * 1000 < 1 << 63
    assert len(span.events[1].attributes["dovetail.counterpart"]) == MAX_TEXT
    backwards = build(hop(at_us=T0), hop(1, at_us=T0 - 50))
    assert backwards.start_us == backwards.end_us == T0


def test_bytes_that_are_no_message_still_make_a_span():
    span = build(hop(stage=Stage.REJECTED, reason=Reason.MALFORMED), raw=b"\xff\x00not a frame")
    assert span.name == f"rejected {SERVER}"
    assert span.failure == "malformed"


def test_a_traceparent_of_zeros_is_none():
    zeros = b'{"traceparent": "00-%s-%s-00"}' % (b"0" * 32, b"0" * 16)
    assert read_subject(zeros, SERVER, PCP).link is None


def test_other_fabrics_have_templates_with_few_values():
    swarm = fabric_named("swarm")
    assert read_subject(None, "swarm://fleet/51ae", swarm).template == "swarm://fleet"
