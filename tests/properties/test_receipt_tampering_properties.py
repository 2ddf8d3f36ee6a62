"""Any single-bit change anywhere in a receipt makes it invalid; the independent checker says the same."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.journal.source import JournalSource
from dovetail.model.address import address_of
from dovetail.model.errors import ReceiptError
from dovetail.model.hop import Observation, Stage
from dovetail.receipt.build_evidence import build_fork, build_split_view, root_of_first
from dovetail.receipt.completeness import build_completeness
from dovetail.receipt.request_reply import build_exchange
from dovetail.receipt.verify import verify_receipt
from dovetail.receipt.witness import CosignRequest, Witness, merge_notes
from dovetail.tlog.checkpoint import Checkpoint
from dovetail.tlog.keys import Verifier
from dovetail.won.message import decode_message
from dovetail.won.signing import SigningKey
from receipt import receipt_samples as samples
from receipt.conversation_samples import NODE_KEYS, forge, speak
from receipt.exchange_samples import exchange
from receipt.independent_checker import check
from receipt.independent_conversation_checker import check_conversation
from receipt.independent_exchange_checker import check_exchange
from receipt.tampering import alterations

ALICE = Verifier(samples.ALICE, SigningKey(address_of(samples.ALICE.encode())).public.raw)
WITNESS = samples.signer_of(samples.WITNESSES[0])
TRUSTED = [*samples.verifiers(), ALICE, *NODE_KEYS]
PAIRS = {(verifier.name, verifier.public_key) for verifier in TRUSTED}


@pytest.fixture(scope="module")
def receipts(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    return [make(tmp_path_factory.mktemp(name)).build() for name, make in samples.CASES.items()]


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    """A cosigned receipt that also proves growth, and one of each of the other kinds."""
    folder = tmp_path_factory.mktemp("others")
    case = samples.pcp_case(folder / "1")
    liar = samples.pcp_case(folder / "2", before=9)
    messages = [samples.create("chat"), samples.create("other")]
    seen = [Observation(at_us=samples.T0, stage=Stage.ACCEPTED, message=m.address, raw=m.raw) for m in messages]
    said = exchange(folder / "4")
    forked = samples.write(folder / "a.journal", samples.NODE_A, seen)
    with (
        JournalSource.open(case.journals[0]) as source,
        JournalSource.open(liar.journals[0]) as other,
        JournalSource.open(forked) as node,
        JournalSource.open(said.journal) as broker,
    ):
        signed = source.latest_checkpoint()
        note = Witness(WITNESS, TRUSTED).cosign(CosignRequest(0, (), signed.note), samples.T0 // 1_000_000)
        cosigned = case.build(
            notes=[merge_notes([note], TRUSTED)],
            witnesses=[WITNESS.verifier],
            since=[Checkpoint(source.server, 5, root_of_first(5, source.node))],
        )
        return [
            cosigned,
            build_completeness(source, samples.T0 + 2, samples.T0 + 10),
            build_split_view(signed, other.latest_checkpoint(), TRUSTED, other),
            build_fork([node], (messages[0].address, messages[1].address), TRUSTED),
            speak(folder / "3", rounds=1).build(),
            build_exchange(broker, said.address("request")),
        ]


def is_accepted(data: bytes) -> bool:
    try:
        verify_receipt(data, TRUSTED)
    except ReceiptError:
        return False
    return True


def is_accepted_independently(data: bytes, check=check) -> bool:
    try:
        check(data, PAIRS)
    except Exception:
        return False
    return True


@settings(max_examples=600, deadline=None)
@given(which=st.integers(0, 2), place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_any_flipped_bit_makes_it_invalid(receipts, which, place, bit):
    data = bytearray(receipts[which])
    data[int(place * len(data))] ^= 1 << bit
    assert not is_accepted(bytes(data))


def test_the_other_kinds_are_valid_untouched(others):
    assert all(is_accepted(data) for data in others)


@settings(max_examples=600, deadline=None)
@given(which=st.integers(0, 5), place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_any_flipped_bit_makes_the_other_kinds_invalid(others, which, place, bit):
    data = bytearray(others[which])
    data[int(place * len(data))] ^= 1 << bit
    assert not is_accepted(bytes(data))


@settings(max_examples=200, deadline=None)
@given(
    which=st.integers(0, 2),
    place=st.floats(0, 1, exclude_max=True),
    inserted=st.binary(max_size=3),
    cut=st.integers(0, 3),
)
def test_any_insertion_or_cut_makes_it_invalid(receipts, which, place, inserted, cut):
    data = receipts[which]
    at = int(place * len(data))
    changed = data[:at] + inserted + data[at + cut :]
    assert is_accepted(changed) == (changed == data)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=400))
def test_arbitrary_bytes_are_refused_in_words(data):
    with pytest.raises(ReceiptError):
        verify_receipt(data, TRUSTED)


def test_the_independent_checker_agrees_on_thousands_of_receipts(receipts):
    chance = random.Random(20251115)
    checked = 0
    # most of them small, so that checking is fast
    for number, (data, flips, altered) in enumerate(zip(receipts, (1500, 100, 400), (300, 200, 500), strict=True)):
        damaged = [changed for _, changed in alterations(data, receipts[number - 1])]
        damaged = chance.sample(damaged, altered)
        for _ in range(flips):
            flipped = bytearray(data)
            flipped[chance.randrange(len(flipped))] ^= 1 << chance.randrange(8)
            damaged.append(bytes(flipped))
        for changed in [data, *damaged]:
            assert is_accepted(changed) == is_accepted_independently(changed) == (changed == data)
            checked += 1
    assert checked == 3003


def test_the_independent_checker_of_conversations_agrees(tmp_path):
    chance = random.Random(20251116)
    spoken = speak(tmp_path, rounds=1)
    data, other = spoken.build(), spoken.build(spoken.elsewhere.address)
    assert check_conversation(data, PAIRS) == list(verify_receipt(data, TRUSTED).claims)
    messages = [decode_message(message.raw) for message in verify_receipt(data, TRUSTED).messages]
    strangers = [decode_message(message.raw) for message in verify_receipt(other, TRUSTED).messages]
    damaged = [changed for _, changed in alterations(data, other)]
    tried = chance.sample(damaged, 150)
    for _ in range(100):
        flipped = bytearray(data)
        flipped[chance.randrange(len(flipped))] ^= 1 << chance.randrange(8)
        tried.append(bytes(flipped))
    # valid proofs and text for the wrong messages; some of the shorter ones are whole conversations
    tried += [forge(spoken, [m for m in messages if m is not left_out]) for left_out in messages]
    tried += [forge(spoken, [*messages, stranger]) for stranger in strangers]
    tried += [forge(spoken, [m for m in messages if said.uri not in (m.uri, m.responding_to)]) for said in spoken.said]
    verdicts = [is_accepted(changed) for changed in tried]
    assert [is_accepted_independently(changed, check_conversation) for changed in tried] == verdicts
    assert 0 < sum(verdicts) < 6


def test_the_independent_checker_of_exchanges_agrees(tmp_path):
    chance = random.Random(20251117)
    said = exchange(tmp_path)
    with JournalSource.open(said.journal) as source:
        valid = [
            build_exchange(source, said.address(name), until_us)
            for name in ("request", "reply", "earlier", "other talk")
            for until_us in (None, samples.T0 + 9600)
        ]
    tried = list(valid)
    for number, data in enumerate(valid):
        tried += chance.sample([changed for _, changed in alterations(data, valid[number - 1])], 120)
        for _ in range(100):
            flipped = bytearray(data)
            flipped[chance.randrange(len(flipped))] ^= 1 << chance.randrange(8)
            tried.append(bytes(flipped))
    verdicts = [is_accepted(changed) for changed in tried]
    assert [is_accepted_independently(changed, check_exchange) for changed in tried] == verdicts
    assert sum(verdicts) == len(valid)
    assert [check_exchange(data, PAIRS) for data in valid] == [list(verify_receipt(d, TRUSTED).claims) for d in valid]
