"""Decoders over Arrow batches, without Spark."""

from __future__ import annotations

import random
import uuid

import pyarrow as pa
import pytest

from audit.audit_worlds import A, B, pcp_frame, won_create, won_response, won_text
from dovetail.audit.decode import DECODED, decoders
from dovetail.audit.decode_swarm import DECODED_SWARM, HEAD_BYTES, SwarmDecoder, decode_swarm
from dovetail.model.address import address_of
from dovetail.model.errors import RemoteProtocolError
from dovetail.swarm.content import Content, Reference, decode_content, encode_content, expiration_ms
from dovetail.won.signing import SIGNATURE_DOMAIN
from won.won_samples import ALICE, ALICE_CHAT, KEYS, NODE_A, NODE_B

T_MS = 1_763_236_800_123


def batch_of(fabric, raws, swarm=""):
    return pa.RecordBatch.from_pydict(
        {
            "fabric": [fabric] * len(raws),
            "digest": [bytes(address_of(raw)) for raw in raws],
            "raw": [raw[:HEAD_BYTES] if fabric == "swarm" else raw for raw in raws],
            "size": pa.array([len(raw) for raw in raws], pa.int64()),
            "swarm": [swarm] * len(raws),
            "work_valid": pa.array([True] * len(raws) if fabric == "swarm" else [None] * len(raws), pa.bool_()),
        }
    )


def decode(fabric, *raws):
    decoder = decoders()[fabric]
    (batch,) = decoder([batch_of(fabric, raws)])
    assert batch.schema == (DECODED_SWARM if fabric == "swarm" else DECODED)
    return batch.to_pylist()


def test_a_pcp_message_of_version_1():
    raw = pcp_frame(7, [B, "pcp://*/agent"], reply_to=3)
    (row,) = decode("pcp", raw)
    assert (row["reject"], row["version"], row["sender"], row["recipients"]) == (None, "1", A, [B, "pcp://*/agent"])
    assert row["key"] == uuid.UUID(int=7).bytes
    assert row["message"] == address_of(raw)
    assert [(link["parent"], link["relation"]) for link in row["links"]] == [(uuid.UUID(int=3).bytes, "in_reply_to")]


def test_pcp_bytes_that_do_not_decode_are_rejected_and_stop_nothing():
    good = pcp_frame(1, [B])
    rows = decode("pcp", b"", b"\x01", good, b"{}", b"\xff\xfe", good[:40])
    assert [row["reject"] for row in rows] == [
        "malformed",
        "malformed",
        None,
        "invalid_schema",
        "malformed",
        "malformed",
    ]
    assert all(row["detail"] for row in rows if row["reject"])


def test_a_won_message_with_its_links_and_signature():
    message = won_text("hello", T_MS)
    first = won_response(message, NODE_A, T_MS + 1, first=True)
    second = won_response(message, NODE_B, T_MS + 2, first=False, previous=[first.uri])
    row = decode("won", second.raw)[0]
    assert (row["reject"], row["address_valid"], row["claims_valid"]) == (None, True, True)
    assert [(link["parent"], link["relation"]) for link in row["links"]] == [
        (message.address, "responding_to"),
        (first.address, "previous"),
    ]
    assert KEYS[NODE_B].public.verifies(row["signature"], SIGNATURE_DOMAIN + row["signed_digest"])


def test_a_create_message_publishes_its_key():
    (row,) = decode("won", won_create(ALICE, ALICE_CHAT, T_MS).raw)
    assert (row["key_owner"], row["public_key"]) == (ALICE, KEYS[ALICE].public.raw)


def test_won_bytes_under_another_name_have_another_address():
    message = won_text("hello", T_MS)
    other = won_text("other", T_MS)
    raw = message.raw.replace(message.uri.encode(), other.uri.encode())
    (row,) = decode("won", raw)
    assert row["reject"] is None
    assert row["address_valid"] is False


def test_won_bytes_that_do_not_decode():
    assert [row["reject"] for row in decode("won", b"", b"<a> <b> .")] == ["malformed", "malformed"]


def swarm_raw(references=(), payload=b"x", ttl=3, **fields):
    return encode_content(
        Content(timestamp_ms=T_MS, ttl_epochs=ttl, references=tuple(references), payload=payload, **fields)
    )


def test_a_swarm_message():
    edges = [Reference(bytes([i] * 8), diff) for i, diff in enumerate((0, -5, 7, -0x8000))]
    (row,) = decode("swarm", swarm_raw(edges))
    expires_ms = expiration_ms(T_MS, 3, 60_000)
    assert (row["reject"], row["created_us"], row["expires_us"]) == (None, T_MS * 1000, expires_ms * 1000)
    assert [link["parent"] for link in row["links"]] == [edge.msg_hash for edge in edges]
    assert [link["parent_expires_us"] for link in row["links"]] == [
        expires_ms * 1000,
        (expires_ms + 5 * 60_000) * 1000,
        (expires_ms - 7 * 60_000) * 1000,
        None,
    ]


def test_epochs_are_those_of_the_swarm():
    (batch,) = SwarmDecoder({"": 60_000, "slow": 3_600_000})([batch_of("swarm", [swarm_raw()], swarm="slow")])
    assert batch.to_pylist()[0]["expires_us"] == expiration_ms(T_MS, 3, 3_600_000) * 1000


def test_the_decoder_by_columns_agrees_with_the_codec_on_any_bytes():
    rng = random.Random(3)
    good = swarm_raw([Reference(b"12345678", 1)])
    raws = [
        b"",
        b"y",
        b"\x79\x10",
        good,
        good[:25],
        good[:20],
        swarm_raw(payload=bytes(11_000)),
        b"\x79\x10\x05" + bytes(12_000),
    ]
    for _ in range(400):
        raw = bytearray(good)
        for _ in range(rng.randrange(1, 4)):
            raw[rng.choice([0, 1, 2, 19, rng.randrange(len(raw))])] = rng.randrange(256)
        raws.append(bytes(raw[: rng.randrange(len(raw) + 1)]))
    for raw, row in zip(raws, decode("swarm", *raws), strict=True):
        reason, content = read_with_codec(raw)
        assert row["reject"] == reason, raw.hex()
        if content is not None:
            assert row["created_us"] == content.timestamp_ms * 1000
            assert [link["parent"] for link in row["links"]] == [edge.msg_hash for edge in content.references]


def read_with_codec(raw):
    try:
        return None, decode_content(raw)
    except RemoteProtocolError as error:
        return error.reason.value, None


def test_an_empty_batch_gives_nothing():
    assert list(decode_swarm([batch_of("swarm", [])])) == []


@pytest.mark.parametrize("offset", [0, 1, 3])
def test_a_sliced_batch_is_read_at_its_own_place(offset):
    raws = [swarm_raw(payload=bytes([number])) for number in range(5)]
    (batch,) = decode_swarm([batch_of("swarm", raws).slice(offset)])
    assert batch.num_rows == 5 - offset
    assert {row["created_us"] for row in batch.to_pylist()} == {T_MS * 1000}
