"""Peer exchange: codec and the direction between two peers."""

from __future__ import annotations

import pytest

from dovetail.swarm import refusals
from dovetail.swarm.peer_exchange import (
    Answer,
    Hello,
    Introduction,
    decode_exchange,
    encode_answer,
    encode_hello,
    is_forward_peer,
)
from swarm.vectors import DOCUMENT

ADDRESS = bytes(range(20))
HELLO = Hello(b"tick", ADDRESS, 7, b"prov")
ANSWER = Answer(
    b"tick", b"toke", ADDRESS, 3, (Introduction(b"a" * 20, "192.0.2.1:9"), Introduction(b"b" * 20, "[::1]:9"))
)


@pytest.mark.parametrize("vector", DOCUMENT["is_forward_peer"])
def test_is_forward_peer(vector):
    local, peer = bytes.fromhex(vector["local"]), bytes.fromhex(vector["peer"])
    assert is_forward_peer(local, peer) is vector["forward"]


def test_of_two_peers_exactly_one_is_ahead():
    for number in range(200):
        one = (number * 7919).to_bytes(20, "little")
        other = (number * 104729 + 1 << number % 130).to_bytes(20, "little")
        assert is_forward_peer(one, other) != is_forward_peer(other, one)
    assert not is_forward_peer(ADDRESS, ADDRESS)


def test_round_trip():
    assert decode_exchange(encode_hello(HELLO)) == HELLO
    assert decode_exchange(encode_answer(ANSWER)) == ANSWER


def test_an_answer_to_a_stranger_is_hardly_larger_than_its_hello():
    assert len(encode_answer(Answer(b"tick", b"toke", ADDRESS, 0))) <= len(encode_hello(HELLO)) + 1


@pytest.mark.parametrize("data", [encode_hello(HELLO), encode_answer(ANSWER)])
def test_every_truncation_and_trailing_bytes(data):
    for size in range(len(data)):
        with pytest.raises(refusals.Truncated):
            decode_exchange(data[:size])
    with pytest.raises(refusals.TrailingBytes):
        decode_exchange(data + b"\0")


def test_unknown_opcode_and_indicator():
    with pytest.raises(refusals.UnknownOpcode):
        decode_exchange(b"\x70\x03")
    with pytest.raises(refusals.BadIndicator):
        decode_exchange(b"\x79\x01")
