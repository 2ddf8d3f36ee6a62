"""Receipts that were made once must stay valid for ever, and building must go on giving the same bytes."""

from __future__ import annotations

from pathlib import Path

import pytest

from dovetail.keys import load_verifier_keys
from dovetail.receipt.verify import verify_receipt
from dovetail.signing import Verifier
from receipt import receipt_samples as samples
from receipt.independent_checker import check

VECTORS = Path(__file__).parent.parent / "vectors"


@pytest.mark.parametrize("fabric", samples.CASES)
def test_kept_receipts_are_valid_and_can_be_made_again(tmp_path, fabric):
    data = (VECTORS / f"receipt-{fabric}.json").read_bytes()
    keys = [Verifier(key.name, key.public_key) for key in load_verifier_keys(VECTORS / "receipt-keys.txt")]
    claims = list(verify_receipt(data, keys).claims)
    assert check(data, {(key.name, key.public_key) for key in keys}) == claims
    assert samples.CASES[fabric](tmp_path).build() == data
