"""Signing key files: the private half in PEM, the public half as verifier key text."""

from __future__ import annotations

import re
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes

from dovetail.keys.files import read_file, write_pair
from dovetail.model.errors import CheckpointError, KeyFileError
from dovetail.tlog.keys import Signer, Verifier, parse_verifier

SIGNING_SUFFIX = ".skey"
VERIFIER_SUFFIX = ".vkey"
MAX_TRUST_FILES = 10_000


def file_stem(name: str) -> str:
    """The base name of a signing key's files: `pcp://broker/server` gives `pcp_broker_server.skey`."""
    stem = re.sub(r"[^A-Za-z0-9.-]+", "_", name).lstrip("._-")
    return stem or "key"


def create_signing_key(directory: Path, name: str, *, force: bool = False) -> tuple[Path, Path]:
    """Create a signing key and write both halves; returns the paths of the private and the public one."""
    key = _named(name, Ed25519PrivateKey.generate())
    private_path = directory / (file_stem(name) + SIGNING_SUFFIX)
    public_path = private_path.with_suffix(VERIFIER_SUFFIX)
    pem = key.private_key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    write_pair((private_path, pem), (public_path, key.verifier.text().encode() + b"\n"), force=force)
    return private_path, public_path


def load_private_key(path: Path) -> PrivateKeyTypes:
    """Load a private key of any kind from a PEM file."""
    try:
        return serialization.load_pem_private_key(read_file(path), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise KeyFileError(f"{path} is not an unencrypted private key in PEM") from None


def load_signing_key(path: Path, name: str | None = None) -> Signer:
    """Load a signing key. Its name is `name`, or is read from the `.vkey` file beside it, which must match."""
    private_key = load_private_key(path)
    if not isinstance(private_key, Ed25519PrivateKey):
        raise KeyFileError(f"{path} is not an Ed25519 key")
    if name is not None:
        return _named(name, private_key)
    public_path = path.with_suffix(VERIFIER_SUFFIX)
    verifier = _single(public_path)
    if verifier.public_key != private_key.public_key().public_bytes_raw():
        raise KeyFileError(f"{public_path} is not the public half of {path}")
    return Signer(verifier.name, private_key)


def load_verifier_keys(*stores: Path) -> tuple[Verifier, ...]:
    """Load all keys of trust stores: files with one key per line (`#` comments), or directories of `.vkey` files."""
    return tuple(dict.fromkeys(key for store in stores for key in _load_store(store)))


def _load_store(path: Path) -> list[Verifier]:
    paths = sorted(path.glob(f"*{VERIFIER_SUFFIX}")) if path.is_dir() else [path]
    if len(paths) > MAX_TRUST_FILES:
        raise KeyFileError(f"{path} has {len(paths)} key files, expected at most {MAX_TRUST_FILES}")
    keys = [
        _parse_at(line.strip(), f"{each}:{number}")
        for each in paths
        for number, line in enumerate(_read_text(each).splitlines(), 1)
        if line.strip() and not line.strip().startswith("#")
    ]
    if not keys:
        raise KeyFileError(f"{path} holds no verifier keys")
    return keys


def _named(name: str, private_key: Ed25519PrivateKey) -> Signer:
    try:
        return Signer(name, private_key)
    except CheckpointError as error:
        raise KeyFileError(str(error)) from None


def _single(path: Path) -> Verifier:
    keys = load_verifier_keys(path)
    if len(keys) != 1:
        raise KeyFileError(f"{path} holds {len(keys)} keys, expected one")
    return keys[0]


def _parse_at(text: str, where: str) -> Verifier:
    try:
        return parse_verifier(text)
    except CheckpointError as error:
        raise KeyFileError(f"{where}: {error}") from None


def _read_text(path: Path) -> str:
    try:
        return read_file(path).decode()
    except UnicodeDecodeError:
        raise KeyFileError(f"{path} is not UTF-8 text") from None
