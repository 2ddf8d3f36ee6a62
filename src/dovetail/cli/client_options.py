"""What commands that speak to a server share: its address, who to be, keys, the context, how long to wait."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dovetail.model.errors import UsageError

if TYPE_CHECKING:
    from dovetail.api.contexts import Context
    from dovetail.api.pcp import PcpClient
    from dovetail.api.values import Sent

EXIT_FAILED = 1
EXIT_NO = 3
"""Done, and the answer is no."""

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "": 1.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|)")
_from_context = "from the context by default"


def parse_duration(given: str | float) -> float:
    """Seconds from `30s`, `500ms`, `2m`, `1h` or a plain number of seconds."""
    match = _DURATION.fullmatch(str(given))
    if match is None:
        raise typer.BadParameter(f"{str(given)[:40]!r} is not a duration such as 30s, 500ms or 2m")
    return float(match[1]) * _UNITS[match[2]]


def deprecated(old: str, new: str) -> Any:
    """A callback for an option's old name: it works, and says so."""

    def tell(value: Any) -> Any:
        from dovetail.cli.output import say

        if value:
            say(f"dovetail: {old} is called {new} now; the old name goes with the next release")
        return value

    return tell


Url = Annotated[
    str | None,
    typer.Option("--url", help=f"Broker URL: wss://host:8142/pcp; {_from_context}.", show_default=False),
]
Identity = Annotated[
    str | None,
    typer.Option(
        "--as", metavar="URI", help=f"Own URI: pcp://<certificate's name>/<type>; {_from_context}.", show_default=False
    ),
]
CertificateFile = Annotated[
    str | None, typer.Option("--certificate", help="PEM file of the client's certificate.", show_default=False)
]
TlsKey = Annotated[str | None, typer.Option("--tls-key", help="PEM file of its private key.", show_default=False)]
OldTlsKey = Annotated[str | None, typer.Option("--key", hidden=True, callback=deprecated("--key", "--tls-key"))]
AuthorityFile = Annotated[
    str | None, typer.Option("--authority", help="PEM file of the CA that signs brokers.", show_default=False)
]
AsCsv = Annotated[bool, typer.Option("--csv", help="Comma-separated values.")]
AsMarkdown = Annotated[bool, typer.Option("--markdown", help="A Markdown table.")]
Wide = Annotated[bool, typer.Option("--wide", help="Whole values, wider than the terminal if need be.")]
SigningKey = Annotated[
    Path | None,
    typer.Option("--signing-key", help="The server's signing key (`.skey`).", metavar="FILE", show_default=False),
]
OldSigningKey = Annotated[
    Path | None, typer.Option("--key", hidden=True, callback=deprecated("--key", "--signing-key"))
]
ContextName = Annotated[
    str | None,
    typer.Option("--context", metavar="NAME", help="A saved context instead of the current one.", show_default=False),
]
Wait = Annotated[
    float,
    typer.Option(
        "--wait",
        metavar="TIME",
        parser=parse_duration,
        help="Try for so long where the server is not there yet, such as 30s.",
    ),
]
Version = Annotated[int, typer.Option("--protocol", min=1, max=2, help="Protocol version.")]


def read_context(name: str | None) -> Context:
    """The context of this name, or the current one."""
    from dovetail.api.contexts import load_context

    return load_context(name)


def pcp_client(
    url: str | None,
    identity: str | None,
    *,
    context: str | None,
    certificate: str | None,
    tls_key: str | None,
    authority: str | None,
    version: int,
    wait: float,
) -> PcpClient:
    """The client of a broker, from options and the context; UsageError says what is missing."""
    from dovetail.api.pcp import PcpClient
    from dovetail.api.values import TLS

    known = read_context(context)
    url, identity = url or known.url, identity or known.identity
    if url is None:
        raise UsageError(
            "which broker? give --url, or save a context (`dovetail context save`); `dovetail dev` does both"
        )
    if identity is None:
        raise UsageError("who to be? give --as pcp://NAME/TYPE, or save it in the context")
    tls = TLS(
        certificate=certificate or known.certificate,
        key=tls_key or known.tls_key,
        authority=authority or known.authority,
    )
    if url.startswith("wss:") and not (tls.certificate and tls.key and tls.authority):
        raise UsageError("wss: needs --certificate, --tls-key and --authority")
    return PcpClient(url, identity, tls=tls, protocol=version, wait=wait)


def needed_key(given: Path | None, old: Path | None) -> Path:
    """The signing key, by either name of its option."""
    found = given or old
    if found is None:
        raise UsageError("missing option --signing-key")
    return found


def first_of(given: Path | None, known: str | None, wanted: str) -> Path:
    """What is given, or what the context has; UsageError asks for it."""
    if given is not None:
        return given
    if known is None:
        raise UsageError(f"{wanted}, or save it in a context")
    return Path(known)


def each_of(given: Sequence[Path] | None, known: Sequence[str]) -> list[Path]:
    """What is given, or what the context has."""
    return list(given) if given else [Path(path) for path in known]


def describe_sent(sent: Sent) -> dict[str, object]:
    """What became of a message, for people and machines."""
    record = {
        "address": sent.address,
        "outcome": sent.outcome,
        "targets": list(sent.targets) or None,
        "id": sent.id if sent.id != sent.address else None,
        "reason": sent.reason,
        "state": sent.state,
        "responses": list(sent.responses) or None,
    }
    return {name: value for name, value in record.items() if value is not None}
