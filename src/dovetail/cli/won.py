"""`dovetail won`: nodes, owners, and existing conversation logs."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dovetail.cli.client_options import Wait, deprecated, describe_sent, in_context
from dovetail.cli.exit_codes import EXIT_NO
from dovetail.cli.option_groups import takes_groups
from dovetail.cli.output import escape, print_json, say
from dovetail.cli.table_options import AsJson

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator

    from dovetail.api.values import Sent
    from dovetail.api.won import ConversationLog, WonClient

app = typer.Typer(no_args_is_help=True)

_FILES = Annotated[list[Path] | None, typer.Argument(help="Datasets (TriG or N-Quads); stdin if omitted or '-'.")]


def _read_inputs(files: list[Path] | None) -> Iterator[tuple[str, bytes]]:
    from dovetail.cli.stdin import read_stdin
    from dovetail.model.errors import DovetailError

    for path in files or [Path("-")]:
        if str(path) == "-":
            yield "-", read_stdin(-1)
            continue
        try:
            yield str(path), path.read_bytes()
        except OSError as error:
            raise DovetailError(f"cannot read {path}: {error.strerror}") from None


def _print_lines(records: Iterable[dict[str, object]]) -> None:
    for record in records:
        print_json(record)


@app.callback()
def won() -> None:
    """Nodes and owners: signed, content-addressed messages with delivery chains."""


@app.command()
def decode(
    files: _FILES = None,
    as_json: AsJson = False,
    max_bytes: Annotated[int, typer.Option(metavar="BYTES", help="Refuse datasets larger than this.", min=1)] = 1 << 20,
) -> None:
    """Explain captured datasets: one record per message, or the reason for refusing it."""
    import msgspec

    from dovetail.model.errors import RemoteProtocolError
    from dovetail.won.canonical import WIRE
    from dovetail.won.fabric import explain_message
    from dovetail.won.message import decode_bundle

    limits = msgspec.structs.replace(WIRE, dataset_bytes=max_bytes)
    for _, data in _read_inputs(files):
        try:
            records = [explain_message(message) for message in decode_bundle(data, limits).messages]
        except RemoteProtocolError as error:
            records = [{"error": error.reason.value, "detail": error.detail}]
        if as_json:
            _print_lines(records)
            continue
        for record in records:
            for name, value in record.items():
                shown = " ".join(map(str, value)) if isinstance(value, list) else str(value)
                sys.stdout.write(f"{name + ':':26}{escape(shown)}\n")
            sys.stdout.write("\n")


@app.command()
def chains(
    files: _FILES = None,
    as_json: AsJson = False,
    summary: Annotated[
        bool, typer.Option("--summary", help="With --json: a last object with counts and findings.")
    ] = False,
) -> None:
    """Rebuild delivery chains from dataset dumps and report what is wrong with them."""
    from collections import Counter

    from dovetail.won.dump import read_dumps

    dump = read_dumps(_read_inputs(files))
    states = Counter(str(m.state.value) for m in dump.messages.values() if m.state is not None)
    verdicts = Counter(m.address for m in dump.messages.values())
    counts = {"messages": len(dump.messages), "states": dict(states), "addresses": dict(verdicts)}
    findings = dump.findings
    if as_json:
        _print_lines(
            {
                "uri": m.uri,
                "type": m.type,
                "from": m.sender,
                "to": m.recipient,
                "timestamp": m.timestamp,
                "connection": m.connection,
                "respondingTo": list(m.responding_to),
                "responses": [{"uri": uri, "role": role.value} for uri, role in m.responses],
                "state": m.state.value if m.state else None,
                "previousMessage": list(m.previous),
                "address": m.address,
                "findings": m.findings,
            }
            for m in dump.messages.values()
        )
        if summary:
            _print_lines([{"summary": counts, "findings": findings}])
    else:
        for m in dump.messages.values():
            state = m.state.value if m.state else "response"
            sys.stdout.write(escape(f"{m.uri}  {m.type}  {state}  {m.address}") + "\n")
            sys.stdout.write(escape(f"    from {m.sender}  to {m.recipient}") + "\n")
            for uri, role in m.responses:
                sys.stdout.write(escape(f"    {role.value:8}{uri}") + "\n")
            for uri in m.previous:
                sys.stdout.write(escape(f"    previous {uri}") + "\n")
            for text in m.findings:
                sys.stdout.write(escape(f"    ! {text}") + "\n")
    talk = f"{len(dump.messages)} messages"
    talk += "".join(f", {count} {name}" for name, count in sorted((states + verdicts).items()))
    say(f"{talk}; {len(findings)} findings")
    for text in dump.damages if as_json else findings:
        say(text)
    if dump.damages:
        raise typer.Exit(EXIT_NO)


_SOCKET = Annotated[str, typer.Option("--socket", metavar="NAME", help="Name of the sender's socket.")]
_TARGET = Annotated[str, typer.Argument(help="The other atom's socket: NODE/atom/ID#name.")]
_SOCKETS = Annotated[list[str] | None, typer.Option(metavar="NAME", help="A socket's name; repeatable.")]
_CONTENT = Annotated[
    Path | None, typer.Option(metavar="FILE", help="A Turtle file that describes the atom (base: its URI).")
]
_DEFAULT_HOME = "won-owner"


@dataclass(frozen=True, kw_only=True)
class HomeOption:
    """Which owner."""

    home: Annotated[
        Path | None,
        typer.Option(
            "--home",
            help="The owner's directory; from the context by default, else won-owner.",
            metavar="DIR",
            show_default=False,
        ),
    ] = None

    @property
    def directory(self) -> Path:
        """The owner's directory."""
        from dovetail.cli.client_options import read_context
        from dovetail.model.errors import UsageError

        known = self.home or read_context().home
        if known is None and not Path(_DEFAULT_HOME).exists():
            raise UsageError("no owner: give --home, or save it in a context; `dovetail won create` makes one")
        return Path(known or _DEFAULT_HOME)


@dataclass(frozen=True, kw_only=True)
class OwnerOptions(HomeOption):
    """The options of every command that sends a message of an atom: which owner, how long to wait, how to print."""

    timeout: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", help="Seconds to wait for the responses.", min=0.1)
    ] = 20.0
    wait: Wait = 0.0
    as_json: AsJson = False

    def client(self) -> WonClient:
        """The owner, not connected yet."""
        from dovetail.api.won import WonClient

        return WonClient(self.directory, timeout=self.timeout, wait=self.wait)

    def act(self, action: Callable[[WonClient], Awaitable[Sent]], target: str | None = None) -> None:
        """Catch up, send one message, wait for its responses and print the outcome."""
        import asyncio

        from dovetail.api.won import check_target

        if target is not None:
            check_target(target)
        client = self.client()

        async def run() -> Sent:
            async with client:
                return await action(client)

        self.show(asyncio.run(run()), {"atom": client.atom})

    def show(self, sent: Sent, extra: dict[str, object]) -> None:
        """Print the outcome of a message; exit 3 unless it is complete."""
        from dovetail.cli.output import print_record

        print_record(describe_sent(sent) | extra, as_json=self.as_json)
        if not sent.is_final:
            say(f"dovetail: {sent.reason or 'the other node has not answered yet'}")
        if not sent.ok or not sent.is_final:
            raise typer.Exit(EXIT_NO)


@app.command()
def serve(
    uri: Annotated[str, typer.Option(metavar="URI", help="The node's URI: https://HOST[:PORT]/won/resource.")],
    signing_key: Annotated[
        Path, typer.Option(metavar="FILE", help="The node's Ed25519 key (PEM), as `keys issue --kind signing` makes.")
    ],
    journal: Annotated[Path, typer.Option(metavar="FILE", help="The node's journal; created if absent.")],
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Address to listen on; port 0 picks a free one.")
    ] = "127.0.0.1:8443",
    certificate: Annotated[Path | None, typer.Option(metavar="FILE", help="The node's TLS certificate (PEM).")] = None,
    tls_key: Annotated[Path | None, typer.Option(metavar="FILE", help="The certificate's private key (PEM).")] = None,
    certificate_key: Annotated[
        Path | None, typer.Option(hidden=True, callback=deprecated("--certificate-key", "--tls-key"))
    ] = None,
    authority: Annotated[
        Path | None, typer.Option(metavar="FILE", help="CA that certifies other nodes; the system's by default.")
    ] = None,
    metrics: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Address and port for /metrics and /healthz.")
    ] = None,
) -> None:
    """Run a node until it is interrupted. The first line on stdout is its URI and port."""
    import asyncio

    from dovetail.keys import load_signing_key
    from dovetail.model.errors import UsageError
    from dovetail.runtime.won_server import NodeOptions, NodeServer, serve_node
    from dovetail.site.config import parse_listen

    try:
        host, port = parse_listen(listen)
        metrics_at = parse_listen(metrics) if metrics is not None else None
    except ValueError as error:
        raise UsageError(f"listen or metrics: {error}") from None
    tls_key = tls_key or certificate_key
    if (certificate is None) is not (tls_key is None):
        raise UsageError("give both --certificate and --tls-key, or neither")
    options = NodeOptions(
        uri=uri,
        host=host,
        port=port,
        journal=journal,
        certificate=str(certificate) if certificate else None,
        certificate_key=str(tls_key) if tls_key else None,
        authority=str(authority) if authority else None,
        metrics=metrics_at,
    )
    server = NodeServer(options, load_signing_key(signing_key, uri).private_key)

    def on_ready(ready: dict[str, object]) -> None:
        print_json({"uri": ready.pop("server"), **ready})
        sys.stdout.flush()

    asyncio.run(serve_node(server, on_ready))


@app.command()
@in_context
@takes_groups
def create(
    owner: OwnerOptions,
    node: Annotated[str, typer.Option(metavar="URI", help="The node's URI: https://HOST/won/resource.")],
    name: Annotated[
        str | None, typer.Option(metavar="ID", help="The atom's id below NODE/atom/; random by default.")
    ] = None,
    socket: _SOCKETS = None,
    content: _CONTENT = None,
    authority: Annotated[
        Path | None, typer.Option(metavar="FILE", help="CA that certifies nodes; the system's by default.")
    ] = None,
    further: Annotated[
        Path | None,
        typer.Option("--further-client-of", metavar="DIR", help="Another owner's directory, to act for the same atom."),
    ] = None,
) -> None:
    """Create an atom with a key of its own, or a further client for an atom that exists."""
    import asyncio

    from dovetail.api.won import WonClient
    from dovetail.cli.client_options import read_context
    from dovetail.cli.output import print_record
    from dovetail.model.errors import NotDelivered

    home = owner.home or Path(read_context().home or _DEFAULT_HOME)
    description = content.read_bytes() if content else None

    async def run() -> Sent | None:
        if further is not None:
            async with await WonClient.create_further(further, home, timeout=owner.timeout, wait=owner.wait):
                return None
        try:
            client = await WonClient.create(
                node,
                home,
                name=name,
                sockets=socket or ["chat"],
                content=description,
                authority=authority,
                wait=owner.wait,
                timeout=owner.timeout,
            )
        except NotDelivered as error:
            refused: Sent = error.sent
            return refused
        return client.created

    sent = asyncio.run(run())
    made = WonClient(home)
    if sent is None:
        print_record({"atom": made.atom, "state": "registered"}, as_json=owner.as_json)
    else:
        owner.show(sent, {"atom": made.atom, "sockets": list(made.sockets)})


@app.command("connect")
@in_context
@takes_groups
def connect_atoms(
    owner: OwnerOptions,
    target: _TARGET,
    text: Annotated[str | None, typer.Option(help="A message to go with the request.")] = None,
    socket: _SOCKET = "chat",
) -> None:
    """Request or accept a connection with another atom."""
    owner.act(lambda client: client.open(target, text, socket=socket), target)


@app.command()
@in_context
@takes_groups
def send(
    owner: OwnerOptions,
    target: _TARGET,
    text: Annotated[str, typer.Argument(help="Text of the message.")],
    socket: _SOCKET = "chat",
    forward: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ADDRESS", help="A message in the owner's log to refer to: wm:/..., hex, or a prefix; repeatable."
        ),
    ] = None,
) -> None:
    """Send a message on a connection, and wait until both nodes have stored it."""
    owner.act(lambda client: client.send(target, text, socket=socket, forward=forward or ()), target)


@app.command()
@in_context
@takes_groups
def close(
    owner: OwnerOptions,
    target: _TARGET,
    text: Annotated[str | None, typer.Option(help="A final message.")] = None,
    socket: _SOCKET = "chat",
) -> None:
    """Close a connection."""
    owner.act(lambda client: client.close(target, text, socket=socket), target)


@app.command()
@in_context
@takes_groups
def replace(owner: OwnerOptions, socket: _SOCKETS = None, content: _CONTENT = None) -> None:
    """Replace the atom's description and sockets; without --socket it keeps those it has.

    Partners are notified; connections of removed sockets are closed.
    """
    description = content.read_bytes() if content else None
    owner.act(lambda client: client.replace(socket, description))


@app.command()
@in_context
@takes_groups
def activate(owner: OwnerOptions) -> None:
    """Let an inactive atom take connections again."""
    owner.act(lambda client: client.activate())


@app.command()
@in_context
@takes_groups
def deactivate(owner: OwnerOptions) -> None:
    """Close the atom's connections and take no new ones until it is activated."""
    owner.act(lambda client: client.deactivate())


@app.command()
@in_context
@takes_groups
def delete(owner: OwnerOptions) -> None:
    """End the atom for good: its connections are closed, its description is gone; its log stays."""
    owner.act(lambda client: client.delete())


@app.command("get")
@in_context
@takes_groups
def read_document(
    owner: HomeOption,
    uri: Annotated[str, typer.Argument(help="A connection, container or message at a node.")],
) -> None:
    """Print a document of a conversation in TriG; the request is signed with the atom's key."""
    import asyncio

    from dovetail.api.won import WonClient

    data = asyncio.run(WonClient(owner.directory).read(uri))
    for line in data.decode(errors="replace").splitlines():
        sys.stdout.write(escape(line) + "\n")


@app.command("log")
@in_context
@takes_groups
def show_log(
    owner: OwnerOptions,
    target: Annotated[str | None, typer.Argument(help="Only the conversation with this socket.")] = None,
    offline: Annotated[bool, typer.Option("--offline", help="Do not contact the node for updates or keys.")] = False,
    trig: Annotated[
        bool, typer.Option("--trig", help="Print every message whole, as TriG; `won chains` reads it.")
    ] = False,
) -> None:
    """Show the atom's conversations with their chain states, and whether the log is intact. Exit 3 if it is not."""
    import asyncio

    from dovetail.model.errors import ConnectFailed

    client = owner.client()

    async def read() -> ConversationLog:
        if not offline:
            try:
                async with client:
                    pass
            except ConnectFailed as error:
                say(f"{error}; showing the local copy")
        return await client.log(target, offline=offline)

    log = asyncio.run(read())
    if trig:
        sys.stdout.buffer.write(log.trig())
    elif owner.as_json:
        _print_lines(log.records())
    else:
        for line in log.lines():
            sys.stdout.write(escape(line) + "\n")
    for finding in log.findings:
        say(f"{finding.kind.value}: {finding.uri}: {finding.detail}")
    say(
        f"{log.size} messages and responses, "
        + ("the log is intact" if not log.findings else f"{len(log.findings)} findings")
    )
    if log.findings:
        raise typer.Exit(EXIT_NO)
