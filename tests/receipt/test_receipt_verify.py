from __future__ import annotations

import json
import subprocess
import sys

import pytest

from dovetail.model.errors import ReceiptError
from dovetail.model.hop import Relation, Stage
from dovetail.receipt.format import MAX_RECEIPT_BYTES
from dovetail.receipt.proof import Policy
from dovetail.receipt.verify import verify_receipt
from receipt import receipt_samples as samples
from receipt.independent_checker import check
from receipt.tampering import alterations, encode

TRUSTED = samples.verifiers()
PAIRS = {(verifier.name, verifier.public_key) for verifier in TRUSTED}


def assert_refused(data: bytes, step: str, *, trusted=TRUSTED, policy: Policy | None = None) -> None:
    with pytest.raises(ReceiptError, match=f"^{step}: "):
        verify_receipt(data, trusted, policy)


def test_a_pcp_receipt_tells_each_recipient_and_the_refusal(receipts):
    proof = verify_receipt(receipts["pcp"], TRUSTED)
    assert proof.fabric == "pcp"
    assert [(hop.stage, hop.counterpart) for hop in proof.hops] == [
        (Stage.ACCEPTED, samples.CONTROLLER),
        (Stage.DELIVERED, samples.AGENT),
        (Stage.DELIVERED, f"{samples.AGENT}2"),
        (Stage.UNDELIVERABLE, f'{samples.AGENT}"3\n'),
    ]
    assert proof.messages[0].raw == samples.pcp_message()
    assert proof.claims[2] == (
        'pcp://broker.example/server handed the message over to the connection of "pcp://agent7.example/agent" '
        "at 2025-11-15T20:00:00.000009Z"
    )
    assert proof.claims[-1] == (
        "pcp://broker.example/server commits to this: its signed journal of 11 hops contains it"
    )
    assert any("received" in limit for limit in proof.not_proven)


def test_a_won_receipt_binds_both_responses_at_both_nodes(receipts):
    m, s1, s2 = samples.won_chain()
    proof = verify_receipt(receipts["won"], TRUSTED)
    assert proof.subject == m.address
    assert {(r.address, r.relation) for r in proof.messages[1:]} == {
        (s1.address, Relation.RESPONDING_TO),
        (s2.address, Relation.RESPONDING_TO),
    }
    assert [signatory.server for signatory in proof.signatories] == [samples.NODE_A, samples.NODE_B]
    assert (samples.NODE_B, Stage.CREATED, s2.address) in {(h.server, h.stage, h.message) for h in proof.hops}


def test_a_swarm_receipt_shows_who_held_it(receipts):
    proof = verify_receipt(receipts["swarm"], TRUSTED)
    holders = {hop.server for hop in proof.hops if hop.stage in (Stage.CREATED, Stage.ACCEPTED)}
    assert holders == set(samples.PEERS)


@pytest.mark.exhaustive
@pytest.mark.parametrize("fabric", samples.CASES)
def test_every_altered_field_is_refused(receipts, fabric):
    other = {"pcp": "swarm", "won": "pcp", "swarm": "won"}[fabric]
    count = 0
    for what, data in alterations(receipts[fabric], receipts[other]):
        count += 1
        with pytest.raises(ReceiptError, match=r"^[a-z]+: "):
            pytest.fail(f"accepted {what}: {verify_receipt(data, TRUSTED)}")
    assert count > 300


def test_parts_of_another_receipt_of_the_same_server_are_refused(tmp_path):
    first, second = samples.pcp_case(tmp_path / "1"), samples.pcp_case(tmp_path / "2", before=9)
    for what, data in alterations(first.build(), second.build()):
        with pytest.raises(ReceiptError):
            pytest.fail(f"accepted {what}: {verify_receipt(data, TRUSTED)}")


@pytest.mark.parametrize("fabric", samples.CASES)
def test_the_independent_checker_agrees_on_valid_receipts(receipts, fabric):
    assert check(receipts[fabric], PAIRS) == list(verify_receipt(receipts[fabric], TRUSTED).claims)


def test_the_same_name_with_another_key_is_not_trusted(receipts):
    foreign = samples.signer_of("pcp://elsewhere/server").verifier
    false_key = type(foreign)(samples.BROKER, foreign.public_key)
    assert_refused(receipts["pcp"], "trust", trusted=[false_key])
    assert_refused(receipts["pcp"], "trust", trusted=[])


def test_one_untrusted_node_of_two_is_enough_to_refuse(receipts):
    assert_refused(receipts["won"], "trust", trusted=samples.verifiers(samples.NODE_A))


def test_hops_from_the_future_are_refused(receipts):
    verify_receipt(receipts["pcp"], TRUSTED, Policy(now_us=samples.T0 - 299 * samples.SECOND))
    assert_refused(receipts["pcp"], "time", policy=Policy(now_us=samples.T0 - 301 * samples.SECOND))


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xfe",
        b"null",
        b"[]",
        b"{}",
        b'"text"',
        b"[" * 1_000_000,
        b'{"receipt":' * 100_000,
        b'{"receipt":"delivery/1"}',
        b'{"receipt":"delivery/3"}',
        b'{"claim":["' + b"a" * 2_000_000 + b'"],"journals":[],"messages":[],"receipt":"delivery/1"}\n',
        b'{"claim":[' + b"[" * 500_000 + b'],"receipt":"delivery/1"}',
    ],
)
def test_other_json_is_refused_by_its_form(data):
    assert_refused(data, "form")


def test_huge_and_empty_files_are_refused_before_they_are_read():
    assert_refused(b" " * (MAX_RECEIPT_BYTES + 1), "file")
    assert_refused(b"", "file")


def test_only_one_spelling_is_accepted(receipts):
    data = receipts["pcp"]
    value = json.loads(data)
    assert encode(value) == data
    for spelling in (
        data[:-1],
        data + b"\n",
        b" " + data,
        b"\xef\xbb\xbf" + data,
        json.dumps(value, sort_keys=True).encode() + b"\n",
        json.dumps(dict(reversed(value.items())), separators=(",", ":"), ensure_ascii=False).encode() + b"\n",
        data.replace(b"pcp:", b"\\u0070cp:", 1),
        data.replace(b'"receipt":', b'"receipt":"delivery/1","receipt":', 1),
    ):
        assert spelling != data
        assert_refused(spelling, "form")


def test_proofs_that_are_too_long_are_refused(receipts):
    value = json.loads(receipts["pcp"])
    value["journals"][0]["hops"][0]["path"] = [0] * 64
    assert_refused(encode(value), "form")
    value["journals"][0]["hops"][0]["path"] = [0] * 63
    assert_refused(encode(value), "form|inclusion")


def test_related_messages_need_their_bytes(receipts):
    value = json.loads(receipts["won"])
    del value["messages"][1]["text"]
    value["claim"][1] = value["claim"][1].partition(";")[0] + "; its bytes are left out"
    assert_refused(encode(value), "address")


def test_verifying_loads_no_database_no_arrow_no_network():
    script = (
        "import sys; import dovetail.receipt.verify; "
        "print(sorted({'sqlite3', 'pyarrow', 'pyspark', 'asyncio', 'ssl', 'pyoxigraph'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
