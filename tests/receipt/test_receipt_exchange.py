from __future__ import annotations

import json

import pytest

from counting import count_calls
from dovetail.journal.source import JournalSource
from dovetail.lake.reader import open_lake
from dovetail.lake.seal import seal_journal
from dovetail.lake.store import LocalStore
from dovetail.model.address import address_of
from dovetail.model.errors import ReceiptError
from dovetail.model.hop import Observation, Stage
from dovetail.receipt.request_reply import build_exchange
from dovetail.receipt.verify import verify_receipt
from receipt import receipt_samples as samples
from receipt.exchange_samples import exchange, frame
from receipt.tampering import alterations, encode

TRUSTED = samples.verifiers()
MAX_CALLS_A_MESSAGE = 300


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    return exchange(tmp_path_factory.mktemp("exchange"))


def build(said, name: str = "request", until_us: int | None = None) -> bytes:
    with JournalSource.open(said.journal) as source:
        return build_exchange(source, said.address(name), until_us)


@pytest.fixture(scope="module")
def statement(said):
    return build(said)


def names_of(said, proof) -> list[str]:
    names = {address_of(raw): name for name, raw in said.raws.items()}
    return [names[message.address] for message in proof.messages]


def test_the_request_and_all_that_reply_are_the_exchange(said, statement):
    proof = verify_receipt(statement, TRUSTED)
    assert names_of(said, proof) == [
        "request",
        "reply",
        "second reply",
        "other reply",
        "answer to the reply",
        "late reply",
    ]
    assert proof.claims[0].startswith(
        f"{samples.BROKER} saw 6 messages of the exchange that {said.address('request').hex()} begins from "
    )
    assert proof.claims[0].endswith(", and these are all")
    assert proof.claims[1].endswith(" with the id 00000000-0000-4000-8000-000000000002")
    assert proof.claims[-2] == (
        "3 other messages of its participants are here, 1 of them without whole bytes of a message"
    )


def test_messages_of_strangers_are_not_shown(said, statement):
    addresses = {message["address"] for message in json.loads(statement)["messages"]}
    assert said.address("between strangers").hex() not in addresses
    assert said.address("other talk").hex() in addresses


def test_a_statement_ends_where_it_says(said):
    proof = verify_receipt(build(said, until_us=samples.T0 + 8500), TRUSTED)
    assert "late reply" not in names_of(said, proof)
    assert len(proof.messages) == 5


def test_the_lake_gives_the_same(said, statement, tmp_path):
    seal_journal(said.journal, LocalStore(tmp_path / "lake"))
    (source,) = open_lake(LocalStore(tmp_path / "lake"))
    assert build_exchange(source, said.address("request")) == statement


def test_a_reply_left_out_is_missing(said, statement):
    for name in ("reply", "late reply", "other talk"):
        value = json.loads(statement)
        value["messages"] = [m for m in value["messages"] if m["address"] != said.address(name).hex()]
        with pytest.raises(ReceiptError, match=rf"^completeness: {said.address(name).hex()} is missing"):
            verify_receipt(encode(value), TRUSTED)


def test_its_bytes_left_out_are_missing(said, statement):
    value = json.loads(statement)
    for message in value["messages"]:
        if message["address"] == said.address("reply").hex():
            del message["text"]
    with pytest.raises(ReceiptError, match=r"^completeness: the bytes of [0-9a-f]+ are missing"):
        verify_receipt(encode(value), TRUSTED)


def test_a_message_of_strangers_was_added(said, statement):
    value = json.loads(statement)
    raw = said.raws["between strangers"]
    extra = {"address": address_of(raw).hex(), "text": raw.decode()}
    value["messages"][1:] = sorted([*value["messages"][1:], extra], key=lambda message: message["address"])
    with pytest.raises(ReceiptError, match=r"^completeness: [0-9a-f]+ was added"):
        verify_receipt(encode(value), TRUSTED)


def test_swapped_bytes_and_another_request_are_refused(said, statement):
    value = json.loads(statement)
    one, other = value["messages"][1:3]
    one["text"], other["text"] = other.get("text", "x"), one.get("text", "x")
    with pytest.raises(ReceiptError, match=r"^(address|completeness): "):
        verify_receipt(encode(value), TRUSTED)
    value = json.loads(statement)
    place = next(n for n, m in enumerate(value["messages"]) if m["address"] == said.address("reply").hex())
    value["messages"].insert(0, value["messages"].pop(place))
    value["messages"][1:] = sorted(value["messages"][1:], key=lambda message: message["address"])
    with pytest.raises(ReceiptError, match=r"^(completeness|claim): "):
        verify_receipt(encode(value), TRUSTED)


@pytest.mark.exhaustive
def test_every_altered_field_is_refused(said, statement):
    tried = 0
    for what, changed in alterations(statement, build(said, "reply")):
        tried += 1
        with pytest.raises(ReceiptError):
            pytest.fail(f"accepted {what}: {verify_receipt(changed, TRUSTED)}")
    assert tried > 500


@pytest.mark.exhaustive
def test_any_flipped_bit_makes_it_invalid(statement):
    for place in range(0, len(statement), 11):
        flipped = bytearray(statement)
        flipped[place] ^= 1 << place % 8
        with pytest.raises(ReceiptError):
            verify_receipt(bytes(flipped), TRUSTED)


def test_requests_that_cannot_be_shown_are_refused(said):
    with JournalSource.open(said.journal) as source:
        with pytest.raises(ReceiptError, match="no signed hop of"):
            build_exchange(source, address_of(b"never seen"))
        with pytest.raises(ReceiptError, match="the bytes of the request are not here, or are no message"):
            build_exchange(source, address_of(b"bytes that the journal never had"))
        with pytest.raises(ReceiptError, match="ends before it begins"):
            build_exchange(source, said.address("request"), samples.T0)


@pytest.mark.exhaustive
def test_a_long_chain_of_replies_in_the_worst_order_takes_linear_work(tmp_path):
    """Each replies to the one after it, so that one pass over the range finds only one more."""
    raws = [frame(1, samples.CONTROLLER, samples.AGENT)]
    raws += [frame(n, samples.AGENT, samples.CONTROLLER, n + 1 if n < 2000 else 1) for n in range(2, 2001)]
    journal = samples.write(
        tmp_path / "broker.journal",
        samples.BROKER,
        [
            Observation(
                at_us=samples.T0 + place,
                stage=Stage.ACCEPTED,
                message=address_of(raw),
                counterparts=(samples.CONTROLLER,),
                raw=raw,
            )
            for place, raw in enumerate(raws)
        ],
    )
    with JournalSource.open(journal) as source:
        data = build_exchange(source, address_of(raws[0]))
    assert len(verify_receipt(data, TRUSTED).messages) == 2000
    assert count_calls(lambda: verify_receipt(data, TRUSTED)) < 2000 * MAX_CALLS_A_MESSAGE
