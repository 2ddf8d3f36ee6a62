from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.model.canonical_base64 import encode_base64
from dovetail.model.errors import ReceiptError
from dovetail.receipt.format import (
    MessageRecord,
    bytes_of,
    decode_hashes,
    decode_receipt,
    encode_hashes,
    encode_receipt,
    notes_of,
    record_message,
)
from dovetail.receipt.schema import SCHEMA_FILE, encode_schema, receipt_schema
from dovetail.tlog.note import decode_base64


def test_decoding_and_encoding_give_the_same_bytes(receipts):
    for data in receipts.values():
        assert encode_receipt(decode_receipt(data)) == data


@pytest.mark.exhaustive
@given(st.text())
def test_our_spelling_of_text_is_that_of_other_encoders(text):
    assert msgspec.json.encode(text) == json.dumps(text, ensure_ascii=False).encode()


@given(st.binary(max_size=64))
def test_message_bytes_survive(raw):
    record = record_message(bytes(32), raw, None)
    assert bytes_of(record) == raw
    assert (record.text is None) != (record.bytes is None)


def test_bytes_that_are_text_must_stand_as_text():
    with pytest.raises(ReceiptError, match=r"^form: "):
        bytes_of(MessageRecord(address="00" * 32, bytes=encode_base64(b"readable")))
    with pytest.raises(ReceiptError, match=r"^form: "):
        bytes_of(MessageRecord(address="00" * 32, text="a", bytes="/w=="))


@pytest.mark.parametrize("text", ["AAB=", "AA=", "A A=", "AA==\n", "====", "AAAA=", "AA-_"])
def test_only_canonical_base64_is_read(text):
    with pytest.raises(ReceiptError, match=r"^form: it is not"):
        decode_base64(text, "it")


def test_hashes_have_32_bytes():
    assert decode_hashes(encode_hashes([b"a" * 32, b"b" * 32]), "it") == [b"a" * 32, b"b" * 32]
    with pytest.raises(ReceiptError, match="33 bytes, expected a multiple of 32"):
        decode_hashes(encode_base64(bytes(33)), "it")


def test_every_checkpoint_of_a_receipt_is_listed(receipts):
    assert len(notes_of(decode_receipt(receipts["swarm"]))) == 3


def test_the_schema_in_the_package_is_that_of_the_code():
    assert SCHEMA_FILE.read_bytes() == encode_schema()


def test_the_schema_names_every_field_of_a_real_receipt(receipts):
    definitions = receipt_schema()["$defs"]

    def check(value: dict, name: str) -> None:
        properties = definitions[name]["properties"]
        assert set(definitions[name]["required"]) <= set(value) <= set(properties)
        assert definitions[name]["additionalProperties"] is False

    for data in receipts.values():
        receipt = json.loads(data)
        check(receipt, "Delivery")
        for message in receipt["messages"]:
            check(message, "MessageRecord")
        for journal in receipt["journals"]:
            check(journal, "JournalRecord")
            for hop in journal["hops"]:
                check(hop, "HopRecord")
