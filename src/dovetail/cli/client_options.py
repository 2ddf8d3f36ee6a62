"""Options shared by commands that connect to a server: address, identity, keys, context, how long to wait."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, Literal

import typer

from dovetail.model.errors import ResourceBusy, UsageError

if TYPE_CHECKING:
    from dovetail.api.contexts import Context
    from dovetail.api.pcp import PcpClient
    from dovetail.api.values import Message, Sent

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "": 1.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|)")
_from_context = "from the context by default"
_TRIES = 20
_TRY_S = 0.05


def parse_duration(given: str | float) -> float:
    """Seconds from `30s`, `500ms`, `2m`, `1h` or a plain number of seconds."""
    match = _DURATION.fullmatch(str(given))
    if match is None:
        raise typer.BadParameter(f"{str(given)[:40]!r} is not a duration such as 30s, 500ms or 2m")
    return float(match[1]) * _UNITS[match[2]]


def parse_time_text(text: str, option: str = "") -> int:
    """Microseconds of a time in ISO 8601, UTC if it has no zone; UsageError names the option that it was given for."""
    from dovetail.model.times import parse_time

    try:
        return parse_time(text)
    except ValueError:
        given = f"{option} {text[:80]!r}".strip()
        raise UsageError(f"{given} is not a time such as 2026-11-15 or 2026-11-15T20:00:00Z") from None


def deprecated(old: str, new: str) -> Any:
    """A callback for an option's old name, which still works but prints a notice."""

    def tell(value: Any) -> Any:
        from dovetail.cli.output import say

        if value is not None and value is not False:
            say(f"dovetail: {old} is called {new} now; the old name will be removed in the next release")
        return value

    return tell


Url = Annotated[
    str | None,
    typer.Option("--url", metavar="URL", help=f"Broker URL: wss://host:8142/pcp; {_from_context}.", show_default=False),
]
Identity = Annotated[
    str | None,
    typer.Option(
        "--as", metavar="URI", help=f"Own URI: pcp://<certificate's name>/<type>; {_from_context}.", show_default=False
    ),
]
CertificateFile = Annotated[
    str | None,
    typer.Option("--certificate", metavar="FILE", help="PEM file of the client's certificate.", show_default=False),
]
TlsKey = Annotated[
    str | None, typer.Option("--tls-key", metavar="FILE", help="PEM file of its private key.", show_default=False)
]
OldTlsKey = Annotated[str | None, typer.Option("--key", hidden=True, callback=deprecated("--key", "--tls-key"))]
AuthorityFile = Annotated[
    str | None,
    typer.Option("--authority", metavar="FILE", help="PEM file of the CA that signs brokers.", show_default=False),
]
SigningKey = Annotated[
    Path | None,
    typer.Option("--signing-key", help="The server's signing key (`.skey`).", metavar="FILE", show_default=False),
]
OldSigningKey = Annotated[
    Path | None, typer.Option("--key", hidden=True, callback=deprecated("--key", "--signing-key"))
]


def complete_context(incomplete: str) -> list[str]:
    """The names of contexts that begin so, for completion."""
    from dovetail.api.contexts import list_contexts

    return [name for name in list_contexts() if name.startswith(incomplete)]


ContextName = Annotated[
    str | None,
    typer.Option(
        "--context",
        metavar="NAME",
        help="A saved context instead of the current one.",
        show_default=False,
        autocompletion=complete_context,
    ),
]
_CHOSEN: ContextVar[str | None] = ContextVar("context", default=None)
TablesOption = Annotated[
    str | None,
    typer.Option(
        "--tables", metavar="DIR|s3://...", help=f"Where the audit tables are; {_from_context}.", show_default=False
    ),
]
Wait = Annotated[
    float,
    typer.Option(
        "--wait",
        metavar="TIME",
        parser=parse_duration,
        help="Keep trying for this long if the server is not there yet, such as 30s.",
    ),
]
Version = Annotated[int, typer.Option("--protocol", min=1, max=2, help="Protocol version.")]


def read_context() -> Context:
    """The context that the command's `--context` names, or the current one."""
    from dovetail.api.contexts import load_context

    return load_context(_CHOSEN.get())


def in_context(command: Callable[..., None]) -> Callable[..., None]:
    """Add `--context` to a command: `read_context` returns that one."""

    @functools.wraps(command)
    def run(**given: Any) -> None:
        token = _CHOSEN.set(given.pop("context", None))
        try:
            command(**given)
        finally:
            _CHOSEN.reset(token)

    option = Parameter("context", Parameter.KEYWORD_ONLY, default=None, annotation=ContextName)
    own = [each.replace(kind=Parameter.KEYWORD_ONLY) for each in signature(command, eval_str=True).parameters.values()]
    run.__signature__ = Signature([*own, option])  # type: ignore[attr-defined]
    run.__annotations__ = {}
    return run


@dataclass(frozen=True, kw_only=True)
class BrokerOptions:
    """The options of every command that connects to a broker: which broker, and the client's identity."""

    url: Url = None
    identity: Identity = None
    certificate: CertificateFile = None
    tls_key: TlsKey = None
    old_tls_key: OldTlsKey = None
    authority: AuthorityFile = None
    version: Version = 1
    wait: Wait = 0.0

    def client(self) -> PcpClient:
        """The client, from the options and the context; UsageError says what is missing."""
        from dovetail.api.pcp import PcpClient
        from dovetail.api.values import TLS

        known = read_context()
        url, identity = self.url or known.url, self.identity or known.identity
        if url is None:
            raise UsageError(
                "no broker: give --url, or save a context (`dovetail context save`); `dovetail dev` does both"
            )
        if identity is None:
            raise UsageError("no identity: give --as pcp://NAME/TYPE, or save it in the context")
        tls = TLS(
            certificate=self.certificate or known.certificate,
            key=self.tls_key or self.old_tls_key or known.tls_key,
            authority=self.authority or known.authority,
        )
        if url.startswith("wss:") and not (tls.certificate and tls.key and tls.authority):
            raise UsageError("wss: needs --certificate, --tls-key and --authority")
        return PcpClient(url, identity, tls=tls, protocol=self.version, wait=self.wait)

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """Connect after other short commands with the same identity, since a broker keeps only the later of two.

        Raises ResourceBusy next to a command that `stay`s.
        """
        path = self._shared_context()
        with contextlib.ExitStack() as stack:
            if path is not None:
                _await_lock(stack.enter_context(path.open("rb")))
                listening = _listening(path)
                if listening.exists() and not _try_lock(stack.enter_context(listening.open("rb"))):
                    raise self._is_busy()
            yield

    @contextlib.contextmanager
    def stay(self) -> Iterator[None]:
        """Connect until the command ends; others with the same identity are refused meanwhile, instead of this one."""
        path = self._shared_context()
        with contextlib.ExitStack() as stack:
            if path is not None:
                with path.open("rb") as turn:
                    _await_lock(turn)
                    listening = _listening(path)
                    if not _try_lock(stack.enter_context(listening.open("wb"))):
                        raise self._is_busy()
                    stack.callback(listening.unlink, missing_ok=True)
            yield

    def _shared_context(self) -> Path | None:
        """The file of the context that gives this command its broker and its identity; None if there is none."""
        from dovetail.api.contexts import context_file

        known = read_context()
        is_shared = self.identity in (None, known.identity) and self.url in (None, known.url)
        return context_file(_CHOSEN.get()) if is_shared else None

    def _is_busy(self) -> ResourceBusy:
        from dovetail.pcp.uri import client_uri, parse_uri

        known = read_context()
        uri = parse_uri(str(known.identity))
        # a certificate fixes the name
        is_certified = str(known.url).startswith("wss:")
        other = (
            client_uri(uri.name, f"{uri.client_type}-2")
            if is_certified
            else client_uri(f"{uri.name}-2", uri.client_type)
        )
        return ResourceBusy(
            f"{known.identity} is listening in another command of this context; "
            f"give this one an identity of its own: --as {other}"
        )


def _listening(path: Path) -> Path:
    """The file that is locked while a command listens with the identity of a context."""
    return path.with_suffix(".listening")


def _try_lock(file: IO[bytes]) -> bool:
    """Lock a file until it is closed; False if another has locked it. True also where locks do not exist."""
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def _await_lock(file: IO[bytes]) -> None:
    """Lock a file until it is closed; says so if that takes long."""
    import fcntl
    import time

    from dovetail.cli.output import say

    for _ in range(_TRIES):
        if _try_lock(file):
            return
        time.sleep(_TRY_S)
    say("dovetail: waiting for another command of this context; --as gives this one an identity of its own")
    fcntl.flock(file, fcntl.LOCK_EX)


def needed_key(given: Path | None, old: Path | None) -> Path:
    """The signing key, by either name of its option."""
    found = given or old
    if found is None:
        raise UsageError("missing option --signing-key")
    return found


def given_or_known(given: str | Path | None, field: Literal["lake", "tables", "directory"], wanted: str) -> str:
    """The given value or that of the context; UsageError if there is neither."""
    found: str | Path | None = given if given is not None else getattr(read_context(), field)
    if found is None:
        raise UsageError(f"{wanted}, or save it in a context")
    return str(found)


def each_of(given: Sequence[Path] | None, known: Sequence[str]) -> list[Path]:
    """The given paths or those of the context."""
    return list(given) if given else [Path(path) for path in known]


def describe_message(message: Message) -> dict[str, object]:
    """A received message as a record to print."""
    from dovetail.model.times import to_us

    record = {
        "address": message.address,
        "id": message.id,
        "type": message.type,
        "sender": message.sender or None,
        "targets": list(message.targets) or None,
        "at_us": to_us(message.at),
        "in_reply_to": message.in_reply_to,
        "references": list(message.references) or None,
        "ttl_epochs": message.ttl_epochs,
    }
    is_bytes = isinstance(message.data, bytes)
    record |= {"data_hex": message.data.hex()} if is_bytes else {"data": message.data}
    return {name: value for name, value in record.items() if value is not None}


def describe_sent(sent: Sent) -> dict[str, object]:
    """The outcome of a message as a record to print."""
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


def key_values(items: list[str], option: str) -> dict[str, str]:
    """The values of an option that takes KEY=VALUE and may be repeated."""
    pairs = {}
    for item in items:
        name, equals_sign, value = item.partition("=")
        if not equals_sign or not name:
            raise UsageError(f"{option} takes KEY=VALUE, got {item[:80]!r}")
        pairs[name] = value
    return pairs
