"""A private certificate authority: its certificate, those it issues, and its revocation list.

There is no database: each certificate is self-contained, and the revocation list records what was revoked.
"""

from __future__ import annotations

import datetime
import enum
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from dovetail.keys.files import read_file, refuse_existing, write_pair, write_public
from dovetail.keys.signing import load_private_key
from dovetail.model.errors import KeyFileError

CA_STEM = "ca"
CRL_FILE = "crl.pem"
CA_DAYS = 3650
CERTIFICATE_DAYS = 365
CRL_DAYS = 30
MAX_DAYS = 36_500
MAX_COMMON_NAME_CHARS = 64  # RFC 5280, ub-common-name
_CLOCK_SKEW = datetime.timedelta(minutes=5)


class CertificateKind(enum.StrEnum):
    """What a certificate may be used for."""

    SERVER = "server"
    CLIENT = "client"
    PEER = "peer"
    """Both: a server that accepts and opens connections."""

    @property
    def usages(self) -> list[x509.ObjectIdentifier]:
        """The extended key usages."""
        server, client = ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH
        return {"server": [server], "client": [client], "peer": [server, client]}[self.value]


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """The subject alternative names of a certificate."""

    dns: Sequence[str] = ()
    ip: Sequence[str] = ()
    uri: Sequence[str] = ()

    def general_names(self) -> list[x509.GeneralName]:
        """The names in X.509 form; KeyFileError names an invalid one."""
        names: list[x509.GeneralName] = []
        for make, texts in ((x509.DNSName, self.dns), (x509.UniformResourceIdentifier, self.uri)):
            for text in texts:
                if not text or not text.isascii() or not text.isprintable() or " " in text:
                    raise KeyFileError(f"name {text[:80]!r} must be printable ASCII without spaces")
                names.append(make(text))
        for text in self.ip:
            try:
                names.append(x509.IPAddress(ipaddress.ip_address(text)))
            except ValueError:
                raise KeyFileError(f"{text[:80]!r} is not an IP address") from None
        return names


@dataclass(frozen=True, slots=True, kw_only=True)
class Authority:
    """A CA with its private key loaded."""

    directory: Path
    certificate: x509.Certificate
    private_key: ec.EllipticCurvePrivateKey = field(repr=False)

    def issue(
        self,
        name: str,
        kind: CertificateKind,
        names: Names,
        *,
        days: int = CERTIFICATE_DAYS,
        now: datetime.datetime | None = None,
        force: bool = False,
    ) -> tuple[Path, Path]:
        """Create a key and a certificate for it; returns the paths of both."""
        common_name = check_common_name(name)
        begin = now or _now()
        end = begin + _days(days)
        last = self.certificate.not_valid_after_utc
        if end > last:
            raise KeyFileError(
                f"{days} days go beyond the CA's own end on {last:%Y-%m-%d}, expected at most {(last - begin).days}"
            )
        key_path, certificate_path = self.directory / f"{name}.key", self.directory / f"{name}.pem"
        refuse_existing({key_path: "key", certificate_path: "certificate"}, force=force)
        private_key = ec.generate_private_key(ec.SECP256R1())
        alternatives = names.general_names() or _default_names(name, kind)
        builder = (
            _builder(common_name, self.certificate.subject, private_key.public_key(), begin, end)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(digital_signature=True), critical=True)
            .add_extension(x509.ExtendedKeyUsage(kind.usages), critical=False)
            .add_extension(self._key_identifier(), critical=False)
        )
        if alternatives:
            builder = builder.add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        certificate = builder.sign(self.private_key, hashes.SHA256())
        pem = certificate.public_bytes(serialization.Encoding.PEM)
        write_pair((key_path, _private_pem(private_key)), (certificate_path, pem), force=force)
        return key_path, certificate_path

    def renew(
        self, *, within_days: int, days: int = CERTIFICATE_DAYS, now: datetime.datetime | None = None
    ) -> list[Path]:
        """Reissue, with a new key, every certificate of this CA in its directory that expires within this many days.

        Subject, names and kind stay the same. Returns the paths of the keys and certificates written.
        """
        written: list[Path] = []
        limit = (now or _now()) + _days(within_days)
        for path in sorted(self.directory.glob("*.pem")):
            if path.name in (f"{CA_STEM}.pem", CRL_FILE) or not path.with_suffix(".key").exists():
                continue
            certificate = load_certificate(path)
            if certificate.issuer != self.certificate.subject or certificate.not_valid_after_utc > limit:
                continue
            kind, names = _kind_of(certificate), _names_of(certificate)
            written += self.issue(path.stem, kind, names, days=days, now=now, force=True)
        return written

    def revoke(
        self,
        certificate: x509.Certificate,
        reason: x509.ReasonFlags = x509.ReasonFlags.unspecified,
        *,
        days: int = CRL_DAYS,
        now: datetime.datetime | None = None,
    ) -> Path:
        """Add a certificate to the revocation list; a second time only updates the list's dates."""
        if certificate.issuer != self.certificate.subject:
            raise KeyFileError(f"{certificate.subject.rfc4514_string()} was not issued by this CA")
        entry = (
            x509.RevokedCertificateBuilder()
            .serial_number(certificate.serial_number)
            .revocation_date(now or _now())
            .add_extension(x509.CRLReason(reason), critical=False)
            .build()
        )
        return self.write_revocation_list([entry], days=days, now=now)

    def write_revocation_list(
        self,
        added: Sequence[x509.RevokedCertificate] = (),
        *,
        days: int = CRL_DAYS,
        now: datetime.datetime | None = None,
    ) -> Path:
        """Re-sign the revocation list with its current entries and `added`."""
        path = self.directory / CRL_FILE
        old = load_revocation_list(path) if path.exists() else None
        if old is not None and not self._has_signed(old):
            raise KeyFileError(f"{path} was not signed by this CA")
        entries = {entry.serial_number: entry for entry in added}
        number = 1
        if old is not None:
            entries |= {entry.serial_number: entry for entry in old}
            number = old.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number + 1
        begin = now or _now()
        builder = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(self.certificate.subject)
            .last_update(begin)
            .next_update(begin + _days(days))
            .add_extension(x509.CRLNumber(number), critical=False)
            .add_extension(self._key_identifier(), critical=False)
        )
        for entry in entries.values():
            builder = builder.add_revoked_certificate(entry)
        signed = builder.sign(self.private_key, hashes.SHA256())
        write_public(path, signed.public_bytes(serialization.Encoding.PEM), force=True)
        return path

    def _has_signed(self, revocations: x509.CertificateRevocationList) -> bool:
        """True if the signature is ours. `is_signature_valid` would say False if it is interrupted."""
        algorithm = revocations.signature_hash_algorithm
        if algorithm is None:
            return False
        try:
            self.private_key.public_key().verify(
                revocations.signature, revocations.tbs_certlist_bytes, ec.ECDSA(algorithm)
            )
        except InvalidSignature:
            return False
        return True

    def _key_identifier(self) -> x509.AuthorityKeyIdentifier:
        own = self.certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
        return x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(own)


def create_authority(
    directory: Path,
    name: str,
    *,
    days: int = CA_DAYS,
    now: datetime.datetime | None = None,
    force: bool = False,
) -> Authority:
    """Create a CA with an empty revocation list; `force` overwrites an existing one."""
    begin = now or _now()
    subject = _checked_subject(name)
    key_path, certificate_path = directory / f"{CA_STEM}.key", directory / f"{CA_STEM}.pem"
    private_key = ec.generate_private_key(ec.SECP256R1())
    certificate = (
        _builder(subject, subject, private_key.public_key(), begin, begin + _days(days))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(key_cert_sign=True, crl_sign=True), critical=True)
        .sign(private_key, hashes.SHA256())
    )
    refuse_existing({key_path: "key", certificate_path: "certificate", directory / CRL_FILE: "list"}, force=force)
    pem = certificate.public_bytes(serialization.Encoding.PEM)
    write_pair((key_path, _private_pem(private_key)), (certificate_path, pem), force=force)
    (directory / CRL_FILE).unlink(missing_ok=True)
    authority = Authority(directory=directory, certificate=certificate, private_key=private_key)
    authority.write_revocation_list(now=now)
    return authority


def load_authority(directory: Path) -> Authority:
    """Load the CA from a keys directory."""
    certificate_path, key_path = directory / f"{CA_STEM}.pem", directory / f"{CA_STEM}.key"
    if not certificate_path.exists():
        raise KeyFileError(f"{directory} has no CA; dovetail keys ca makes one")
    certificate = load_certificate(certificate_path)
    private_key = load_private_key(key_path)
    if not isinstance(private_key, ec.EllipticCurvePrivateKey):
        raise KeyFileError(f"{key_path} is not an elliptic curve key")
    if private_key.public_key() != certificate.public_key():
        raise KeyFileError(f"{key_path} is not the key of {certificate_path}")
    return Authority(directory=directory, certificate=certificate, private_key=private_key)


def load_certificate(path: Path) -> x509.Certificate:
    """Load the first certificate in a PEM file."""
    try:
        return x509.load_pem_x509_certificate(read_file(path))
    except ValueError:
        raise KeyFileError(f"{path} is not a certificate in PEM") from None


def load_revocation_list(path: Path) -> x509.CertificateRevocationList:
    """Load the revocation list from a PEM file."""
    try:
        return x509.load_pem_x509_crl(read_file(path))
    except ValueError:
        raise KeyFileError(f"{path} is not a revocation list in PEM") from None


def check_common_name(name: str) -> x509.Name:
    """Return the subject for a certificate whose files have the same name; KeyFileError if the name is invalid."""
    if name in (CA_STEM, CRL_FILE.removesuffix(".pem")):
        raise KeyFileError(f"{name!r} is the name of the CA's own files")
    if any(c.isspace() or c in "/\\" for c in name) or name[:1] in (".", "-"):
        raise KeyFileError(f"name {name[:80]!r} must not hold white space or slashes, nor begin with '.' or '-'")
    return _checked_subject(name)


def _checked_subject(name: str) -> x509.Name:
    if not name or not name.isprintable():
        raise KeyFileError(f"name {name[:80]!r} must not be empty nor hold control characters")
    if len(name) > MAX_COMMON_NAME_CHARS:
        raise KeyFileError(f"name has {len(name)} characters, expected at most {MAX_COMMON_NAME_CHARS}")
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _kind_of(certificate: x509.Certificate) -> CertificateKind:
    usages = set(certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value)
    return next(kind for kind in CertificateKind if set(kind.usages) == usages)


def _names_of(certificate: x509.Certificate) -> Names:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return Names()
    return Names(
        dns=names.get_values_for_type(x509.DNSName),
        ip=[str(address) for address in names.get_values_for_type(x509.IPAddress)],
        uri=names.get_values_for_type(x509.UniformResourceIdentifier),
    )


def _default_names(name: str, kind: CertificateKind) -> list[x509.GeneralName]:
    """TLS clients only look at alternative names: a server certificate without any would be useless."""
    if kind is CertificateKind.CLIENT:
        return []
    try:
        return [x509.IPAddress(ipaddress.ip_address(name))]
    except ValueError:
        return Names(dns=[name]).general_names()


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    public_key: ec.EllipticCurvePublicKey,
    begin: datetime.datetime,
    end: datetime.datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin - _CLOCK_SKEW)
        .not_valid_after(end)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
    )


def _key_usage(
    *, digital_signature: bool = False, key_cert_sign: bool = False, crl_sign: bool = False
) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=key_cert_sign,
        crl_sign=crl_sign,
        encipher_only=False,
        decipher_only=False,
    )


def _private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _days(days: int) -> datetime.timedelta:
    if not 1 <= days <= MAX_DAYS:
        raise KeyFileError(f"{days} days, expected from 1 to {MAX_DAYS}")
    return datetime.timedelta(days=days)


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)
