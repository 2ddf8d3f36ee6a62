"""UEP-12 pulls and lists against the vectors."""

from __future__ import annotations

import pytest

from dovetail.swarm import refusals
from dovetail.swarm.queries import (
    MAX_HASHES,
    PullHashes,
    PullRange,
    RangeList,
    decode_message,
    encode_pull_hashes,
    encode_pull_range,
    encode_range_list,
)
from swarm.vectors import of_layer, raw

GOOD = [vector for vector in of_layer("uep12") if vector["expect"] == "ok" and vector["opcode"] != 0x10]
BAD = [vector for vector in of_layer("uep12") if vector["expect"] not in ("ok", "BadProofOfWork")]


@pytest.mark.parametrize("vector", GOOD, ids=lambda vector: vector["name"])
def test_pull_and_list_messages_round_trip(vector):
    data = bytes.fromhex(vector["hex"])
    message = decode_message(data)
    fields = vector["fields"]
    match message:
        case PullHashes(hashes):
            assert [item.hex() for item in hashes] == fields["hashes"]
            assert encode_pull_hashes(hashes) == data
        case PullRange(ticket, start_ms, end_ms):
            assert (ticket.hex(), start_ms, end_ms) == (fields["ticket"], fields["start_time"], fields["end_time"])
            assert encode_pull_range(ticket, start_ms, end_ms) == data
        case RangeList(ticket, start_ms, end_ms, hashes):
            assert (ticket.hex(), start_ms, end_ms) == (fields["ticket"], fields["start_time"], fields["end_time"])
            assert [item.hex() for item in hashes] == fields["hashes"]
            assert encode_range_list(ticket, start_ms, end_ms, hashes) == data
        case other:
            pytest.fail(f"decoded to {other}")


@pytest.mark.parametrize("vector", BAD, ids=lambda vector: vector["name"])
def test_malformed_messages_are_refused_with_the_class_of_the_vector(vector):
    with pytest.raises(refusals.Refusal) as caught:
        decode_message(bytes.fromhex(vector["hex"]))
    assert type(caught.value).__name__ == vector["expect"]
    assert caught.value.reason is type(caught.value).code


@pytest.mark.parametrize("name", ["pull_hash_1", "pull_range", "list_0"])
def test_every_truncation_is_refused(name):
    data = raw(name)
    for size in range(len(data)):
        with pytest.raises(refusals.Truncated):
            decode_message(data[:size])
    with pytest.raises(refusals.TrailingBytes):
        decode_message(data + b"\0")


def test_255_hashes_are_accepted_and_256_cannot_be_sent():
    hashes = [number.to_bytes(8) for number in range(MAX_HASHES)]
    assert decode_message(encode_pull_hashes(hashes)) == PullHashes(tuple(hashes))
    assert decode_message(encode_range_list(b"abcd", 1, 2, hashes)) == RangeList(b"abcd", 1, 2, tuple(hashes))
    with pytest.raises(ValueError, match="256"):
        encode_pull_hashes([*hashes, b"12345678"])


def test_reversed_list_is_refused():
    with pytest.raises(refusals.BadTimeRange):
        decode_message(encode_range_list(b"abcd", 2, 1, []))
