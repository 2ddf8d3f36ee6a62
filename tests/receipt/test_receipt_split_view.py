from __future__ import annotations

import json

import pytest

from dovetail.journal.source import JournalSource
from dovetail.model.errors import ReceiptError
from dovetail.receipt.build_evidence import build_split_view, root_of_first
from dovetail.receipt.verify import verify_receipt
from dovetail.tlog.checkpoint import Checkpoint, sign_checkpoint
from receipt import receipt_samples as samples
from receipt.tampering import alterations, encode

TRUSTED = samples.verifiers()
SIGNER = samples.signer_of(samples.BROKER)


def signed(size: int, mark: int):
    return sign_checkpoint(Checkpoint(samples.BROKER, size, bytes([mark]) * 32), SIGNER)


@pytest.fixture
def rewritten(tmp_path):
    """Two journals signed by one broker: the second has other first hops, and more."""
    first = samples.pcp_case(tmp_path / "1", before=3, after=4)
    second = samples.pcp_case(tmp_path / "2", before=9, after=90)
    return first.journals[0], second.journals[0]


def test_two_roots_for_one_size_are_evidence():
    proof = verify_receipt(build_split_view(signed(7, 2), signed(7, 1), TRUSTED), TRUSTED)
    assert proof.kind == "split view"
    assert proof.claims == (
        f"{samples.BROKER} signed two different journals of 7 hops, with the roots {'01' * 32} and {'02' * 32}",
    )


def test_a_rewritten_journal_is_evidence(rewritten):
    with JournalSource.open(rewritten[0]) as first, JournalSource.open(rewritten[1]) as second:
        data = build_split_view(first.latest_checkpoint(), second.latest_checkpoint(), TRUSTED, second)
    proof = verify_receipt(data, samples.verifiers(samples.BROKER))
    assert proof.claims[0].startswith(f"{samples.BROKER} signed a journal of 11 hops with the root ")
    assert "a journal of 103 hops whose first 11 have the root" in proof.claims[0]


def test_honest_growth_is_no_evidence(rewritten):
    with JournalSource.open(rewritten[1]) as source:
        latest = source.latest_checkpoint()
        older = sign_checkpoint(Checkpoint(samples.BROKER, 40, root_of_first(40, source.node)), SIGNER)
        with pytest.raises(ReceiptError, match="do not contradict"):
            build_split_view(older, latest, TRUSTED, source)
        with pytest.raises(ReceiptError, match="do not contradict"):
            build_split_view(latest, latest, TRUSTED)
        with pytest.raises(ReceiptError, match="journal of the larger is needed"):
            build_split_view(older, latest, TRUSTED)


def test_the_smaller_journal_is_not_enough(rewritten):
    with (
        JournalSource.open(rewritten[0]) as first,
        JournalSource.open(rewritten[1]) as second,
        pytest.raises(ReceiptError, match=r"a checkpoint of 103 hops of .*, of which 11 are signed here"),
    ):
        build_split_view(first.latest_checkpoint(), second.latest_checkpoint(), TRUSTED, first)


def test_nobody_can_be_accused_without_his_key():
    stranger = samples.signer_of("pcp://stranger/server")
    data = build_split_view(signed(7, 2), signed(7, 1), TRUSTED)
    with pytest.raises(ReceiptError, match=r"^trust: "):
        verify_receipt(data, [stranger.verifier])
    with pytest.raises(ReceiptError, match="two servers"):
        build_split_view(
            signed(7, 1),
            sign_checkpoint(Checkpoint(stranger.name, 7, bytes(32)), stranger),
            [*TRUSTED, stranger.verifier],
        )


def test_every_altered_field_is_refused(rewritten):
    with JournalSource.open(rewritten[0]) as first, JournalSource.open(rewritten[1]) as second:
        data = build_split_view(first.latest_checkpoint(), second.latest_checkpoint(), TRUSTED, second)
    other = build_split_view(signed(7, 2), signed(7, 1), TRUSTED)
    for one, another in ((data, other), (other, data)):
        for what, changed in alterations(one, another):
            with pytest.raises(ReceiptError):
                pytest.fail(f"accepted {what}: {verify_receipt(changed, TRUSTED)}")


def test_a_true_proof_against_an_honest_server_is_refused(rewritten):
    """A proof of honest growth, presented as an accusation."""
    with JournalSource.open(rewritten[0]) as first, JournalSource.open(rewritten[1]) as second:
        value = json.loads(build_split_view(first.latest_checkpoint(), second.latest_checkpoint(), TRUSTED, second))
        honest = sign_checkpoint(Checkpoint(samples.BROKER, 11, root_of_first(11, second.node)), SIGNER)
    value["first"]["checkpoint"] = honest.note
    with pytest.raises(ReceiptError, match=r"^split view: the two checkpoints do not contradict"):
        verify_receipt(encode(value), TRUSTED)
