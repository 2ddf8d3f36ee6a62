"""TLS for the broker and its clients: client certificates, the name in them, and the revocation list."""

from __future__ import annotations

import contextlib
import ipaddress
import ssl
from pathlib import Path
from typing import Any

from cryptography import x509

from dovetail.model.errors import ConfigError, KeyFileError
from dovetail.pcp.settings import PcpSettings

MAX_REVOCATION_LIST_BYTES = 64 * 1024 * 1024


def check_settings(settings: PcpSettings) -> None:
    """Refuse what would be unsafe or cannot work; raises ConfigError."""
    if settings.insecure_plain:
        is_loopback = settings.host == "localhost"
        with contextlib.suppress(ValueError):
            is_loopback = is_loopback or ipaddress.ip_address(settings.host).is_loopback
        if not is_loopback:
            raise ConfigError(f"host {settings.host!r} with insecure_plain, expected a loopback address")
        return
    for name in ("certificate", "key", "authority"):
        if not getattr(settings, name):
            raise ConfigError(f"{name} is missing; without TLS there is only insecure_plain on loopback")


def server_context(certificate: str, key: str, authority: str) -> ssl.SSLContext:
    """TLS 1.2 and 1.3, client certificates required; existing clients speak only 1.2."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.verify_mode = ssl.CERT_REQUIRED
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    context.num_tickets = 0  # a session ticket would outlive a revocation
    context.options |= ssl.OP_NO_TICKET
    _load(context, certificate, key, authority)
    return context


def client_context(certificate: str, key: str, authority: str) -> ssl.SSLContext:
    """A client that shows its certificate and trusts brokers of one authority."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    _load(context, certificate, key, authority)
    return context


def _load(context: ssl.SSLContext, certificate: str, key: str, authority: str) -> None:
    try:
        context.load_cert_chain(certificate, key)
        context.load_verify_locations(authority)
    except (OSError, ssl.SSLError) as error:
        raise KeyFileError(f"{certificate}, {key} or {authority} cannot be used: {error}") from None


def common_name(certificate: dict[str, Any] | None) -> str | None:
    """The one CN among all RDNs of a peer's certificate; None where there is none, or several."""
    if not certificate:
        return None
    names = [value for part in certificate.get("subject", ()) for name, value in part if name == "commonName" and value]
    return names[0] if len(names) == 1 else None


def serial_number(certificate: dict[str, Any] | None) -> int | None:
    """The serial number of a peer's certificate."""
    text = certificate.get("serialNumber") if certificate else None
    return int(text, 16) if text else None


class RevocationList:
    """The serial numbers an authority has revoked, read again whenever the file changes."""

    def __init__(self, path: str, authority: str) -> None:
        self._path = Path(path)
        self._authority = Path(authority)
        self._stamp: tuple[int, int] | None = None
        self.serials: frozenset[int] = frozenset()
        self.next_update_s: float | None = None

    def reload(self) -> frozenset[int]:
        """Read the list if the file has changed; returns the numbers that are new. Raises ConfigError."""
        try:
            status = self._path.stat()
            stamp = (status.st_mtime_ns, status.st_size)
            if stamp == self._stamp:
                return frozenset()
            if status.st_size > MAX_REVOCATION_LIST_BYTES:
                raise ConfigError(
                    f"{self._path} has {status.st_size} bytes, expected at most {MAX_REVOCATION_LIST_BYTES}"
                )
            listed = self._read(self._path.read_bytes())
        except OSError as error:
            raise ConfigError(f"{self._path} cannot be read: {error.strerror or error}") from None
        self._stamp = stamp
        new, self.serials = listed - self.serials, listed
        return new

    def _read(self, data: bytes) -> frozenset[int]:
        try:
            if data.lstrip().startswith(b"-----"):
                revocations = x509.load_pem_x509_crl(data)
            else:
                revocations = x509.load_der_x509_crl(data)
            authorities = x509.load_pem_x509_certificates(self._authority.read_bytes())
        except ValueError as error:
            raise ConfigError(f"{self._path} is not a revocation list: {error}") from None
        issuers = [authority for authority in authorities if authority.subject == revocations.issuer]
        if not any(_is_signed_by(revocations, issuer) for issuer in issuers):
            raise ConfigError(f"{self._path} is not signed by an authority of {self._authority}")
        promised = revocations.next_update_utc
        self.next_update_s = None if promised is None else promised.timestamp()
        return frozenset(entry.serial_number for entry in revocations)


def _is_signed_by(revocations: x509.CertificateRevocationList, issuer: x509.Certificate) -> bool:
    key = issuer.public_key()
    try:
        return revocations.is_signature_valid(key)  # type: ignore[arg-type]
    except TypeError:
        return False  # a kind of key that signs no lists
