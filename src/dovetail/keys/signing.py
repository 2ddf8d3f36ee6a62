"""Ed25519 signing keys, and their public halves in the C2SP signed-note form `name+key id+key`.

    key id   first 4 bytes of SHA-256(name, 0x0A, 0x01, public key), in hex
    key      base64 of 0x01 (Ed25519) and the 32 bytes of the public key

A name holds neither white space nor `+`. Journals sign with the key that has the name of their server's URI.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from dataclasses import dataclass, field
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dovetail.errors import KeyFileError
from dovetail.keys.files import read_file, write_pair

SIGNING_SUFFIX = ".skey"
VERIFIER_SUFFIX = ".vkey"
MAX_NAME_BYTES = 1024
MAX_TRUST_FILES = 10_000
_ED25519 = b"\x01"
_PUBLIC_BYTES = 32
_KEY_ID_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifierKey:
    """A named public key."""

    name: str
    public_key: bytes

    @property
    def key_id(self) -> bytes:
        """Four bytes that pick this key out of several."""
        return hashlib.sha256(self.name.encode() + b"\n" + _ED25519 + self.public_key).digest()[:_KEY_ID_BYTES]

    def text(self) -> str:
        """The form in which trust files keep it."""
        return f"{self.name}+{self.key_id.hex()}+{base64.b64encode(_ED25519 + self.public_key).decode()}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SigningKey:
    """A named private key."""

    name: str
    private_key: Ed25519PrivateKey = field(repr=False)

    @property
    def verifier(self) -> VerifierKey:
        """The public half."""
        return VerifierKey(name=self.name, public_key=self.private_key.public_key().public_bytes_raw())

    def sign(self, data: bytes) -> bytes:
        """The 64 bytes of the signature over `data`."""
        return self.private_key.sign(data)


def check_key_name(name: str) -> str:
    """The name itself, or KeyFileError."""
    if not name or "+" in name or any(c.isspace() or not c.isprintable() for c in name):
        raise KeyFileError(f"key name {name[:80]!r} must not be empty, nor hold white space, control characters or '+'")
    if len(name.encode()) > MAX_NAME_BYTES:
        raise KeyFileError(f"key name has {len(name.encode())} bytes, expected at most {MAX_NAME_BYTES}")
    return name


def file_stem(name: str) -> str:
    """The name of a signing key's files: `pcp://broker/server` is kept in `pcp_broker_server.skey`."""
    stem = re.sub(r"[^A-Za-z0-9.-]+", "_", name).lstrip("._-")
    return stem or "key"


def create_signing_key(directory: Path, name: str, *, force: bool = False) -> tuple[Path, Path]:
    """Makes a signing key and writes both halves; the paths of the private and the public one."""
    key = SigningKey(name=check_key_name(name), private_key=Ed25519PrivateKey.generate())
    private_path = directory / (file_stem(name) + SIGNING_SUFFIX)
    public_path = private_path.with_suffix(VERIFIER_SUFFIX)
    pem = key.private_key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    write_pair((private_path, pem), (public_path, key.verifier.text().encode() + b"\n"), force=force)
    return private_path, public_path


def load_signing_key(path: Path, name: str | None = None) -> SigningKey:
    """The signing key in `path`. Its name is `name`, or stands in the `.vkey` file beside it, which must match."""
    data = read_file(path)
    try:
        private_key = serialization.load_pem_private_key(data, password=None)
    except (ValueError, TypeError):
        raise KeyFileError(f"{path} is not an unencrypted private key in PEM") from None
    if not isinstance(private_key, Ed25519PrivateKey):
        raise KeyFileError(f"{path} is not an Ed25519 key")
    if name is not None:
        return SigningKey(name=check_key_name(name), private_key=private_key)
    public_path = path.with_suffix(VERIFIER_SUFFIX)
    verifier = _single(public_path)
    if verifier.public_key != private_key.public_key().public_bytes_raw():
        raise KeyFileError(f"{public_path} is not the public half of {path}")
    return SigningKey(name=verifier.name, private_key=private_key)


def load_verifier_keys(path: Path) -> tuple[VerifierKey, ...]:
    """All keys of a trust store: a file with a key per line (`#` starts a comment), or a directory of `.vkey` files."""
    paths = sorted(path.glob(f"*{VERIFIER_SUFFIX}")) if path.is_dir() else [path]
    if len(paths) > MAX_TRUST_FILES:
        raise KeyFileError(f"{path} has {len(paths)} key files, expected at most {MAX_TRUST_FILES}")
    keys: dict[VerifierKey, None] = {}
    for each in paths:
        for number, line in enumerate(_read_text(each).splitlines(), 1):
            text = line.strip()
            if text and not text.startswith("#"):
                keys[_parse_at(text, f"{each}:{number}")] = None
    if not keys:
        raise KeyFileError(f"{path} holds no verifier keys")
    return tuple(keys)


def parse_verifier_key(text: str) -> VerifierKey:
    """A verifier key from its text form; its key id is checked."""
    parts = text.split("+", 2)
    if len(parts) != 3:
        raise KeyFileError(f"verifier key {text[:80]!r} has not the form name+id+key")
    name, key_id, encoded = parts
    try:
        key = base64.b64decode(encoded, validate=True)
    except binascii.Error:
        raise KeyFileError(f"verifier key of {name[:80]!r} is not base64") from None
    if len(key) != 1 + _PUBLIC_BYTES or key[:1] != _ED25519:
        raise KeyFileError(f"verifier key of {name[:80]!r} is not an Ed25519 key")
    verifier = VerifierKey(name=check_key_name(name), public_key=key[1:])
    if verifier.key_id.hex() != key_id.lower():
        raise KeyFileError(
            f"verifier key of {name[:80]!r} has the id {key_id[:16]!r}, expected {verifier.key_id.hex()}"
        )
    return verifier


def _single(path: Path) -> VerifierKey:
    keys = load_verifier_keys(path)
    if len(keys) != 1:
        raise KeyFileError(f"{path} holds {len(keys)} keys, expected one")
    return keys[0]


def _parse_at(text: str, where: str) -> VerifierKey:
    try:
        return parse_verifier_key(text)
    except KeyFileError as error:
        raise KeyFileError(f"{where}: {error}") from None


def _read_text(path: Path) -> str:
    try:
        return read_file(path).decode()
    except UnicodeDecodeError:
        raise KeyFileError(f"{path} is not UTF-8 text") from None
