"""Sending frames, reassembling fragments, and the memory of incomplete messages."""

import struct

import pytest

from dovetail.runtime.frames import Assembler, Memory, encode_frames


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


def test_fragments_become_one_message_and_empty_ones_count():
    assembler = Assembler(100, 3, is_text=True)
    for part in (b"a", b"", b"bc"):
        assembler.add(part)
    assert bytes(assembler.parts) == b"abc"
    with pytest.raises(OverflowError, match="more than 3 fragments"):
        assembler.add(b"")


def test_the_bytes_of_all_fragments_are_bounded():
    assembler = Assembler(5, 100, is_text=False)
    assembler.add(b"abc")
    with pytest.raises(OverflowError, match="more than 5 bytes"):
        assembler.add(b"def")
    assert bytes(assembler.parts) == b"abc"


class Holder:
    """Releases what it holds when it is told to."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self.refused: list[int] = []

    def refuse_more(self, size: int) -> None:
        self.refused.append(size)
        self.memory.release(self)


def test_over_the_limit_whoever_holds_the_most_gives_it_up():
    memory = Memory(100)
    small, large, last = (Holder(memory) for _ in range(3))
    memory.hold(small, 30)
    memory.hold(large, 50)
    assert memory.hold(last, 20) == 20
    assert memory.used_bytes == 100
    memory.hold(last, 5)
    assert (small.refused, large.refused, last.refused) == ([], [50], [])
    assert memory.used_bytes == 55


def test_of_equals_the_one_that_wants_more_gives_up():
    memory = Memory(100)
    first, second = Holder(memory), Holder(memory)
    memory.hold(first, 60)
    memory.hold(second, 60)
    assert (first.refused, second.refused) == ([], [60])


def test_what_was_passed_on_is_no_longer_held():
    memory = Memory(100)
    holder = Holder(memory)
    memory.hold(holder, 90)
    assert memory.hold(holder, -90) == 0
    memory.hold(holder, 80)
    assert holder.refused == []
    memory.release(holder)
    memory.release(holder)
    assert memory.used_bytes == 0
