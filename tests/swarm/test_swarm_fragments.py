"""UEP-7 fragments against the vectors and in bounded memory."""

from __future__ import annotations

import hashlib

import pytest

from dovetail.swarm import refusals
from dovetail.swarm.fragments import (
    FRAGMENT_BYTES,
    MAX_PACKET_BYTES,
    WINDOW_US,
    Assembler,
    decode_fragment,
    encode_fragments,
)
from swarm.vectors import of_layer

PACKET = bytes(range(256)) * 16


@pytest.mark.parametrize("vector", of_layer("uep7"), ids=lambda vector: vector["name"])
def test_fragments(vector):
    datagrams = [bytes.fromhex(item) for item in vector["fragments"]]
    assembler = Assembler()

    def assemble() -> bytes | None:
        found = [assembler.add(datagram, "peer", 0) for datagram in datagrams]
        return found[-1]

    if vector["expect"] != "ok":
        with pytest.raises(getattr(refusals, vector["expect"])):
            assemble()
        return
    packet = assemble()
    assert hashlib.sha256(packet).hexdigest() == vector["assembled_sha256"]
    assert encode_fragments(packet) == datagrams
    assert [datagram[1] for datagram in datagrams] == vector["seq_no"]


def test_any_order_and_duplicates():
    first, second, third = encode_fragments(PACKET)
    assembler = Assembler()
    assert [assembler.add(item, 1, 0) for item in (third, first, third, first)] == [None] * 4
    assert assembler.add(second, 1, 0) == PACKET
    assert len(assembler) == 0


def test_a_packet_that_fits_is_not_fragmented():
    assert encode_fragments(bytes(FRAGMENT_BYTES)) == [bytes(FRAGMENT_BYTES)]
    assert len(encode_fragments(bytes(MAX_PACKET_BYTES))) == 8
    with pytest.raises(ValueError, match="11265"):
        encode_fragments(bytes(MAX_PACKET_BYTES + 1))


def test_the_window_is_extended_by_new_fragments_only():
    first, second, third = encode_fragments(PACKET)
    assembler = Assembler()
    assembler.add(first, 1, 0)
    assembler.add(second, 1, WINDOW_US - 1)
    assert assembler.add(third, 1, 2 * WINDOW_US - 2) == PACKET
    assembler.add(first, 1, 0)
    assembler.add(first, 1, WINDOW_US - 1)
    assembler.add(second, 1, WINDOW_US)
    assert assembler.add(third, 1, WINDOW_US) is None
    assert assembler.given_up == 1


def test_fragments_that_never_complete_are_bounded_per_source_and_in_all():
    assembler = Assembler(max_per_source=4, max_pending=10)
    for number in range(1000):
        packet = number.to_bytes(4) + bytes(2000)
        assembler.add(encode_fragments(packet)[0], number % 5, 0)
    assert len(assembler) == 10
    assert assembler.given_up == 990
    for number in range(100):
        assembler.add(encode_fragments(number.to_bytes(4) + bytes(3000))[0], "one", 0)
    assert len(assembler) == 10


def test_one_source_cannot_spoil_the_packet_of_another():
    first, second, third = encode_fragments(PACKET)
    assembler = Assembler()
    assembler.add(first, "good", 0)
    assembler.add(first, "bad", 0)
    assembler.add(second, "bad", 0)
    with pytest.raises(refusals.BadSignature):
        assembler.add(third[:-1] + b"?", "bad", 0)
    assembler.add(second, "good", 0)
    assert assembler.add(third, "good", 0) == PACKET


def test_malformed_fragments():
    first, second, third = encode_fragments(PACKET)
    for size in range(10):
        with pytest.raises(refusals.Truncated):
            decode_fragment(first[:size])
    with pytest.raises(refusals.BadIndicator):
        decode_fragment(b"\x62" + first[1:])
    with pytest.raises(refusals.TooLarge):
        decode_fragment(first + b"\0")
    with pytest.raises(refusals.BadFragment, match="index 3 of 3"):
        decode_fragment(bytes([0x66, 3 | 2 << 3]) + third[2:])
    with pytest.raises(refusals.BadFragment, match="empty"):
        decode_fragment(third[:10])
    assembler = Assembler()
    assembler.add(first, 1, 0)
    with pytest.raises(refusals.BadFragment, match="4 fragments claimed"):
        assembler.add(bytes([0x66, 1 | 3 << 3]) + second[2:], 1, 0)
