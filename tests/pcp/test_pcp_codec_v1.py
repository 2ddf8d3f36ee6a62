"""Version 1: chunks, envelope, byte-exact forwarding, and every refusal."""

import json

import pytest

from dovetail.model.errors import RemoteProtocolError
from dovetail.model.hop import Reason
from dovetail.pcp.codec_v1 import append_debug, decode_frame, encode_frame, salvage_frame
from pcp.pcp_frames import ID, NOW, chunk, compact, envelope, frame_v1, raw_v1


def assert_refused(message: bytes, reason: Reason, detail: str = "") -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        decode_frame(message)
    assert caught.value.reason is reason
    assert detail in caught.value.detail


def test_envelope_alone():
    frame = decode_frame(frame_v1())
    assert frame.envelope.id == ID
    assert frame.data is None
    assert frame.debug == ()
    assert frame.expires_us == NOW + 60_000_000


def test_envelope_data_and_debug_are_forwarded_byte_for_byte():
    message = frame_v1(b"\x00\xffopaque", (b"{}", b"not json"))
    frame = decode_frame(message)
    assert frame.data == b"\x00\xffopaque"
    assert frame.debug == (b"{}", b"not json")
    assert frame.forward is message


def test_in_reply_to_is_written_with_hyphens():
    frame = decode_frame(frame_v1(in_reply_to=ID, destination_report=True))
    assert frame.envelope.in_reply_to == ID
    assert frame.envelope.destination_report is True
    assert b'"in-reply-to"' in encode_frame(frame.envelope)


def test_encode_and_decode_are_a_pair():
    frame = decode_frame(frame_v1(b"data", (b"{}",), in_reply_to=ID))
    assert decode_frame(encode_frame(frame.envelope, frame.data, frame.debug)) == decode_frame(
        frame_v1(b"data", (b"{}",), in_reply_to=ID)
    )


def test_reserved_high_nibble_is_ignored_and_sent_as_zero():
    document = compact(envelope())
    message = b"\x01" + chunk(0xF1, document) + chunk(0x92, b"x") + chunk(0x53, b"{}")
    frame = decode_frame(message)
    assert frame.forward == raw_v1(document, b"x", (b"{}",))
    assert decode_frame(b"\x01" + chunk(0x21, document)).forward == raw_v1(document)
    assert decode_frame(b"\x01" + chunk(1, document) + chunk(0x92, b"x")).forward == raw_v1(document, b"x")
    last = chunk(1, document) + chunk(2, b"x") + chunk(0x53, b"{}")
    assert decode_frame(b"\x01" + last).forward == raw_v1(document, b"x", (b"{}",))


def test_an_empty_data_chunk_is_not_forwarded():
    document = compact(envelope())
    assert decode_frame(raw_v1(document, b"")).forward == raw_v1(document)


def test_foreign_spacing_of_the_envelope_is_kept():
    document = json.dumps(envelope(), indent=2).encode()
    message = raw_v1(document, b"x")
    assert decode_frame(message).forward is message


def test_debug_chunk_is_appended_at_the_end():
    assert append_debug(frame_v1(b"x"), b"{}") == frame_v1(b"x", (b"{}",))


@pytest.mark.parametrize("message", [b"", b"\x01", b"\x01\x01\x00\x00", frame_v1(b"data")[:-1], frame_v1()[:20]])
def test_truncated(message):
    assert_refused(message, Reason.MALFORMED)


def test_cut_in_a_chunk_header():
    assert_refused(frame_v1() + b"\x02\x00\x00", Reason.MALFORMED, "header cut off")


@pytest.mark.parametrize("length", [-1, -(2**31), 2**31 - 1, 10_000])
def test_negative_and_huge_lengths(length):
    assert_refused(b"\x01" + chunk(1, compact(envelope()), length), Reason.MALFORMED)
    assert_refused(frame_v1() + chunk(2, b"x", length), Reason.MALFORMED)


def test_other_versions():
    assert_refused(b"\x02" + frame_v1()[1:], Reason.UNSUPPORTED_VERSION)


def test_two_envelopes():
    assert_refused(frame_v1() + chunk(1, compact(envelope())), Reason.MALFORMED, "two envelope")


def test_two_data_chunks():
    assert_refused(frame_v1(b"a") + chunk(2, b"b"), Reason.MALFORMED, "two data")


def test_envelope_comes_first():
    assert_refused(b"\x01" + chunk(2, b"a") + chunk(1, compact(envelope())), Reason.MALFORMED, "first chunk")


def test_unknown_chunk_type():
    assert_refused(frame_v1() + chunk(4, b"a"), Reason.MALFORMED, "unknown type 4")


def test_debug_chunks_are_bounded():
    assert_refused(frame_v1(None, (b"{}",) * 65), Reason.TOO_LARGE, "64 debug chunks")


def test_message_limit():
    with pytest.raises(RemoteProtocolError, match="expected at most 100"):
        decode_frame(frame_v1(), max_bytes=100)


@pytest.mark.parametrize(
    "document",
    [
        compact(envelope())[:-1] + b',"sender":"pcp://evil/agent"}',
        compact(envelope())[:-1] + b', "targets" : [ ] }',
        compact(envelope())[:-1] + b',"\\u0073ender":"pcp://evil/agent"}',
        compact(envelope(destination_report=True))[:-1] + b',"destination_report":true}',
        b'{"id":"x",' + compact(envelope())[1:],
    ],
)
def test_duplicate_keys(document):
    assert_refused(raw_v1(document), Reason.MALFORMED, "twice")


def test_an_escape_without_a_duplicate_is_fine():
    document = compact(envelope()).replace(b"/ping", b"\\/ping")
    assert decode_frame(raw_v1(document)).envelope.message_type == "http://example.com/ping"


@pytest.mark.parametrize("document", [b"", b"garbage", b"[]", b'"', b"{", b"\xff\xfe", b"null"])
def test_envelope_that_is_not_an_object(document):
    with pytest.raises(RemoteProtocolError):
        decode_frame(raw_v1(document))


def test_deep_nesting():
    with pytest.raises(RemoteProtocolError):
        decode_frame(raw_v1(b'{"targets":' + b"[" * 100_000))


def test_invalid_utf_8():
    assert_refused(raw_v1(compact(envelope()).replace(b"ping", b"\xff\xfe")), Reason.MALFORMED)
    assert_refused(raw_v1(compact(envelope()).replace(b"ping", b"\\ud800")), Reason.MALFORMED)


@pytest.mark.parametrize("name", ["id", "message_type", "expires", "targets", "sender"])
def test_schema_required(name):
    assert_refused(frame_v1(**{name: None}), Reason.INVALID_SCHEMA, name)


@pytest.mark.parametrize(
    "changes",
    [
        {"extra": 1},
        {"id": 5},
        {"id": "not-a-uuid"},
        {"id": ID + "\0"},
        {"in_reply_to": "not-a-uuid"},
        {"targets": "pcp://a/b"},
        {"targets": [5]},
        {"destination_report": "yes"},
        {"expires": "tomorrow"},
        {"expires": 5},
    ],
)
def test_schema_closed_and_typed(changes):
    assert_refused(frame_v1(**changes), Reason.INVALID_SCHEMA)


def test_schema_has_no_null():
    document = compact(envelope())[:-1] + b',"in-reply-to":null}'
    assert_refused(raw_v1(document), Reason.INVALID_SCHEMA)


@pytest.mark.parametrize("uri", ["", "client", "pcp://a", "pcp://a/b/c", "http://a/b"])
def test_bad_uris(uri):
    assert_refused(frame_v1(targets=[uri]), Reason.BAD_URI)
    assert_refused(frame_v1(sender=uri), Reason.BAD_URI)


def test_targets_may_be_empty():
    assert decode_frame(frame_v1(targets=[])).envelope.targets == []


def test_salvages_the_id_of_a_refused_message():
    assert salvage_frame(frame_v1(extra=1)) == (ID, "http://example.com/ping", ("pcp://client_b/agent",))
    assert salvage_frame(frame_v1(id="nope")).id is None
    assert salvage_frame(frame_v1(id=7, targets=7)) == (None, "http://example.com/ping", ())
    assert salvage_frame(b"garbage!") == (None, "", ())
    assert salvage_frame(b"") == (None, "", ())
