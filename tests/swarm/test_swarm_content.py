"""UEP-12 content messages against the vectors, clause by clause."""

from __future__ import annotations

import hashlib

import msgspec
import pytest

from dovetail.swarm import refusals
from dovetail.swarm.content import (
    FIXED_BYTES,
    FLAGS_OFFSET,
    MAX_CONTENT_BYTES,
    OPCODES,
    POW_TARGET,
    Content,
    Reference,
    check_work,
    decode_content,
    decode_header,
    encode_content,
    epoch_diff_of,
    expiration_ms,
    latest_referee_expiration_ms,
    message_address,
    with_nonce,
    work_of,
    work_preimage,
)
from swarm.vectors import DOCUMENT, named, of_layer, raw

GOOD = [vector for vector in of_layer("uep12") if vector["expect"] == "ok" and vector["opcode"] == 0x10]
BAD_WORK = [vector for vector in of_layer("uep12") if vector["expect"] == "BadProofOfWork"]


@pytest.mark.parametrize("vector", GOOD, ids=lambda vector: vector["name"])
def test_content_message_fields_hash_work_and_expiration(vector):
    data = bytes.fromhex(vector["hex"])
    content = decode_content(data)
    fields = vector["fields"]
    assert content.pow_nonce == fields["pow_nonce"]
    assert content.timestamp_ms == fields["timestamp"]
    assert content.ttl_epochs == fields["ttl_epoch"]
    assert content.reserved == fields["reserved"]
    assert [(edge.msg_hash.hex(), edge.epoch_diff) for edge in content.references] == [
        (edge["msg_hash"], edge["epoch_diff"]) for edge in fields["references"]
    ]
    assert content.payload.hex() == fields["payload_hex"]
    assert message_address(data)[:8].hex() == vector["msg_hash"]
    assert work_preimage(data).hex() == vector["work_preimage"]
    assert work_of(data).hex() == vector["work"]
    assert expiration_ms(content.timestamp_ms, content.ttl_epochs, 60_000) == vector["expiration"]
    assert encode_content(content) == data
    check_work(data)


@pytest.mark.parametrize("vector", BAD_WORK, ids=lambda vector: vector["name"])
def test_anti_spamming_wrong_work_is_refused(vector):
    data = bytes.fromhex(vector["hex"])
    decode_content(data)
    assert work_of(data).hex() == vector["work"]
    with pytest.raises(refusals.BadProofOfWork):
        check_work(data)


def test_anti_spamming_target_is_a_hundred_thousandth():
    assert int(DOCUMENT["config"]["pow_target"], 16) == POW_TARGET


@pytest.mark.parametrize("vector", DOCUMENT["epoch_diff"])
def test_epoch_diff_floors_and_saturates(vector):
    found = epoch_diff_of(vector["message_expiration"], vector["referee_expiration"], vector["epoch_ms"])
    assert found == vector["epoch_diff"]
    assert found.to_bytes(2, "little", signed=True).hex() == vector["wire"]


@pytest.mark.parametrize(
    ("epochs", "expected"),
    [
        (0x7FFE, 0x7FFE),
        (0x7FFF, 0x7FFF),
        (0x8000, 0x7FFF),
        (0xFFFF, 0x7FFF),
        (-0x7FFF, -0x7FFF),
        (-0x8000, -0x8000),
        (-0x8001, -0x8000),
        (-0xFFFF, -0x8000),
    ],
)
def test_epoch_diff_that_overflows_16_bits_is_saturated(epochs, expected):
    referee_ms = 10**13
    message_ms = referee_ms + epochs * 60_000
    assert epoch_diff_of(message_ms, referee_ms, 60_000) == expected
    latest_ms = latest_referee_expiration_ms(message_ms, expected, 60_000)
    assert latest_ms is None or latest_ms >= referee_ms
    assert (latest_ms is None) == (expected == -0x8000)


@pytest.mark.parametrize("vector", DOCUMENT["epoch_diff"])
def test_epoch_diff_never_lets_a_live_referee_be_skipped(vector):
    latest = latest_referee_expiration_ms(vector["message_expiration"], vector["epoch_diff"], vector["epoch_ms"])
    assert latest is None or latest >= vector["referee_expiration"]


def test_epoch_diff_saturated_below_says_nothing_about_the_referee():
    assert latest_referee_expiration_ms(0, -0x8000, 60_000) is None


@pytest.mark.parametrize("name", ["c0_text", "c3", "c1_1400"])
def test_every_truncation_of_the_fixed_part_and_references_is_refused(name):
    data = raw(name)
    end = FIXED_BYTES + 10 * named(name)["fields"]["msg_refer_count"]
    for size in range(end):
        with pytest.raises(refusals.Truncated):
            decode_content(data[:size])
    assert decode_content(data[:end]).payload == b""


@pytest.mark.parametrize("version", [0, 4, 6, 255])
def test_version_is_judged_before_the_rest_of_the_fixed_part(version):
    with pytest.raises(refusals.UnsupportedVersion):
        decode_content(bytes([0x79, 0x10, version]))


@pytest.mark.parametrize("count", [5, 6, 7])
def test_reference_counts_five_to_seven_are_refused_before_the_references(count):
    data = bytearray(raw("c0_text"))
    data[19] = count
    with pytest.raises(refusals.BadReferenceCount):
        decode_content(bytes(data))


def test_largest_message_fits_and_one_byte_more_is_refused():
    content = Content(timestamp_ms=1, ttl_epochs=1, payload=bytes(MAX_CONTENT_BYTES - FIXED_BYTES))
    data = encode_content(content)
    assert decode_content(data) == content
    with pytest.raises(refusals.TooLarge):
        decode_content(data + b"\0")
    with pytest.raises(ValueError, match="11257"):
        encode_content(Content(timestamp_ms=1, ttl_epochs=1, payload=bytes(MAX_CONTENT_BYTES - FIXED_BYTES + 1)))


def test_encode_refuses_what_the_wire_cannot_carry():
    edge = Reference(b"12345678", 0)
    for content in (
        Content(timestamp_ms=1 << 48, ttl_epochs=1),
        Content(timestamp_ms=-1, ttl_epochs=1),
        Content(timestamp_ms=1, ttl_epochs=65536),
        Content(timestamp_ms=1, ttl_epochs=1, references=(edge,) * 5),
    ):
        with pytest.raises(ValueError, match="expected"):
            encode_content(content)


def test_reserved_bits_are_kept_hashed_and_ignored():
    data = raw("c0_reserved")
    content = decode_content(data)
    assert (content.reserved, content.references) == (21, ())
    cleared = bytearray(data)
    cleared[19] = 0
    assert hashlib.sha256(cleared).digest() != message_address(data)


def test_a_composed_message_has_no_reserved_bits():
    assert encode_content(Content(timestamp_ms=1, ttl_epochs=1))[FLAGS_OFFSET] == 0
    reference = Reference(b"12345678", 0)
    assert encode_content(Content(timestamp_ms=1, ttl_epochs=1, references=(reference,) * 3))[FLAGS_OFFSET] == 3


def test_the_largest_values_of_every_field_are_encoded():
    largest = Content(
        timestamp_ms=(1 << 48) - 1,
        ttl_epochs=0xFFFF,
        references=(Reference(b"12345678", -0x8000),) * 4,
        pow_nonce=(1 << 64) - 1,
        reserved=31,
        payload=bytes(MAX_CONTENT_BYTES - FIXED_BYTES - 40),
    )
    assert decode_content(encode_content(largest)) == largest
    with pytest.raises(ValueError, match=r"message of 11257 bytes, expected at most 11256"):
        encode_content(msgspec.structs.replace(largest, payload=largest.payload + b"x"))
    smallest = Content(timestamp_ms=0, ttl_epochs=0)
    assert decode_content(encode_content(smallest)) == smallest


def test_the_header_is_judged_before_the_length_of_the_rest():
    assert [decode_header(bytes((0x79, opcode))) for opcode in OPCODES] == [0x10, 0x11, 0x20, 0x21]
    with pytest.raises(refusals.BadIndicator):
        decode_header(b"\x78\x10")
    with pytest.raises(refusals.UnknownOpcode):
        decode_header(b"\x79\x12")
    assert decode_header(b"\x79\x10" + bytes(MAX_CONTENT_BYTES - 2)) == 0x10
    with pytest.raises(refusals.TooLarge):
        decode_header(b"\x78\x12" + bytes(MAX_CONTENT_BYTES - 1))


@pytest.mark.parametrize("name", ["pull_hash_1", "pull_range", "list_0"])
def test_another_opcode_is_no_content_message(name):
    with pytest.raises(refusals.UnknownOpcode):
        decode_content(raw(name))


def test_another_nonce_changes_nothing_else():
    message = encode_content(Content(timestamp_ms=1, ttl_epochs=1, payload=b"payload", pow_nonce=3))
    assert decode_content(with_nonce(message, 2**63 + 7)) == msgspec.structs.replace(
        decode_content(message), pow_nonce=2**63 + 7
    )
