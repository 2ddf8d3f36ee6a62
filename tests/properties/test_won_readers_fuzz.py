"""Reading any bytes gives messages or a reason, never another error."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.model.errors import RemoteProtocolError
from dovetail.won.keys import read_key_document
from dovetail.won.message import decode_bundle, decode_message
from dovetail.won.readers.blocks import HEADER, decode_blocks
from dovetail.won.readers.head import read_head
from dovetail.won.readers.lines import decode_lines
from dovetail.won.trig import encode_bundle, encode_position
from won.won_samples import ALICE, build, success

MESSAGE = build()
FRAMES = [
    MESSAGE.raw,
    success(MESSAGE).raw,
    encode_bundle([MESSAGE, success(MESSAGE)]) + encode_position(f"{ALICE}/msg", 3, 4, trig=True),
]
PIECES = [b" ", b"\n", b" .", b" .\n", b" ;\n", b"{", b"}", b'"', b"<", b">", b"<wm:/Qm1>", b"_:b", b"\\u0041", b"\xff"]


def read_everything(data):
    with contextlib.suppress(RemoteProtocolError):
        decode_bundle(data)
    decode_lines(data)
    decode_blocks(data)
    read_head(data)
    read_key_document(ALICE, data)


# frame, then edits: (where, how many bytes to drop, what to insert there)
edits = st.lists(
    st.tuples(st.integers(0, 3_000), st.integers(0, 40), st.sampled_from(PIECES) | st.binary(max_size=8)), max_size=4
)


@given(st.sampled_from(FRAMES), edits)
@settings(max_examples=500)
def test_edited_frames_are_read_or_refused(frame, script):
    for where, drop, insert in script:
        at = where % (len(frame) + 1)
        frame = frame[:at] + insert + frame[at + drop :]
    read_everything(frame)


@given(st.lists(st.sampled_from(PIECES) | st.sampled_from([HEADER.encode(), b"<a:b>", b"a", b"x:y"]), max_size=20))
@settings(max_examples=500)
def test_pieces_of_the_syntax_in_any_order_are_read_or_refused(pieces):
    read_everything(b"".join(pieces))


@pytest.mark.parametrize(
    "data",
    [
        b"<https://a.example/s> <https://a.example/p> <https://a.example/o>  .\n",
        b'<wm:/Qm1> <https://w3id.org/won/message#hash> "x"  .\n',
        b"<a:b> <a:b>  .\n",
    ],
)
def test_line_with_an_empty_graph_is_refused(data):
    assert decode_lines(data) is None
    with pytest.raises(RemoteProtocolError):
        decode_message(data)
