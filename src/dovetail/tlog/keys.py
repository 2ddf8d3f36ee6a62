"""Named Ed25519 keys in C2SP signed-note form: `name+key id+key`.

    key id   first 4 bytes of SHA-256(name, 0x0A, 0x01, public key), in hex
    key      base64 of 0x01 (Ed25519) and the 32 bytes of the public key

A name contains no white space and no `+`. A journal signs with the key named by its server's URI.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from dovetail.model.canonical_base64 import encode_base64, parse_base64
from dovetail.model.errors import CheckpointError

MAX_NAME_BYTES = 1024
KEY_ID_BYTES = 4
_ED25519 = b"\x01"


@dataclass(frozen=True, slots=True)
class Verifier:
    """A named public key that verifies notes."""

    name: str
    public_key: bytes

    @property
    def key_id(self) -> bytes:
        """Four bytes that select the key among several."""
        return hashlib.sha256(self.name.encode() + b"\n" + _ED25519 + self.public_key).digest()[:KEY_ID_BYTES]

    def text(self) -> str:
        """The C2SP form `name+key id+key`, as stored in trust files."""
        key = encode_base64(_ED25519 + self.public_key)
        return f"{self.name}+{self.key_id.hex()}+{key}"

    def verify(self, signature: bytes, body: bytes) -> None:
        """Raise CheckpointError if `signature` is not this key's signature over `body`."""
        try:
            Ed25519PublicKey.from_public_bytes(self.public_key).verify(signature, body)
        except InvalidSignature:
            raise CheckpointError(f"signature of {self.name} does not verify") from None


def parse_verifier(text: str) -> Verifier:
    """Parse the C2SP form; the name may not contain `+`."""
    parts = text.strip().split("+", 2)
    if len(parts) != 3:
        raise CheckpointError("a verifier key has the form name+id+key")
    name, key_id, key = parts
    try:
        decoded = parse_base64(key)
    except ValueError as error:
        raise CheckpointError(f"the key of {name[:80]!r} {error}") from None
    if len(decoded) != 33 or decoded[:1] != _ED25519:
        raise CheckpointError(f"the key of {name[:80]!r} is not an Ed25519 key")
    verifier = Verifier(check_name(name), decoded[1:])
    if verifier.key_id.hex() != key_id.lower():
        raise CheckpointError(f"the id {key_id[:16]!r} does not belong to the key of {name!r}")
    return verifier


class Signer:
    """A named private key that signs notes; its repr never shows the key."""

    __slots__ = ("private_key", "verifier")

    def __init__(self, name: str, key: Ed25519PrivateKey) -> None:
        self.private_key = key
        self.verifier = Verifier(check_name(name), key.public_key().public_bytes_raw())

    def __repr__(self) -> str:
        return f"Signer({self.name!r})"

    @property
    def name(self) -> str:
        """The key's name; a journal's key is named by its server's URI."""
        return self.verifier.name

    def sign(self, body: bytes) -> bytes:
        """Sign `body`."""
        return self.private_key.sign(body)


def check_name(name: str) -> str:
    """Return the name if it is not empty and contains no white space and no `+`; else raise CheckpointError."""
    # printable text without white space splits into itself
    if not name or "+" in name or not name.isprintable() or name.split() != [name]:
        raise CheckpointError(f"key name {name[:80]!r} must not be empty or contain white space or '+'")
    if len(name.encode()) > MAX_NAME_BYTES:
        raise CheckpointError(f"key name of {len(name.encode())} bytes, expected at most {MAX_NAME_BYTES}")
    return name
