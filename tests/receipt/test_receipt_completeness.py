from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.journal.source import JournalSource
from dovetail.journal.writer import JournalWriter
from dovetail.model.address import address_of
from dovetail.model.errors import ReceiptError
from dovetail.model.hop import Observation, Stage
from dovetail.receipt.completeness import build_completeness
from dovetail.receipt.verify import verify_receipt
from receipt import receipt_samples as samples
from receipt.tampering import alterations, encode

TRUSTED = samples.verifiers()
HOPS = 300


@pytest.fixture(scope="module")
def journal(tmp_path_factory):
    """A hop every ten microseconds, two at each time."""
    path = tmp_path_factory.mktemp("complete") / "broker.journal"
    signer = samples.signer_of(samples.BROKER)
    with JournalWriter.open(path, server=samples.BROKER, signer=signer, durability="relaxed") as writer:
        for number in range(HOPS // 2):
            raw = b"message %d" % number
            writer.append(
                [
                    Observation(
                        at_us=samples.T0 + 10 * number,
                        stage=Stage.DELIVERED,
                        message=address_of(raw),
                        counterparts=("pcp://a/agent", "pcp://b/agent"),
                        raw=raw,
                    )
                ]
            )
        writer.checkpoint()
    return path


def build(journal, since: int, until: int) -> bytes:
    with JournalSource.open(journal) as source:
        return build_completeness(source, samples.T0 + since, samples.T0 + until)


@settings(max_examples=40, deadline=None)
@given(since=st.integers(-20, 1520), length=st.integers(1, 300))
def test_exactly_the_hops_of_the_stretch_are_proven(journal, since, length):
    proof = verify_receipt(build(journal, since, since + length), TRUSTED)
    expected = [n for n in range(HOPS) if since <= 10 * (n // 2) < since + length]
    assert [hop.seq for hop in proof.hops] == expected
    assert f"saw {len(expected)} hops of {len({n // 2 for n in expected})} messages" in proof.claims[0]
    assert any("came later" in limit for limit in proof.not_proven) == (since + length > 10 * (HOPS // 2 - 1))


def test_every_altered_field_is_refused(journal):
    data, other = build(journal, 95, 133), build(journal, 500, 540)
    for what, changed in alterations(data, other):
        with pytest.raises(ReceiptError):
            pytest.fail(f"accepted {what}: {verify_receipt(changed, TRUSTED)}")


@pytest.mark.parametrize("cut", ["first", "last", "middle"])
def test_a_left_out_hop_is_noticed_even_if_all_words_fit(journal, cut):
    value = json.loads(build(journal, 95, 133))
    hops = value["hops"]
    if cut == "first":
        value["first"] += 1
        del hops[0]
    else:
        del hops[-1 if cut == "last" else 3]
    with pytest.raises(ReceiptError, match=r"^(inclusion|completeness|claim): "):
        verify_receipt(encode(value), TRUSTED)


def test_a_range_that_is_proven_but_too_short_is_not_complete(journal):
    """The same hops, with a claim about a longer range than they cover."""
    value = json.loads(build(journal, 95, 133))
    value["until"] += 1000
    with pytest.raises(ReceiptError, match=r"^completeness: .* missing at the end"):
        verify_receipt(encode(value), TRUSTED)
    value = json.loads(build(journal, 95, 133))
    value["from"] -= 1000
    with pytest.raises(ReceiptError, match=r"^completeness: .* missing at the start"):
        verify_receipt(encode(value), TRUSTED)


def test_an_empty_stretch_is_a_statement_too(journal):
    proof = verify_receipt(build(journal, 101, 109), TRUSTED)
    assert proof.hops == ()
    assert "saw 0 hops of 0 messages" in proof.claims[0]


def test_too_long_and_backward_stretches_are_refused(journal):
    with pytest.raises(ReceiptError, match="ends before it begins"):
        build(journal, 5, 5)


def test_a_flipped_bit_makes_it_invalid(journal):
    data = build(journal, 95, 133)
    for place in range(0, len(data), 7):
        flipped = bytearray(data)
        flipped[place] ^= 1 << place % 8
        with pytest.raises(ReceiptError):
            verify_receipt(bytes(flipped), TRUSTED)
