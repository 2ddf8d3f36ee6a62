"""Signed requests: what proves the reader's identity, and what does not."""

import pytest

from dovetail.won.access import is_proven, read_claim, sign_request
from won.won_samples import ALICE, KEYS

URI = "https://a.example/won/resource/atom/alice/c?page=1"
NOW = 1_789_000_000_000_000
SKEW_MS = 60_000


def headers(uri=URI, signer=ALICE, key=KEYS[ALICE], now=NOW):
    return {name.lower(): value for name, value in sign_request(uri, signer, key, now)}


def proves(found, uri=URI, now=NOW):
    claim = read_claim(found)
    return claim is not None and claim.signer == ALICE and is_proven(claim, uri, KEYS[ALICE].public, now, SKEW_MS)


def test_a_signed_request_proves_who_asks():
    assert proves(headers())
    assert proves(headers(), now=NOW + 59_000_000)


@pytest.mark.parametrize(
    ("found", "uri", "now"),
    [
        (headers(key=KEYS["mallory"]), URI, NOW),
        (headers(signer="https://a.example/won/resource/atom/bob"), URI, NOW),
        (headers(uri=URI + "0"), URI, NOW),
        (headers(), URI.removesuffix("?page=1"), NOW),
        (headers(), URI, NOW + 61_000_000),
        (headers(), URI, NOW - 61_000_000),
        (
            {**headers(), "signature-input": headers()["signature-input"].replace("created=1789", "created=1788")},
            URI,
            NOW,
        ),
        ({**headers(), "signature": "sig=:AAAA:"}, URI, NOW),
        ({**headers(), "signature": headers()["signature"][:-1]}, URI, NOW),
        ({**headers(), "signature-input": 'sig=("@method");created=1;keyid="x";alg="ed25519"'}, URI, NOW),
        ({"signature": headers()["signature"]}, URI, NOW),
        ({}, URI, NOW),
    ],
)
def test_anything_else_does_not(found, uri, now):
    assert not proves(found, uri, now)
