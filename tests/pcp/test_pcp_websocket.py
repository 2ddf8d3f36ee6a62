"""WebSocket frames that are sent, and fragments that are put together, within bounds."""

import struct

import pytest

from dovetail.runtime.websocket import MAX_FRAGMENTS, Assembler, encode_close, encode_frames


@pytest.mark.parametrize(
    ("size", "head"),
    [
        (0, b"\x82\x00"),
        (125, b"\x82\x7d"),
        (126, b"\x82\x7e\x00\x7e"),
        (65_535, b"\x82\x7e\xff\xff"),
        (65_536, b"\x82\x7f" + struct.pack(">Q", 65_536)),
    ],
)
def test_binary_frames_of_every_length_form(size, head):
    assert encode_frames([b"x" * size], is_text=False) == head + b"x" * size


def test_several_messages_are_one_write_and_text_has_its_own_opcode():
    assert encode_frames([b"a", b"bc"], is_text=True) == b"\x81\x01a\x81\x02bc"


def test_a_close_frame_has_its_code_and_as_much_of_the_detail_as_fits():
    assert encode_close(4000, "superseded") == b"\x88\x0c\x0f\xa0superseded"
    long = encode_close(1011, "é" * 100)
    assert len(long) == 2 + long[1] <= 127
    long[4:].decode()  # not cut inside a character


def add(assembler: Assembler, payload: bytes, *, opens: bool = False, is_last: bool = False, is_text: bool = False):
    return assembler.add(payload, opens=opens, is_last=is_last, is_text=is_text)


def test_fragments_become_one_message():
    assembler = Assembler(100)
    assert add(assembler, b"a", opens=True, is_text=True) is None
    assert add(assembler, b"b") is None
    assert assembler.beginning == b"ab"
    assert add(assembler, b"c", is_last=True) == (b"abc", True)
    assert assembler.is_idle


def test_bytes_and_fragments_are_bounded():
    assembler = Assembler(5)
    add(assembler, b"abc", opens=True)
    with pytest.raises(OverflowError):
        add(assembler, b"def")
    many = Assembler(5)
    add(many, b"", opens=True)
    for _ in range(MAX_FRAGMENTS - 1):
        add(many, b"")
    with pytest.raises(OverflowError):
        add(many, b"")


def test_fragments_out_of_order_are_refused():
    with pytest.raises(ValueError, match="nothing"):
        add(Assembler(5), b"a")
    assembler = Assembler(5)
    add(assembler, b"a", opens=True)
    with pytest.raises(ValueError, match="inside another"):
        add(assembler, b"a", opens=True)
