"""The fast reader of canonical N-Quads accepts nothing that the general parser would refuse or read differently."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dovetail.model.errors import RemoteProtocolError
from dovetail.won import vocabulary as v
from dovetail.won.canonical import MAX_DATASET_QUADS, encode_lines, join_lines, read_lines, read_quads, rename
from dovetail.won.message import Message, compute_address, decode_message
from dovetail.won.readers.lines import decode_lines, rename_text
from dovetail.won.vocabulary import MessageType
from properties.test_won_blocks import PIECES, iris, statements_of, typed
from won.won_samples import build, success

MESSAGE = build()
RAW = success(MESSAGE).raw
EDITS = [*PIECES, b"<wm:/", b"#envelope>", b" .\n", b'"1.0"', v.RDF_TYPE.encode(), f'"7"{v.XSD_LONG}'.encode()]


def assert_read_alike(data: bytes) -> bool:
    """True if the fast reader accepted it."""
    graphs = decode_lines(data)
    if graphs is None:
        return False
    assert all(graphs.values()), "a graph without statements is no graph"
    assert statements_of(graphs) == set(read_quads(data))
    # canonical: nothing would be written differently
    assert join_lines(sorted(set(read_lines(data)))) == data
    assert all(list(group) == sorted(set(group)) for group in graphs.values())
    return True


def decode_slowly(data: bytes) -> Message | None:
    """Decode with the general parser: no fast reader's layout has a comment."""
    try:
        return decode_message(b"# by the general parser\n" + data)
    except RemoteProtocolError:
        return None


def assert_decoded_alike(data: bytes) -> None:
    try:
        message = decode_message(data)
    except RemoteProtocolError:
        message = None
    assert message == decode_slowly(data)


@pytest.mark.parametrize("kind", [k for k in MessageType if k not in (*v.RESPONSE_TYPES, MessageType.REGISTER)])
def test_what_journals_keep_is_read_quickly(kind):
    message = build(kind)
    for each in (message, success(message)):
        assert assert_read_alike(each.raw)
        assert decode_message(each.raw) == each == decode_slowly(each.raw)


@given(st.lists(st.tuples(st.integers(0, len(RAW)), st.integers(0, 12), st.sampled_from(EDITS)), max_size=3))
@settings(max_examples=1500, deadline=None)
@example([(0, 0, b'"1.0" <wm:/a> <wm:/b> <wm:/c> .\n')])
def test_altered_messages_are_read_alike_or_left_to_the_parser(edits):
    data = RAW
    for at, length, piece in edits:
        data = data[:at] + piece + data[at + length :]
    assert_read_alike(data)
    assert_decoded_alike(data)


@given(st.lists(st.integers(0, RAW.count(b"\n") - 1), min_size=1, max_size=4), st.integers(0, RAW.count(b"\n")))
@settings(max_examples=300, deadline=None)
def test_lines_in_another_order_or_twice_are_left_to_the_parser(moved, to):
    lines = RAW.split(b"\n")[:-1]
    taken = [lines[number] for number in moved]
    for changed in ([*lines[:to], *taken, *lines[to:]], [*taken, *(line for line in lines if line not in taken)]):
        data = b"\n".join([*changed, b""])
        assert assert_read_alike(data) == (changed == lines)
        assert_decoded_alike(data)


@given(st.lists(st.tuples(iris, iris, iris | typed, iris), min_size=1, max_size=4))
@settings(max_examples=1500, deadline=None)
def test_any_terms_are_read_alike_or_left_to_the_parser(quads):
    assert_read_alike(join_lines(encode_lines(quads)))


ids = st.sampled_from(["wm:/QmA", "wm:/QmAB", "wm:/Qm", "wm:/QmA#x", "wm:/QmA#", "wm:/QmAB#x", "https://a.example/x"])
terms = ids.map("<{}>".format)
targets = terms | st.sampled_from(['"wm:/QmA"', '"wm:/QmA>"', '"<wm:/QmA>"', f'"1"{v.XSD_LONG}'])


@given(st.lists(st.tuples(terms, terms, targets, terms), min_size=1, max_size=5))
@settings(max_examples=500, deadline=None)
def test_renaming_in_the_text_is_renaming_the_terms(quads):
    data = join_lines(encode_lines(quads))
    if decode_lines(data) is not None:
        renamed = rename_text(data.decode(), "wm:/QmA", v.SELF).split("\n")[:-1]
        assert sorted(renamed) == encode_lines(rename(quads, "wm:/QmA", v.SELF))
    else:
        # what it leaves to the parser: a message's URI as a predicate, or `<` in a literal
        assert any(
            p.startswith("<wm:/") or (o[0] == '"' and "<" in o[:-1] and v.XSD_LONG not in o) for _, p, o, _ in quads
        )


def test_address_and_signed_digest_are_those_of_the_canonical_dataset():
    for message in (MESSAGE, success(MESSAGE)):
        decoded = decode_message(message.raw)
        quads = rename(read_quads(message.raw), message.uri, v.SELF)
        assert (decoded.address, decoded.signed_digest) == compute_address(quads)
        assert decoded.raw == message.raw


def test_large_datasets_are_left_to_the_parser_and_its_bounds():
    many = encode_lines(
        ("<wm:/Qm1>", v.P_TEXT, f'"{number}"', "<wm:/Qm1#c>") for number in range(MAX_DATASET_QUADS + 1)
    )
    assert decode_lines(join_lines(many)) is None
    with pytest.raises(RemoteProtocolError, match="more than"):
        read_quads(join_lines(many))
    assert assert_read_alike(join_lines(many[:-1]))
