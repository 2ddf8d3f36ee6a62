"""Version 2: one closed JSON object."""

import json

import pytest
from msgspec import UNSET

from dovetail.model.errors import RemoteProtocolError
from dovetail.model.hop import Reason
from dovetail.pcp.codec_v2 import decode_message, encode_message
from dovetail.pcp.envelope import salvage
from pcp.pcp_frames import ID, SENDER, TARGET, frame_v2


def assert_refused(message: bytes, reason: Reason) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        decode_message(message)
    assert caught.value.reason is reason


def test_all_fields():
    message = decode_message(frame_v2(sender=SENDER, in_reply_to=ID, data={"a": [1, "x"]}))
    assert (message.target, message.sender, message.in_reply_to) == (TARGET, SENDER, ID)
    assert bytes(message.data) == b'{"a":[1,"x"]}'


def test_only_id_and_type_are_required():
    message = decode_message(frame_v2(target=None))
    assert message.target is UNSET
    assert message.data is UNSET
    assert encode_message(message) == frame_v2(target=None)


@pytest.mark.parametrize("data", ["null", "5", '"text"', "[]", '{"a":"\\""}'])
def test_data_is_any_json_and_kept_as_it_came(data):
    message = frame_v2()[:-1] + f',"data":{data}}}'.encode()
    assert encode_message(decode_message(message)) == message


@pytest.mark.parametrize(
    "tail",
    [
        b',"id":"x"}',
        b',"data":1,"data":2}',
        b',"data":"\\"","data":"\\""}',
        b',"d\\u0061ta":1,"data":2}',
        b',"data":{},"id":"x"}',
    ],
)
def test_duplicate_keys(tail):
    assert_refused(frame_v2()[:-1] + tail, Reason.MALFORMED)


@pytest.mark.parametrize(
    "changes", [{"extra": 1}, {"targets": [TARGET]}, {"expires": "x"}, {"id": "x"}, {"in_reply_to": "x"}]
)
def test_schema_is_closed_and_typed(changes):
    assert_refused(frame_v2(**changes), Reason.INVALID_SCHEMA)


def test_bad_uris():
    assert_refused(frame_v2(target="nowhere"), Reason.BAD_URI)
    assert_refused(frame_v2(sender="nobody"), Reason.BAD_URI)


def test_deep_nesting_is_bounded_without_recursion():
    fine = b'{"a":' * 32 + b"[" * 31 + b"]" * 31 + b"}" * 32
    decode_message(frame_v2()[:-1] + b',"data":' + fine + b"}")
    for depth in (64, 100_000):
        assert_refused(frame_v2()[:-1] + b',"data":' + b"[" * depth + b"]" * depth + b"}", Reason.MALFORMED)


def test_brackets_in_strings_are_not_nesting():
    text = "[" * 1000 + '"\\' + "{" * 1000
    decoded = decode_message(frame_v2(data=text))
    assert json.loads(bytes(decoded.data)) == text


@pytest.mark.parametrize("message", [b"", b"{", b"[]", b"\xff", b'{"id":1}', frame_v2()[:-1], frame_v2() + b"x"])
def test_garbage(message):
    with pytest.raises(RemoteProtocolError):
        decode_message(message)


def test_invalid_utf_8_inside_data():
    assert_refused(frame_v2()[:-1] + b',"data":"\xff"}', Reason.MALFORMED)


def test_limit():
    with pytest.raises(RemoteProtocolError, match="at most 10"):
        decode_message(frame_v2(), max_bytes=10)


def test_salvages_the_id():
    assert salvage(frame_v2(extra=1)) == (ID, "http://example.com/ping", (TARGET,))
    assert salvage(b"[") == (None, "", ())
