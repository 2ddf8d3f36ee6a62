"""Keys and certificates: a private CA (ECDSA P-256), certificates, its revocation list, Ed25519 signing keys.

Files in a keys directory:

    ca.pem  ca.key  crl.pem      the CA, its private key, its revocation list
    NAME.pem  NAME.key           a certificate and its private key
    NAME.skey  NAME.vkey         a signing key (PEM, PKCS 8) and its public half (C2SP signed-note verifier key)

Private files are created with mode 0600, the directory with 0700. Files are written to a temporary name first and never
overwritten unless `force` is set.
"""

from dovetail.keys.authority import Authority, CertificateKind, Names, create_authority, load_authority
from dovetail.keys.description import describe
from dovetail.keys.signing import (
    create_signing_key,
    load_signing_key,
    load_verifier_keys,
)

__all__ = [
    "Authority",
    "CertificateKind",
    "Names",
    "create_authority",
    "create_signing_key",
    "describe",
    "load_authority",
    "load_signing_key",
    "load_verifier_keys",
]
