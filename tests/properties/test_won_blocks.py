"""The fast reader of our own TriG accepts nothing that the general parser would refuse or read differently."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dovetail import fast
from dovetail.model.errors import RemoteProtocolError
from dovetail.won import vocabulary as v
from dovetail.won.canonical import MAX_DATASET_QUADS, read_quads
from dovetail.won.readers import blocks
from dovetail.won.readers.blocks import HEADER, decode_blocks, encode_block
from dovetail.won.trig import encode_bundle, encode_position
from dovetail.won.vocabulary import MessageType
from won.won_samples import ALICE, build, success

MESSAGE = build()
FRAME = encode_bundle([MESSAGE, success(MESSAGE)]) + encode_position(f"{ALICE}/msg", 7, 9, trig=True)
PYTHON_READER = fast.TWINS["BlockReader"](HEADER.encode(), *blocks.LONG_TERMS)
PIECES = [
    *(b" ;", b" .", b" , ", b"}", b" {", b"\n", b"\n\n", b" ", b"\t", b"\r", b"\r\n", b"#", b"\\", b'"', b'""', b"'"),
    *(b"<", b">", b"<>", b"a", b" a ", b"_:b", b"[]", b"()", b"@en", b"^^", b"^^msg:x", b"5", b"true", b"\\u0041"),
    *(b"%zz", b"%41", b"/../", b"//", b":", b"msg:", b"msg:hash", b"GRAPH ", b"@prefix msg: <a:> .\n", b"BASE <a:>\n"),
    *("\u0085\u2028\u00a0\ufeff\ufffe\uffff\U0001f600é".encode(), b"\x00", b"\x7f", b"\xff", b"\xed\xa0\x80"),
]


def statements_of(graphs):
    return {(s, p, o, graph) for graph, group in graphs.items() for s, p, o in group}


def assert_read_alike(data):
    """True if the fast reader (native, if installed) accepted it; the Python one must read the same."""
    graphs = decode_blocks(data)
    in_python = PYTHON_READER.read(data, MAX_DATASET_QUADS)
    assert in_python == graphs
    assert list(in_python or ()) == list(graphs or ())
    if graphs is None:
        return False
    assert all(graphs.values()), "a graph without statements is no graph"
    assert statements_of(graphs) == set(read_quads(data))
    return True


@pytest.mark.parametrize("kind", [k for k in MessageType if k not in (*v.RESPONSE_TYPES, MessageType.REGISTER)])
def test_what_we_write_is_read_quickly(kind):
    message = build(kind)
    assert assert_read_alike(encode_bundle([message]))
    assert assert_read_alike(encode_bundle([message, success(message)]))


def test_frames_with_a_position_are_read_quickly():
    assert assert_read_alike(FRAME)


@given(st.lists(st.tuples(st.integers(0, len(FRAME)), st.integers(0, 12), st.sampled_from(PIECES)), max_size=3))
@settings(max_examples=1500, deadline=None)
@example([(len(FRAME), 0, b"<https://a.example/x> {\n}\n")])
def test_altered_frame_is_read_alike_or_left_to_the_parser(edits):
    data = FRAME
    for at, length, piece in edits:
        data = data[:at] + piece + data[at + length :]
    assert_read_alike(data)


@given(st.lists(st.integers(0, FRAME.count(b"\n") - 1), min_size=1, max_size=4), st.integers(0, FRAME.count(b"\n")))
@settings(max_examples=500, deadline=None)
def test_frame_with_lines_moved_is_read_alike_or_left_to_the_parser(moved, to):
    lines = FRAME.split(b"\n")
    taken = [lines[number] for number in moved]
    rest = [line for number, line in enumerate(lines) if number not in moved]
    assert_read_alike(b"\n".join([*rest[:to], *taken, *rest[to:]]))
    assert_read_alike(b"\n".join([*lines[:to], *taken, *lines[to:]]))


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
literals = texts.map(lambda text: '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"')
typed = st.builds("{}{}".format, literals, st.sampled_from(["", v.XSD_LONG, "@en", "^^<a:t>"]))
tails = st.text("abzAZ09./:?#%~-_@!$&'()*+,;=[]", max_size=12)
iris = st.builds("<{}{}>".format, st.sampled_from(["https://", "http://h", "wm:/", "urn:dovetail:won:", "x:"]), tails)


@given(st.lists(st.tuples(iris, iris, iris | typed), min_size=1, max_size=4), iris)
@settings(max_examples=1500, deadline=None)
def test_any_terms_are_read_alike_or_left_to_the_parser(statements, graph):
    data = (HEADER + encode_block(graph, statements)).encode()
    assert_read_alike(data)


@given(texts)
@settings(deadline=None)
def test_ordinary_text_is_read_quickly(text):
    plain = all(c == " " or (c.isprintable() and c not in '"\\') for c in text)
    taken = assert_read_alike((HEADER + encode_block("<wm:/Qm1#c>", [("<wm:/Qm1>", v.P_TEXT, f'"{text}"')])).encode())
    assert taken or not plain


def test_rdf_type_as_an_object_is_no_keyword():
    block = encode_block("<wm:/Qm1#c>", [("<wm:/Qm1>", "<https://a.example/p>", v.RDF_TYPE)])
    assert read_quads((HEADER + block).encode()) == [
        ("<wm:/Qm1>", "<https://a.example/p>", v.RDF_TYPE, "<wm:/Qm1#c>"),
    ]


def test_large_frames_are_left_to_the_parser_and_its_bounds():
    many = [("<wm:/Qm1>", v.P_TEXT, f'"{number}"') for number in range(MAX_DATASET_QUADS + 1)]
    data = (HEADER + encode_block("<wm:/Qm1#c>", many)).encode()
    assert decode_blocks(data) is None
    with pytest.raises(RemoteProtocolError, match="more than"):
        read_quads(data)
