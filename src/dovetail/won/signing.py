"""Ed25519 keys and signatures of messages, and how public keys are published.

The signed data: the domain mark, then SHA-256 of the canonical N-Quads of the envelope and all content graphs under the
placeholder. So the address is not part of what is signed, and the signature is part of the address.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from dovetail.model.canonical_base64 import encode_base64, parse_base64
from dovetail.model.errors import RemoteProtocolError
from dovetail.model.hop import Reason
from dovetail.won import vocabulary as v
from dovetail.won.canonical import Quad
from dovetail.won.envelope import literal_value
from dovetail.won.message import Message

SIGNATURE_DOMAIN = b"dovetail won message v1\0"
PUBLIC_KEY_BYTES = 32
SIGNATURE_BYTES = 64


class PublicKey:
    """An Ed25519 public key with its fingerprint."""

    __slots__ = ("_key", "fingerprint", "raw")

    def __init__(self, raw: bytes) -> None:
        if len(raw) != PUBLIC_KEY_BYTES:
            raise ValueError(f"public key of {len(raw)} bytes, expected {PUBLIC_KEY_BYTES}")
        self.raw = raw
        self.fingerprint = encode_base64(hashlib.sha256(raw).digest())
        self._key = Ed25519PublicKey.from_public_bytes(raw)

    def verifies(self, signature: bytes, data: bytes) -> bool:
        """True if `signature` was made over `data` with this key."""
        try:
            self._key.verify(signature, data)
        except InvalidSignature:
            return False
        return True

    def __reduce__(self) -> tuple[type[PublicKey], tuple[bytes]]:
        """Pickle as the 32 bytes of the key."""
        return PublicKey, (self.raw,)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PublicKey) and other.raw == self.raw

    def __hash__(self) -> int:
        return hash(self.raw)


class SigningKey:
    """An Ed25519 private key with its public key; created from 32 injected bytes."""

    __slots__ = ("_key", "public")

    def __init__(self, seed: bytes) -> None:
        self._key = Ed25519PrivateKey.from_private_bytes(seed)
        self.public = PublicKey(self._key.public_key().public_bytes_raw())

    def sign(self, data: bytes) -> bytes:
        """The signature over `data`."""
        return self._key.sign(data)


def decode_base64(text: str, size: int) -> bytes | None:
    """Decode `size` bytes from their one canonical base64 text; None for anything else."""
    try:
        data = parse_base64(text)
    except ValueError:
        return None
    return data if len(data) == size else None


def sign_digest(key: SigningKey, digest: bytes) -> str:
    """The text of `msg:signatureValue` for the digest of a message's signed graphs."""
    return encode_base64(key.sign(SIGNATURE_DOMAIN + digest))


def verify_signature(message: Message, public_key: PublicKey) -> bool:
    """True if the signer named by the message signed exactly these graphs with this key."""
    signature = decode_base64(message.signature, SIGNATURE_BYTES)
    return (
        signature is not None
        and message.fingerprint == public_key.fingerprint
        and message.hash == encode_base64(message.signed_digest)
        and public_key.verifies(signature, SIGNATURE_DOMAIN + message.signed_digest)
    )


def key_quads(owner: str, key: PublicKey, graph: str) -> list[Quad]:
    """How an atom or node publishes its key: `OWNER cert:key OWNER#key`, `OWNER#key won:ed25519PublicKey "base64"`."""
    node = f"<{owner}{v.KEY}>"
    return [
        (f"<{owner}>", v.P_CERT_KEY, node, f"<{graph}>"),
        (node, v.P_PUBLIC_KEY, f'"{encode_base64(key.raw)}"', f"<{graph}>"),
    ]


def find_key(owner: str, quads: Iterable[Quad]) -> PublicKey | None:
    """The one key that `quads` publish for `owner`; None if there is none, or more than one."""
    nodes: set[str] = set()
    values: dict[str, set[str]] = {}
    for s, p, o, _ in quads:
        if p == v.P_CERT_KEY and s == f"<{owner}>":
            nodes.add(o)
        elif p == v.P_PUBLIC_KEY:
            values.setdefault(s, set()).add(o)
    texts = {text for node in nodes for text in values.get(node, ())}
    if len(texts) != 1:
        return None
    raw = decode_base64(literal_value(texts.pop()), PUBLIC_KEY_BYTES)
    return PublicKey(raw) if raw else None


def extract_keys(create_message: Message) -> dict[str, PublicKey]:
    """Atom -> public key, from the content graph `#key` of a Create message."""
    if create_message.type is not v.MessageType.CREATE or create_message.atom is None:
        return {}
    key = find_declared_key(create_message, create_message.atom)
    return {create_message.atom: key} if key else {}


def find_declared_key(message: Message, atom: str) -> PublicKey | None:
    """The key that a Create, Replace or Delete message declares for its atom in the content graph `#key`."""
    graph = f"<{message.uri}{v.KEY}>"
    return find_key(atom, [quad for quad in message.quads if quad[3] == graph])


def expected_signer(message: Message) -> str:
    """Who must have signed: the sending atom (FromOwner) or its node (FromSystem); raises RemoteProtocolError."""
    sender = message.sender
    if sender is None:
        raise RemoteProtocolError(Reason.INVALID_SCHEMA, f"{message.uri} names no atom that sends it")
    if message.is_response and message.direction is not v.Direction.SYSTEM:
        raise RemoteProtocolError(Reason.WRONG_SIGNER, f"{message.type} must come from a node")
    if message.direction is v.Direction.EXTERNAL:
        raise RemoteProtocolError(Reason.INVALID_SCHEMA, "FromExternal is a view of a message, it cannot be sent")
    return sender if message.direction is v.Direction.OWNER else v.node_of_atom(sender)
