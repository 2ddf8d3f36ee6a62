"""Existing receipts must stay valid for ever, and building must keep giving the same bytes."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from dovetail.journal.source import JournalSource
from dovetail.keys import load_verifier_keys
from dovetail.model.errors import ReceiptError
from dovetail.receipt.request_reply import build_exchange
from dovetail.receipt.verify import verify_receipt
from dovetail.tlog.keys import Verifier
from receipt import receipt_samples as samples
from receipt.conversation_samples import TRUSTED, speak
from receipt.exchange_samples import exchange
from receipt.independent_checker import check
from receipt.independent_conversation_checker import check_conversation
from receipt.independent_exchange_checker import check_exchange

NAMES = ("checker", "conversation_checker", "exchange_checker")
VECTORS = Path(__file__).parent.parent / "vectors"


@pytest.mark.parametrize("fabric", samples.CASES)
def test_kept_receipts_are_valid_and_can_be_made_again(tmp_path, fabric):
    data = (VECTORS / f"receipt-{fabric}.json").read_bytes()
    assert "handed the message over" in claims_of(data)
    assert samples.CASES[fabric](tmp_path).build() == data


@pytest.mark.parametrize("fabric", samples.CASES)
def test_receipts_of_the_first_version_stay_valid_in_their_own_words(fabric):
    data = (VECTORS / f"receipt-{fabric}-1.json").read_bytes()
    assert "delivered the message" in claims_of(data)
    with pytest.raises(ReceiptError, match="claim"):
        verify_receipt(data.replace(b'"delivery/1"', b'"delivery/2"'), kept_keys())


def kept_keys():
    return [Verifier(key.name, key.public_key) for key in load_verifier_keys(VECTORS / "receipt-keys.txt")]


def claims_of(data: bytes) -> str:
    """The claims, as read by both our code and the independent checker."""
    keys = kept_keys()
    claims = list(verify_receipt(data, keys).claims)
    assert check(data, {(key.name, key.public_key) for key in keys}) == claims
    return "\n".join(claims)


def test_the_kept_conversation_is_valid_and_can_be_made_again(tmp_path):
    data = (VECTORS / "receipt-conversation.json").read_bytes()
    claims = list(verify_receipt(data, TRUSTED).claims)
    assert check_conversation(data, {(key.name, key.public_key) for key in TRUSTED}) == claims
    assert speak(tmp_path, rounds=1).build() == data


def test_the_kept_exchange_is_valid_and_can_be_made_again(tmp_path):
    data = (VECTORS / "receipt-exchange.json").read_bytes()
    trusted = samples.verifiers(samples.BROKER)
    claims = list(verify_receipt(data, trusted).claims)
    assert check_exchange(data, {(key.name, key.public_key) for key in trusted}) == claims
    said = exchange(tmp_path)
    with JournalSource.open(said.journal) as source:
        assert build_exchange(source, said.address("request")) == data


def test_the_independent_checkers_are_short_and_share_no_code():
    folder = Path(__file__).parent
    texts = [(folder / f"independent_{name}.py").read_text() for name in NAMES]
    assert all(len(text.splitlines()) < 155 for text in texts)
    for text in texts:
        imports = {line.split()[1].partition(".")[0] for line in text.splitlines() if re.match("import |from ", line)}
        assert imports <= {*sys.stdlib_module_names, "cryptography", "receipt"}
