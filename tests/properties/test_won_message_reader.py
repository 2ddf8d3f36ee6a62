"""Messages are read, refused and written alike in native code and in Python."""

from __future__ import annotations

from unittest import mock

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dovetail import fast
from dovetail.model.errors import RemoteProtocolError
from dovetail.won import message as m
from dovetail.won import vocabulary as v
from dovetail.won.canonical import WIRE, encode_graphs
from dovetail.won.readers import blocks
from dovetail.won.readers.blocks import HEADER, encode_block
from dovetail.won.trig import encode_bundle, encode_position
from dovetail.won.vocabulary import MessageType
from won.won_samples import ALICE, BOB_CHAT, build, success

pytestmark = pytest.mark.skipif(fast.IMPLEMENTATION == "python", reason="the native code is not in use")

PYTHON = fast.TWINS["MessageReader"](m._assemble)
KINDS = [kind for kind in MessageType if kind not in (*v.RESPONSE_TYPES, MessageType.REGISTER)]
MESSAGE = build(text="hello <wm:/x> 'é'")
RESPONSE = success(MESSAGE, previous=["wm:/QmB", "wm:/QmA", "wm:/Qm"])
FAILURE = success(MESSAGE, success=False, text="no")
SOCKETS = [(v.P_SENDER_SOCKET, f"<{ALICE}#chat>"), (v.P_RECIPIENT_SOCKET, f"<{BOB_CHAT}>")]
FORWARD = build(envelope=[*SOCKETS, (v.P_FORWARDED, "<wm:/QmZ>"), (v.P_FORWARDED, "<wm:/QmC>")])
MESSAGES = [*map(build, KINDS), RESPONSE, FAILURE, FORWARD]
BUNDLE = [MESSAGE, RESPONSE]
FRAME = encode_bundle(BUNDLE) + encode_position(f"{ALICE}/msg", 7, 9, trig=True)
OBJECTS = [
    *(v.TYPE_TERMS.values()),
    *(v.DIRECTION_TERMS.values()),
    *('"1.0"', '"2.0"', '""', '"x"'),
    *('"1"' + v.XSD_LONG, '"-1"' + v.XSD_LONG, f'"{10**18}"{v.XSD_LONG}', '"١"' + v.XSD_LONG),
    *("<wm:/QmA>", f"<{MESSAGE.uri}>", f"<{MESSAGE.uri}#envelope>", f"<{MESSAGE.uri}#content>", "_:c14n0"),
    *(f"<{ALICE}>", f"<{ALICE}#chat>", f"<{ALICE}#>", "<https://a.example/atom/x>", "<<a:b> <a:c> <a:d>>", '"a\\nb"'),
    *(f'"x"^^<{v.MSG}t>', f'"<{v.MSG}t>"', f"<{v.MSG}x>", '"x"@en', '"\\\\"'),
]  # fmt: skip
PREDICATES = [*m.ENVELOPE_FORMS, *m.SIGNATURE_FORMS, v.P_SIGNATURE, v.P_TEXT, v.P_POSITION, "<a:p>"]
SUBJECTS = [f"<{MESSAGE.uri}{end}>" for end in ("", "#envelope", "#signature", "#content", "#x")] + ["<a:s>", "_:c14n1"]


def outcome(data, known=None):
    try:
        return m.decode_bundle(data, known=known)
    except RemoteProtocolError as error:
        return error.reason, error.detail


def read_alike(data, known=None):
    """What both readers say about a frame."""
    native = outcome(data, known)
    with mock.patch.multiple(m, _reader=PYTHON, assemble=PYTHON.read):
        assert native == outcome(data, known)
    return native


def graphs_of(messages):
    graphs = {}
    for message in messages:
        for s, p, o, g in message.quads:
            graphs.setdefault(g, []).append((s, p, o))
    return graphs


def encode(graphs):
    return (HEADER + "".join(encode_block(graph, group) for graph, group in graphs.items() if group)).encode()


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.type)
def test_our_messages_are_read_in_native_code(message):
    frame, quads, size = encode_bundle([message]), message.raw.count(b"\n"), len(message.raw)
    assert m._reader.read_bundle(frame, (100, quads, size), None) == ([message], {})
    assert m._reader.read_bundle(frame, (100, quads - 1, size), None) is None
    assert m._reader.read_bundle(frame, (100, quads, size - 1), None) is None
    assert read_alike(encode_bundle([message])).messages == (message,)
    assert read_alike(message.raw).messages == (message,)


def test_known_messages_are_not_read_again():
    known = {MESSAGE.uri: MESSAGE, RESPONSE.uri: MESSAGE}
    (one, other), _ = m._reader.read_bundle(FRAME, (WIRE.dataset_quads, WIRE.message_quads, WIRE.message_bytes), known)
    assert one is MESSAGE
    assert other == RESPONSE
    assert read_alike(FRAME, known).position == 7


# per edit: what to do, where, and a statement in the words above
statements = st.tuples(st.sampled_from(SUBJECTS), st.sampled_from(PREDICATES), st.sampled_from(OBJECTS))
edits = st.tuples(st.sampled_from(["drop", "add", "object", "move", "again"]), st.integers(0, 99), statements)


@given(st.sampled_from([*MESSAGES, None]), st.lists(edits, min_size=1, max_size=3))
@settings(max_examples=1000, deadline=None)
def test_messages_with_other_statements_are_read_alike(message, script):
    graphs = graphs_of(BUNDLE if message is None else [message])
    for action, place, statement in script:
        group = graphs[list(graphs)[place % len(graphs)]]
        at = place % max(len(group), 1)
        if action == "add":
            group.append(statement)
        elif action == "move":
            graphs.setdefault(statement[0], []).append(statement)
        elif group and action == "drop":
            del group[at]
        elif group and action == "object":
            group[at] = (*group[at][:2], statement[2])
        elif group:
            group.append(group[at])
    read_alike(encode(graphs))
    if all(graphs.values()):
        read_alike(encode_graphs(graphs.items()))


PIECES = [
    b" ",
    b"\n",
    b" .",
    b" ;\n",
    b"{",
    b"}",
    b'"',
    b"<",
    b">",
    b"#",
    b"<wm:/Qm1>",
    b"_:b",
    b"\\u0041",
    b"\xff",
    b"0",
]


@given(st.lists(st.tuples(st.integers(0, len(FRAME)), st.integers(0, 9), st.sampled_from(PIECES)), max_size=3))
@settings(max_examples=500, deadline=None)
@example([(len(FRAME), 0, FRAME[len(HEADER) :])])
def test_edited_frames_are_read_alike(script):
    data = FRAME
    for at, drop, insert in script:
        data = data[:at] + insert + data[at + drop :]
    read_alike(data)


def test_more_messages_than_allowed_are_refused_alike():
    many = [build(text=str(number)) for number in range(m.MAX_MESSAGES_PER_DATASET + 1)]
    assert len(read_alike(encode_bundle(many[1:])).messages) == m.MAX_MESSAGES_PER_DATASET
    assert "17 messages" in read_alike(encode_bundle(many))[1]


words = st.text(st.characters(exclude_categories=["Cs", "Zs", "Zl", "Zp", "Cc"]), min_size=1, max_size=6)
literals = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n"), max_size=9).map('"{}"'.format)
terms = st.sampled_from([*SUBJECTS, *PREDICATES]) | words


@given(st.lists(st.lists(st.tuples(terms, terms, terms | literals, terms), max_size=6), max_size=3))
@settings(max_examples=300, deadline=None)
def test_datasets_are_written_alike(messages):
    raws = [encode_graphs([(g, [(s, p, o)]) for s, p, o, g in quads]) for quads in messages]
    tables = HEADER.encode(), blocks._SHORT_PREDICATES, blocks._SHORT_OBJECTS
    python = fast.TWINS["BlockWriter"](*tables)
    assert blocks.block_writer.write(raws) == python.write(raws)
