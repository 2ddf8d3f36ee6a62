"""Decoders over Arrow batches, without Spark."""

from __future__ import annotations

import uuid
from types import MappingProxyType

import pyarrow as pa

from audit.audit_worlds import A, B, pcp_frame, won_create, won_response, won_text
from dovetail.audit.decode import DECODED, DECODER_INPUT, decode_by
from dovetail.audit.fabrics import AUDITS
from dovetail.model.address import address_of
from dovetail.model.fabric import Agreement
from dovetail.model.times import LAST_US
from dovetail.swarm.content import MAX_TIMESTAMP_MS, Content, Reference, encode_content, expiration_ms
from dovetail.won.signing import SIGNATURE_DOMAIN
from won.won_samples import ALICE, ALICE_CHAT, KEYS, NODE_A, NODE_B

T_MS = 1_763_236_800_123
BY_NAME = {audit.name: audit for audit in AUDITS}


def batch_of(fabric, raws, community=""):
    columns = {
        "fabric": [fabric] * len(raws),
        "digest": [bytes(address_of(raw)) for raw in raws],
        "raw": raws,
        "size": pa.array([len(raw) for raw in raws], pa.int64()),
        "community": [community] * len(raws),
        "work_valid": pa.nulls(len(raws), pa.bool_()),
    }
    return pa.RecordBatch.from_pydict({name: columns[name] for name in DECODER_INPUT})


def decode(fabric, *raws, community="", given=MappingProxyType({})):
    audit = BY_NAME[fabric]
    (batch,) = decode_by(audit.fabric, audit.agreed(given), [batch_of(fabric, raws, community)])
    assert batch.schema == DECODED
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


def test_times_that_have_no_date_are_moved_to_the_last_one():
    far = won_text("hello", 10**18 - 1)
    (row,) = decode("won", far.raw)
    assert (row["reject"], row["created_us"]) == (None, LAST_US)
    edges = [Reference(bytes(8), -5)]
    far = Content(timestamp_ms=MAX_TIMESTAMP_MS, ttl_epochs=3, references=tuple(edges), payload=b"", pow_nonce=0)
    (row,) = decode("swarm", encode_content(far))
    assert [row["created_us"], row["expires_us"], row["links"][0]["parent_expires_us"]] == [LAST_US] * 3


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


def test_the_agreement_is_that_of_the_community():
    given = {"slow": Agreement(epoch_ms=3_600_000, work_target=1)}
    (row,) = decode("swarm", swarm_raw(), community="slow", given=given)
    assert (row["expires_us"], row["work_valid"]) == (expiration_ms(T_MS, 3, 3_600_000) * 1000, False)
    (row,) = decode("swarm", swarm_raw(), community="other", given=given)
    assert row["expires_us"] == expiration_ms(T_MS, 3, 60_000) * 1000


def test_fabrics_without_communities_read_without_agreements():
    assert BY_NAME["pcp"].agreed({"": Agreement(epoch_ms=1, work_target=1)}) == {}
