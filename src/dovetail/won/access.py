"""Read access to conversations over HTTP: requests are signed with the key of an atom that takes part.

Uses HTTP Message Signatures (RFC 9421) over the method and the target URI, with the atom's Ed25519 key. Only the atom's
key is needed, and a signature cannot be reused for another request or much later:

    Signature-Input: sig=("@method" "@target-uri");created=1789000000;keyid="https://.../atom/ID";alg="ed25519"
    Signature: sig=:BASE64:
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from dovetail.model.canonical_base64 import encode_base64
from dovetail.won.signing import SIGNATURE_BYTES, PublicKey, SigningKey, decode_base64

MAX_HEADER_CHARS = 4096
_PARAMETERS = re.compile(
    r'\("@method" "@target-uri"\);created=(?P<created>[0-9]{1,12});keyid="(?P<signer>[^"\\\s]{1,2048})";alg="ed25519"'
)


class Claim(NamedTuple):
    """The claimed signer of a request, the time, and the signature."""

    signer: str
    created_s: int
    parameters: str
    signature: bytes


def sign_request(uri: str, signer: str, key: SigningKey, now: int) -> tuple[tuple[str, str], ...]:
    """The headers that let an atom read a document of a node."""
    parameters = f'("@method" "@target-uri");created={now // 1_000_000};keyid="{signer}";alg="ed25519"'
    signature = encode_base64(key.sign(_signature_base(uri, parameters)))
    return (("Signature-Input", f"sig={parameters}"), ("Signature", f"sig=:{signature}:"))


def read_claim(headers: Mapping[str, str]) -> Claim | None:
    """The claim in the headers of a request; None if absent or unreadable."""
    parameters = str(headers.get("signature-input", ""))[:MAX_HEADER_CHARS].removeprefix("sig=")
    text = str(headers.get("signature", ""))[:MAX_HEADER_CHARS]
    match = _PARAMETERS.fullmatch(parameters)
    if match is None or not (text.startswith("sig=:") and text.endswith(":")):
        return None
    signature = decode_base64(text[5:-1], SIGNATURE_BYTES)
    return None if signature is None else Claim(match["signer"], int(match["created"]), parameters, signature)


def is_proven(claim: Claim, uri: str, key: PublicKey, now: int, max_skew_ms: int) -> bool:
    """True if the signer requested this document with its key, at about this time."""
    if abs(now // 1000 - claim.created_s * 1000) > max_skew_ms:
        return False
    return key.verifies(claim.signature, _signature_base(uri, claim.parameters))


def _signature_base(uri: str, parameters: str) -> bytes:
    return f'"@method": GET\n"@target-uri": {uri}\n"@signature-params": {parameters}'.encode()
