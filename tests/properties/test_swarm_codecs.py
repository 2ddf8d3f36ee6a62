"""Codecs: encoding round-trips, and no bytes raise anything but a Refusal."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.swarm import fragments, obfuscation, queries
from dovetail.swarm.content import Content, Reference, decode_content, encode_content, work_preimage
from dovetail.swarm.packet import SwarmSigner, decode_packet, encode_packet
from dovetail.swarm.refusals import Refusal

times = st.integers(0, (1 << 48) - 1)
hashes = st.binary(min_size=8, max_size=8)
contents = st.builds(
    Content,
    timestamp_ms=times,
    ttl_epochs=st.integers(0, 65535),
    references=st.lists(st.builds(Reference, hashes, st.integers(-32768, 32767)), max_size=4).map(tuple),
    payload=st.binary(max_size=300),
    pow_nonce=st.integers(0, (1 << 64) - 1),
    reserved=st.integers(0, 31),
)


@settings(deadline=None)
@given(contents)
def test_content_round_trip(content):
    data = encode_content(content)
    assert decode_content(data) == content
    assert queries.decode_message(data) == content
    preimage = work_preimage(data)
    assert sorted(preimage) == sorted(data)
    assert int.from_bytes(preimage[7:15], "little") == content.pow_nonce


@settings(deadline=None)
@given(st.binary(min_size=4, max_size=4), times, times, st.lists(hashes, max_size=255))
def test_pulls_and_lists_round_trip(ticket, one, other, listed):
    start, end = sorted((one, other))
    assert queries.decode_message(queries.encode_pull_hashes(listed)) == queries.PullHashes(tuple(listed))
    assert queries.decode_message(queries.encode_pull_range(ticket, start, end)) == queries.PullRange(
        ticket, start, end
    )
    data = queries.encode_range_list(ticket, start, end, listed)
    assert queries.decode_message(data) == queries.RangeList(ticket, start, end, tuple(listed))


@settings(deadline=None)
@given(st.binary(max_size=3000), st.integers(0, 63), st.integers(0, 255))
def test_layers_round_trip(message, choice, seed):
    signer = SwarmSigner(bytes(20))
    packet = encode_packet(message, signer, 10**12, choice)
    assembler = fragments.Assembler()
    assembled = None
    for piece in fragments.encode_fragments(packet):
        [masked] = obfuscation.encode_obfuscated(piece, [(choice, seed)])
        datagram = obfuscation.decode_obfuscated(masked)
        assembled = assembler.add(datagram, None, 0) if datagram[0] == fragments.INDICATOR else datagram
    assert decode_packet(assembled, signer, 10**12) == message


heads = st.sampled_from([b"", b"\x79", b"\x79\x10\x05", b"\x79\x11", b"\x79\x20", b"\x79\x21", b"\x66", b"\x62"])
SIGNER = SwarmSigner(bytes(20))


def encode_again(decoded) -> bytes:
    """The bytes that a decoded UEP-12 message came from."""
    match decoded:
        case Content():
            return encode_content(decoded)
        case queries.PullHashes(listed):
            return queries.encode_pull_hashes(listed)
        case queries.PullRange(ticket, start_ms, end_ms):
            return queries.encode_pull_range(ticket, start_ms, end_ms)
        case queries.RangeList(ticket, start_ms, end_ms, listed):
            return queries.encode_range_list(ticket, start_ms, end_ms, listed)
    raise AssertionError(f"no UEP-12 message: {decoded!r}")


def outcome(decode, data: bytes):
    """The decoded message, or the refusal; any other error fails the test."""
    try:
        found = decode(data)
    except Refusal as refusal:
        found = refusal
    assert not isinstance(found, Refusal) or (found.reason is type(found).code and found.detail)
    return found


@settings(max_examples=500, deadline=None)
@given(heads, st.binary(max_size=80))
def test_any_bytes_are_decoded_or_refused(head, tail):
    data = head + tail
    message = outcome(queries.decode_message, data)
    assert isinstance(message, Refusal) or encode_again(message) == data
    content = outcome(decode_content, data)
    # bytes are a content message for both, or for neither
    assert isinstance(content, Refusal) or content == message
    assert isinstance(content, Content) == isinstance(message, Content)
    fragment = outcome(fragments.decode_fragment, data)
    if not isinstance(fragment, Refusal):
        index, count, signature, body = fragment
        assert index < count <= fragments.MAX_FRAGMENTS
        assert signature + body == data[2:]
    unmasked = outcome(obfuscation.decode_obfuscated, data)
    assert isinstance(unmasked, Refusal) != obfuscation.is_obfuscated(data) or len(data) < 2
    if not isinstance(unmasked, Refusal):
        choice = data[0] if data[0] < 0x20 else 287 - data[0]
        assert obfuscation.encode_obfuscated(unmasked, [(choice, data[1])]) == [data]
    inside = outcome(lambda packet: decode_packet(packet, SIGNER, 0), data)
    assert isinstance(inside, Refusal) or data in [encode_packet(inside, SIGNER, at, band) for at, band in SLOTS]
    # with the header of the swarm it is always accepted
    assert decode_packet(encode_packet(data, SIGNER, 0, 3), SIGNER, 0) == data


SLOTS = [(slot * 16_384, band) for slot in (0, 1) for band in range(16)]
