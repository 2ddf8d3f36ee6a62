from __future__ import annotations

import json

import pytest

from dovetail.journal.source import JournalSource
from dovetail.journal.writer import JournalWriter
from dovetail.model.errors import ReceiptError
from dovetail.receipt.build_evidence import root_of_first
from dovetail.receipt.consistency import View, compare_views
from dovetail.receipt.verify import verify_receipt
from dovetail.tlog.checkpoint import Checkpoint
from receipt import receipt_samples as samples
from receipt.tampering import alterations, encode

TRUSTED = samples.verifiers()


@pytest.fixture
def grown(tmp_path):
    """A case, its receipt, and its receipt after the journal has grown by 500 hops."""
    case = samples.pcp_case(tmp_path)
    older = case.build()
    signer = samples.signer_of(samples.BROKER)
    with JournalWriter.open(case.journals[0], server=samples.BROKER, signer=signer, durability="relaxed") as writer:
        writer.append([samples.noise(5_000_000 + number) for number in range(500)])
        writer.checkpoint()
    return case, older


def views(data: bytes) -> tuple[View, ...]:
    return verify_receipt(data, TRUSTED).views


def test_growth_is_proven_to_whoever_kept_the_older_receipt(grown):
    case, older = grown
    (view,) = views(older)
    newer = case.build(since=[view.checkpoint])
    proof = verify_receipt(newer, TRUSTED, against=[view])
    assert proof.growth == (f"the journal of {samples.BROKER} only grew from 11 to 511 hops",)
    assert proof.claims[-1].endswith("contains it, and begins with its journal of 11 hops")
    # in reverse: the newer one has the proof for both
    assert verify_receipt(older, TRUSTED, against=views(newer)).growth == proof.growth


def test_the_same_checkpoint_is_consistent_with_itself(grown):
    _, older = grown
    assert verify_receipt(older, TRUSTED, against=views(older)).growth == (
        f"{samples.BROKER} showed the same journal of 11 hops both times",
    )


def test_without_a_proof_nothing_is_taken_on_trust(grown):
    case, older = grown
    with pytest.raises(ReceiptError, match=r"^against: no proof"):
        verify_receipt(case.build(), TRUSTED, against=views(older))


def test_a_rewritten_journal_is_found_out(grown, tmp_path):
    case, older = grown
    other = samples.pcp_case(tmp_path / "other", before=3, after=500)
    (view,) = views(older)
    lie = Checkpoint(view.checkpoint.origin, view.checkpoint.size, bytes(32))
    with pytest.raises(ReceiptError, match=r"^consistency: .* did not only grow"):
        case.build(since=[lie])
    newer = other.build(since=[_root_at(other, 11)])
    with pytest.raises(ReceiptError, match=r"^against: .* rewrote its journal between 11 and 507 hops"):
        verify_receipt(newer, TRUSTED, against=[View(lie)])


def test_two_journals_of_one_size_are_found_out():
    one, other = (View(Checkpoint("pcp://b/server", 5, bytes([n]) * 32)) for n in (1, 2))
    with pytest.raises(ReceiptError, match=r"^against: .* two different journals of 5 hops"):
        compare_views([one], [other])


def test_nothing_in_common_is_not_agreement(receipts):
    with pytest.raises(ReceiptError, match=r"^against: the two have no server in common"):
        verify_receipt(receipts["pcp"], TRUSTED, against=views(receipts["swarm"]))


def test_every_altered_field_of_the_proof_is_refused(grown):
    case, older = grown
    newer = case.build(since=[view.checkpoint for view in views(older)])
    changed = [(what, data) for what, data in alterations(newer, older) if "since" in what]
    assert len(changed) > 20
    for what, data in changed:
        with pytest.raises(ReceiptError):
            pytest.fail(f"accepted {what}: {verify_receipt(data, TRUSTED)}")


def test_a_proof_to_another_size_is_refused(grown):
    case, older = grown
    value = json.loads(case.build(since=[view.checkpoint for view in views(older)]))
    value["journals"][0]["since"]["size"] = 600
    with pytest.raises(ReceiptError, match=r"^consistency: "):
        verify_receipt(encode(value), TRUSTED)


def _root_at(case: samples.Case, size: int) -> Checkpoint:
    with JournalSource.open(case.journals[0]) as source:
        return Checkpoint(source.server, size, root_of_first(size, source.node))
