"""`dovetail keys`: a private CA, certificates, its revocation list, and signing keys."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated

import typer

from dovetail.cli.option_groups import takes_groups
from dovetail.cli.table_options import AsJson, Form

app = typer.Typer(help="A private CA, certificates and signing keys.", no_args_is_help=True)

Directory = Annotated[Path, typer.Option("--dir", help="The keys directory.", metavar="DIR")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite existing files.")]
KEYS = Path("keys")


class Kind(enum.StrEnum):
    """What `keys issue` can make."""

    SERVER = "server"
    CLIENT = "client"
    PEER = "peer"
    SIGNING = "signing"


class RevocationReason(enum.StrEnum):
    """Why a certificate is revoked (RFC 5280, 5.3.1)."""

    UNSPECIFIED = "unspecified"
    KEY_COMPROMISE = "keyCompromise"
    SUPERSEDED = "superseded"
    CESSATION_OF_OPERATION = "cessationOfOperation"


@app.command()
@takes_groups
def ca(
    name: Annotated[str, typer.Argument(help="The CA's common name.", metavar="NAME")] = "Dovetail CA",
    directory: Directory = KEYS,
    days: Annotated[int, typer.Option(metavar="DAYS", help="Validity in days.", min=1)] = 3650,
    force: Force = False,
    *,
    form: Form,
) -> None:
    """Make a private CA: ca.key, ca.pem and an empty revocation list, crl.pem."""
    from dovetail.keys import create_authority

    create_authority(directory, name, days=days, force=force)
    _print_made([directory / file for file in ("ca.key", "ca.pem", "crl.pem")], form)


@app.command()
@takes_groups
def issue(
    name: Annotated[str, typer.Argument(help="The common name, or a signing key's name.", metavar="NAME")],
    kind: Annotated[Kind, typer.Option(help="A TLS certificate, or an Ed25519 signing key.")] = Kind.SERVER,
    dns: Annotated[list[str] | None, typer.Option(help="A host name to certify; repeatable.", metavar="NAME")] = None,
    ip: Annotated[list[str] | None, typer.Option(help="An IP address to certify; repeatable.", metavar="IP")] = None,
    uri: Annotated[list[str] | None, typer.Option(help="A URI to certify; repeatable.", metavar="URI")] = None,
    directory: Directory = KEYS,
    days: Annotated[
        int | None, typer.Option(metavar="DAYS", help="Validity of a certificate in days; 365 by default.", min=1)
    ] = None,
    force: Force = False,
    *,
    form: Form,
) -> None:
    """Make a key and its certificate, signed by the CA in the keys directory; or a signing key.

    A server's or peer's certificate names the host NAME unless --dns, --ip or --uri say otherwise.
    """
    from dovetail.keys import CertificateKind, Names, create_signing_key, load_authority
    from dovetail.model.errors import UsageError

    if kind is Kind.SIGNING:
        if dns or ip or uri or days:
            raise UsageError("a signing key has no --dns, --ip, --uri or --days")
        made = create_signing_key(directory, name, force=force)
    else:
        names = Names(dns=dns or (), ip=ip or (), uri=uri or ())
        authority = load_authority(directory)
        made = authority.issue(name, CertificateKind(kind.value), names, days=days or 365, force=force)
    _print_made(list(made), form)


@app.command()
@takes_groups
def renew(
    directory: Directory = KEYS,
    within: Annotated[
        int, typer.Option(metavar="DAYS", help="Renew certificates that end within this many days.", min=1)
    ] = 30,
    days: Annotated[int, typer.Option(metavar="DAYS", help="Validity of the new certificates in days.", min=1)] = 365,
    *,
    form: Form,
) -> None:
    """Reissue certificates in the keys directory that are about to expire, with new keys and the same names."""
    from dovetail.keys import load_authority

    _print_made(load_authority(directory).renew(within_days=within, days=days), form)


@app.command()
@takes_groups
def revoke(
    certificate: Annotated[Path, typer.Argument(help="The certificate's file.", metavar="FILE")],
    reason: Annotated[RevocationReason, typer.Option(help="Why.")] = RevocationReason.UNSPECIFIED,
    directory: Directory = KEYS,
    days: Annotated[int, typer.Option(metavar="DAYS", help="Days until the next revocation list is due.", min=1)] = 30,
    *,
    form: Form,
) -> None:
    """Put a certificate on the revocation list."""
    from cryptography import x509

    from dovetail.keys import load_authority
    from dovetail.keys.authority import load_certificate

    flag = x509.ReasonFlags(reason.value)
    path = load_authority(directory).revoke(load_certificate(certificate), flag, days=days)
    _print_made([path], form)


@app.command()
@takes_groups
def crl(
    directory: Directory = KEYS,
    days: Annotated[int, typer.Option(metavar="DAYS", help="Days until the next revocation list is due.", min=1)] = 30,
    *,
    form: Form,
) -> None:
    """Sign a new revocation list before the current one is due."""
    from dovetail.keys import load_authority

    _print_made([load_authority(directory).write_revocation_list(days=days)], form)


@app.command()
def show(
    path: Annotated[Path, typer.Argument(help="A key file, or a directory of them.", metavar="PATH")] = KEYS,
    as_json: AsJson = False,
) -> None:
    """Describe key files: subject, names, validity, fingerprint, public key. Prints no secrets."""
    from dovetail.cli.output import print_record, print_text, say
    from dovetail.keys import describe

    records = list(describe(path))
    if not records:
        say(f"{path} has no keys, certificates or revocation lists")
    for number, record in enumerate(records):
        if number and not as_json:
            print_text("\n")
        print_record(record, as_json=as_json)


def _print_made(paths: list[Path], form: Form) -> None:
    from dovetail.cli.output import print_rows

    print_rows(
        [{"file": str(path), "mode": f"{path.stat().st_mode & 0o777:04o}"} for path in paths],
        ["file", "mode"],
        form,
    )
