"""Properties of canonical form and message codecs."""

from __future__ import annotations

import pyoxigraph as ox
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.model.errors import RemoteProtocolError
from dovetail.won.canonical import canonical_lines, join_lines, read_quads
from dovetail.won.message import decode_bundle, decode_message, verify_address
from dovetail.won.signing import verify_signature
from dovetail.won.trig import encode_bundle, encode_document
from won.won_samples import ALICE, KEYS, build

names = st.sampled_from([f"http://example.org/{x}" for x in "abcd"]).map(ox.NamedNode)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
literals = (
    texts.map(ox.Literal)
    | st.builds(ox.Literal, texts, datatype=names)
    | texts.map(lambda t: ox.Literal(t, language="en"))
)
quads = st.lists(st.builds(ox.Quad, names, names, names | literals, names), min_size=1, max_size=12)


@given(quads)
def test_without_blank_nodes_sorted_nquads_is_the_canonical_form(items):
    dataset = ox.Dataset(items)
    dataset.canonicalize(ox.CanonicalizationAlgorithm.RDFC_1_0)
    expected = sorted(str(dataset).split("\n")[:-1])
    data = bytes(ox.serialize(items, format=ox.RdfFormat.N_QUADS))
    assert canonical_lines(read_quads(data)) == expected
    assert join_lines(expected).decode().count("\n") == len(dataset)


@given(quads)
def test_documents_say_what_they_were_given(items):
    given_quads = read_quads(bytes(ox.serialize(items, format=ox.RdfFormat.N_QUADS)))
    for media_type in ("application/trig", "application/n-quads"):
        assert set(read_quads(encode_document(given_quads, media_type))) == set(given_quads)


@given(texts)
@settings(max_examples=50)
def test_message_with_any_text_round_trips_and_verifies(text):
    message = build(text=text)
    (decoded,) = decode_bundle(encode_bundle([message])).messages
    assert decoded == message
    assert decoded.text == text
    assert decode_message(message.raw) == message
    assert verify_address(decoded)
    assert verify_signature(decoded, KEYS[ALICE].public)


@given(st.binary(max_size=300))
def test_any_bytes_are_refused_with_the_typed_error(data):
    with pytest.raises(RemoteProtocolError):
        decode_bundle(data)


@given(st.integers(0, 10_000), st.integers(0, 255))
@settings(max_examples=200)
def test_flipped_byte_never_yields_a_genuine_other_message(offset, value):
    message = build()
    data = bytearray(encode_bundle([message]))
    data[offset % len(data)] = value
    try:
        (decoded,) = decode_bundle(bytes(data)).messages
    except RemoteProtocolError:
        return
    assert decoded == message or not verify_address(decoded)
