"""Codecs: whatever can be encoded comes back, and no bytes raise anything but a Refusal."""

from __future__ import annotations

import contextlib

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
        datagram = obfuscation.decode_obfuscated(obfuscation.encode_obfuscated(piece, choice, seed))
        assembled = assembler.add(datagram, None, 0) if datagram[0] == fragments.INDICATOR else datagram
    assert decode_packet(assembled, signer, 10**12) == message


heads = st.sampled_from([b"", b"\x79", b"\x79\x10\x05", b"\x79\x11", b"\x79\x20", b"\x79\x21", b"\x66", b"\x62"])


@settings(max_examples=500, deadline=None)
@given(heads, st.binary(max_size=80))
def test_any_bytes_are_decoded_or_refused(head, tail):
    data = head + tail
    for decode in (
        queries.decode_message,
        decode_content,
        fragments.decode_fragment,
        obfuscation.decode_obfuscated,
        lambda packet: decode_packet(packet, SwarmSigner(bytes(20)), 0),
    ):
        with contextlib.suppress(Refusal):
            decode(data)
