"""Codecs under mutation: any bytes give a result or the typed error, and what decodes encodes to the same bytes."""

import contextlib
import random
import uuid
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.model.errors import RemoteProtocolError
from dovetail.pcp.codec_v1 import decode_frame, encode_frame, salvage_frame
from dovetail.pcp.codec_v2 import decode_message, encode_message
from dovetail.pcp.envelope import salvage
from pcp.pcp_frames import compact, envelope, frame_v1, frame_v2, raw_v1

SEEDS = (
    frame_v1(),
    frame_v1(b'{"a":"\\"x"}', (b'{"hops":[]}',), in_reply_to=str(uuid.UUID(int=1)), destination_report=True),
    frame_v1(targets=["pcp://*/agent", "pcp://a/*"], message_type="http://x/\\u0041"),
    frame_v2(data={"a": [1, 2.5, None, "\\"]}, sender="pcp://a/b"),
    frame_v2(target=None),
)
INTERESTING = (b'"', b"\\", b"{", b"}", b"[", b"]", b"\0", b"\xff", b"\x80\0\0\0", b"\x7f\xff\xff\xff", b'"id":', b",")


def mutate(message: bytes, source: random.Random) -> bytes:
    mutated = bytearray(message)
    for _ in range(source.randint(1, 4)):
        at = source.randrange(len(mutated) + 1)
        match source.randrange(5):
            case 0 if at < len(mutated):
                mutated[at] = source.randrange(256)
            case 1:
                mutated[at:at] = source.choice(INTERESTING)
            case 2:
                del mutated[at : at + source.randint(1, 8)]
            case 3:
                mutated[at:at] = mutated[at : at + source.randint(1, 40)]
            case _:
                del mutated[at:]
    return bytes(mutated)


def decode_either(message: bytes) -> int:
    """How many of the two codecs accepted it; any other error propagates."""
    taken = 0
    for decode, rescue in ((decode_frame, salvage_frame), (decode_message, salvage)):
        with contextlib.suppress(RemoteProtocolError):
            decode(message)
            taken += 1
        rescue(message)
    return taken


def assert_some_decode_and_some_are_refused(rounds: int, seed: int) -> None:
    source = random.Random(seed)
    taken = Counter(decode_either(mutate(source.choice(SEEDS), source)) for _ in range(rounds))
    assert taken.keys() == {0, 1}, "no bytes are a frame of both versions"
    assert taken.total() == rounds
    # otherwise the mutations would be too small or too large to find anything
    assert min(taken.values()) > rounds // 100


def test_mutated_frames_give_only_the_typed_error():
    assert_some_decode_and_some_are_refused(5_000, seed=1)


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_million_mutated_frames():
    assert_some_decode_and_some_are_refused(1_000_000, seed=2)


@given(st.binary(max_size=300))
def test_any_bytes_give_only_the_typed_error(message):
    # a version 1 envelope has a descriptor, length and content, which random bytes hardly ever form
    assert decode_either(message) == 0
    assert decode_either(b"\x01\x01" + message) == 0
    assert decode_either(b"\x01\x01" + frame_v1()[2:]) == 1


URIS = st.builds("pcp://{}/{}".format, st.from_regex(r"[a-z*]{0,5}", fullmatch=True), st.sampled_from(["agent", "*"]))
ENVELOPES = st.builds(
    envelope,
    id=st.uuids().map(str),
    message_type=st.text(max_size=20),
    targets=st.lists(URIS, max_size=4),
    sender=URIS,
    destination_report=st.sampled_from([None, True, False]),
    in_reply_to=st.one_of(st.none(), st.uuids().map(str)),
)


@given(ENVELOPES, st.binary(max_size=50), st.lists(st.binary(max_size=20), max_size=3))
def test_v1_round_trip(fields, data, debug):
    message = raw_v1(compact(fields), data, tuple(debug))
    frame = decode_frame(message)
    again = decode_frame(encode_frame(frame.envelope, frame.data, frame.debug))
    assert (again.envelope, again.expires_us, again.data or b"") == (frame.envelope, frame.expires_us, data)
    assert decode_frame(frame.forward).envelope == frame.envelope


@given(ENVELOPES, st.data())
def test_v1_any_repeated_key_is_refused(fields, data):
    document = compact(fields)
    name = data.draw(st.sampled_from(sorted(fields)))
    repeated = document[:-1] + b"," + compact({name: fields[name]})[1:]
    with pytest.raises(RemoteProtocolError, match="twice"):
        decode_frame(raw_v1(repeated))


@given(st.recursive(st.none() | st.booleans() | st.text(max_size=9), lambda inner: st.lists(inner, max_size=3)))
def test_v2_round_trip(data):
    message = frame_v2()[:-1] + b',"data":' + compact(data) + b"}"
    assert encode_message(decode_message(message)) == message
