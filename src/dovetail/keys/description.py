"""Describes the contents of key files, without secrets."""

from __future__ import annotations

import base64
import datetime
from collections.abc import Iterator
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from dovetail.keys.authority import load_revocation_list
from dovetail.keys.files import read_file
from dovetail.keys.signing import VERIFIER_SUFFIX, load_private_key, load_verifier_keys
from dovetail.model.errors import KeyFileError
from dovetail.tlog.keys import Verifier

# parts of certificates and revocation lists are parsed when asked for
_NOT_READABLE = (
    ValueError,
    UnsupportedAlgorithm,
    x509.DuplicateExtension,
    x509.InvalidVersion,
    x509.UnsupportedGeneralNameType,
)
_SUFFIXES = (".pem", ".key", ".skey", VERIFIER_SUFFIX)

Record = dict[str, object]


def describe(path: Path, now: datetime.datetime | None = None) -> Iterator[Record]:
    """Yield one record per object in a file, or in all key files of a directory."""
    now = now or datetime.datetime.now(datetime.UTC)
    if path.is_dir():
        for each in sorted(each for each in path.iterdir() if each.suffix in _SUFFIXES and each.is_file()):
            try:
                yield from describe(each, now)
            except KeyFileError as error:
                # One unreadable file must not hide the others.
                yield {"file": str(each), "kind": "unreadable", "problem": str(error)}
    elif path.suffix == VERIFIER_SUFFIX:
        yield from (_describe_verifier(path, key) for key in load_verifier_keys(path))
    else:
        yield from _describe_pem(path, read_file(path), now)


def _describe_pem(path: Path, data: bytes, now: datetime.datetime) -> Iterator[Record]:
    if b"-----BEGIN CERTIFICATE-----" in data:
        try:
            yield from [_describe_certificate(path, each, now) for each in x509.load_pem_x509_certificates(data)]
        except _NOT_READABLE:
            raise KeyFileError(f"{path} is not a certificate in PEM") from None
    elif b"-----BEGIN X509 CRL-----" in data:
        try:
            yield _describe_revocation_list(path, now)
        except _NOT_READABLE:
            raise KeyFileError(f"{path} is not a revocation list in PEM") from None
    elif b"PRIVATE KEY-----" in data:
        yield _describe_private(path)
    else:
        raise KeyFileError(f"{path} holds no certificate, revocation list or key that is known here")


def _describe_certificate(path: Path, certificate: x509.Certificate, now: datetime.datetime) -> Record:
    extensions = certificate.extensions
    names: list[str] = []
    usages: list[str] = []
    is_authority = False
    for extension in extensions:
        match extension.value:
            case x509.SubjectAlternativeName() as alternatives:
                names = [_general_name(name) for name in alternatives]
            case x509.ExtendedKeyUsage() as usage:
                usages = [each._name for each in usage]
            case x509.BasicConstraints(ca=ca):
                is_authority = ca
    return {
        "file": str(path),
        "kind": "ca" if is_authority else "certificate",
        "subject": certificate.subject.rfc4514_string(),
        "issuer": certificate.issuer.rfc4514_string(),
        "names": names,
        "usages": usages,
        "serial": f"{certificate.serial_number:x}",
        **_validity(certificate.not_valid_before_utc, certificate.not_valid_after_utc, now),
        "fingerprint": certificate.fingerprint(hashes.SHA256()).hex(),
        "public_key": _public_text(certificate.public_key()),
    }


def _describe_revocation_list(path: Path, now: datetime.datetime) -> Record:
    crl = load_revocation_list(path)
    end = crl.next_update_utc or now
    return {
        "file": str(path),
        "kind": "revocation list",
        "issuer": crl.issuer.rfc4514_string(),
        "revoked": [f"{entry.serial_number:x}" for entry in crl],
        **_validity(crl.last_update_utc, end, now),
        "fingerprint": crl.fingerprint(hashes.SHA256()).hex(),
    }


def _describe_private(path: Path) -> Record:
    key = load_private_key(path)
    mode = path.stat().st_mode & 0o777
    return {
        "file": str(path),
        "kind": "private key",
        "mode": f"{mode:04o}" + ("" if mode & 0o077 == 0 else " (others may read it: chmod 600)"),
        "public_key": _public_text(key.public_key()),
    }


def _describe_verifier(path: Path, key: Verifier) -> Record:
    return {
        "file": str(path),
        "kind": "verifier key",
        "name": key.name,
        "key_id": key.key_id.hex(),
        "public_key": f"ed25519 {base64.b64encode(key.public_key).decode()}",
        "text": key.text(),
    }


def _validity(begin: datetime.datetime, end: datetime.datetime, now: datetime.datetime) -> Record:
    return {
        "valid_from": begin.isoformat(),
        "valid_until": end.isoformat(),
        "days_left": (end - now).days,
        "valid": begin <= now <= end,
    }


def _general_name(name: x509.GeneralName) -> str:
    match name:
        case x509.DNSName(value=value):
            return f"dns:{value}"
        case x509.IPAddress(value=address):
            return f"ip:{address}"
        case x509.UniformResourceIdentifier(value=value):
            return f"uri:{value}"
        case _:
            return f"other:{name.value}"


def _public_text(key: object) -> str:
    match key:
        case ec.EllipticCurvePublicKey():
            point = key.public_bytes(serialization.Encoding.X962, serialization.PublicFormat.CompressedPoint)
            return f"{key.curve.name} {base64.b64encode(point).decode()}"
        case ed25519.Ed25519PublicKey():
            return f"ed25519 {base64.b64encode(key.public_bytes_raw()).decode()}"
        case _:
            return type(key).__name__
