"""`dovetail won`: nodes, owners, and existing conversation logs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dovetail.cli.client_options import EXIT_NO, describe_sent
from dovetail.cli.output import escape, print_json, say

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from dovetail.api.values import Sent
    from dovetail.runtime.won_client import OwnerHome
    from dovetail.runtime.won_server import NodeOptions
    from dovetail.won.message import Message
    from dovetail.won.owner import Owner
    from dovetail.won.vocabulary import MessageType

app = typer.Typer(no_args_is_help=True)

_FILES = Annotated[list[Path] | None, typer.Argument(help="Datasets (TriG or N-Quads); stdin if omitted or '-'.")]
_JSON = Annotated[bool, typer.Option("--json", help="One JSON object per line.")]


def _read_inputs(files: list[Path] | None) -> Iterator[tuple[str, bytes]]:
    from dovetail.model.errors import DovetailError

    for path in files or [Path("-")]:
        if str(path) == "-":
            yield "-", sys.stdin.buffer.read()
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
    as_json: _JSON = False,
    max_bytes: Annotated[int, typer.Option(help="Refuse datasets larger than this.", min=1)] = 1 << 20,
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
    as_json: _JSON = False,
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


_HOME = Annotated[
    Path | None,
    typer.Option(
        "--home",
        help="The owner's directory; from the context by default, else won-owner.",
        metavar="DIR",
        show_default=False,
    ),
]
_TIMEOUT = Annotated[float, typer.Option("--timeout", help="Seconds to wait for the responses.", min=0.1)]
_SOCKET = Annotated[str, typer.Option("--socket", help="Name of the sender's socket.")]
_TARGET = Annotated[str, typer.Argument(help="The other atom's socket: NODE/atom/ID#name.")]
_DEFAULT_HOME = "won-owner"


def _home(given: Path | None) -> Path:
    from dovetail.cli.client_options import read_context

    return given or Path(read_context(None).home or _DEFAULT_HOME)


@app.command()
def serve(
    uri: Annotated[str, typer.Option(help="The node's URI: https://HOST[:PORT]/won/resource.")],
    signing_key: Annotated[
        Path, typer.Option(help="The node's Ed25519 key (PEM), as `keys issue --kind signing` makes.")
    ],
    journal: Annotated[Path, typer.Option(help="The node's journal; created if absent.")],
    listen: Annotated[str, typer.Option(help="HOST:PORT; port 0 picks a free one.")] = "127.0.0.1:8443",
    certificate: Annotated[Path | None, typer.Option(help="The node's TLS certificate (PEM).")] = None,
    certificate_key: Annotated[Path | None, typer.Option(help="The certificate's private key (PEM).")] = None,
    authority: Annotated[
        Path | None, typer.Option(help="CA that certifies other nodes; the system's by default.")
    ] = None,
    metrics: Annotated[str | None, typer.Option(help="Address and port for /metrics and /healthz.")] = None,
) -> None:
    """Run a node until it is interrupted. The first line on stdout is its URI and port."""
    import asyncio

    from dovetail.keys import load_signing_key
    from dovetail.model.errors import UsageError
    from dovetail.runtime.won_server import NodeOptions
    from dovetail.site.config import parse_listen

    try:
        host, port = parse_listen(listen)
        metrics_at = parse_listen(metrics) if metrics is not None else None
    except ValueError as error:
        raise UsageError(f"listen or metrics: {error}") from None
    if (certificate is None) is not (certificate_key is None):
        raise UsageError("certificate and certificate-key belong together")
    options = NodeOptions(
        uri=uri,
        host=host,
        port=port,
        journal=journal,
        certificate=str(certificate) if certificate else None,
        certificate_key=str(certificate_key) if certificate_key else None,
        authority=str(authority) if authority else None,
        metrics=metrics_at,
    )
    key = load_signing_key(signing_key, uri)
    asyncio.run(_serve(options, key.private_key))


async def _serve(options: NodeOptions, key: Ed25519PrivateKey) -> None:
    import asyncio
    import signal

    from dovetail.runtime.loop import stopped_or_failed
    from dovetail.runtime.won_server import NodeServer

    server = NodeServer(options, key)
    stopping = asyncio.Event()
    asyncio.get_running_loop().set_exception_handler(_log_loop_error)
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    try:
        port = await server.start()
        ready: dict[str, object] = {"uri": options.uri, "port": port}
        if server.metrics_port is not None:
            ready["metrics_port"] = server.metrics_port
        print_json(ready)
        sys.stdout.flush()
        await stopped_or_failed(stopping, server.failed)
    finally:
        await server.stop()


def _log_loop_error(_: object, context: dict[str, object]) -> None:
    """Log an aborted TLS handshake in one line; anything else is a fault of ours."""
    import logging
    import ssl

    error = context.get("exception")
    level = logging.DEBUG if isinstance(error, OSError | ssl.SSLError) else logging.ERROR
    logging.getLogger("dovetail.won").log(level, "%s: %r", context.get("message"), error)


@app.command()
def create(
    node: Annotated[str, typer.Option(help="The node's URI: https://HOST/won/resource.")],
    home: _HOME = None,
    name: Annotated[str | None, typer.Option(help="The atom's id below NODE/atom/; random by default.")] = None,
    socket: Annotated[list[str] | None, typer.Option(help="A socket's name; repeatable.")] = None,
    content: Annotated[Path | None, typer.Option(help="A Turtle file that describes the atom (base: its URI).")] = None,
    authority: Annotated[Path | None, typer.Option(help="CA that certifies nodes; the system's by default.")] = None,
    further: Annotated[
        Path | None, typer.Option("--further-client-of", help="Another owner's directory, to act for the same atom.")
    ] = None,
    timeout: _TIMEOUT = 20.0,
    as_json: _JSON = False,
) -> None:
    """Create an atom with a key of its own, or a further client for an atom that exists."""
    import asyncio
    import secrets

    from dovetail.api.won import check_node
    from dovetail.runtime.won_client import AtomFile, OwnerHome
    from dovetail.runtime.won_server import check_node_uri
    from dovetail.won.compose import read_description

    ca = str(authority.absolute()) if authority else None
    if further is not None:
        first = OwnerHome(further)
        made = OwnerHome.create(home or Path(_DEFAULT_HOME), first.file, first.private_key)
        _run_action(made, None, timeout, as_json=as_json)
        return
    atom = f"{check_node_uri(node)}/atom/{name or secrets.token_hex(10)}"
    sockets = tuple(f"{atom}#{each}" for each in socket or ["chat"])
    description = read_description(content.read_bytes(), atom) if content else ()
    asyncio.run(check_node(node, ca, timeout))  # before anything is made
    made = OwnerHome.create(home or Path(_DEFAULT_HOME), AtomFile(atom, sockets, ca))
    _run_action(
        made, lambda owner, now: owner.create(sockets, now, description), timeout, as_json=as_json, is_created=False
    )


@app.command("connect")
def connect_atoms(
    target: _TARGET,
    text: Annotated[str | None, typer.Option(help="A message to go with the request.")] = None,
    home: _HOME = None,
    socket: _SOCKET = "chat",
    timeout: _TIMEOUT = 20.0,
    as_json: _JSON = False,
) -> None:
    """Request or accept a connection with another atom."""
    from dovetail.won.vocabulary import MessageType

    _speak(MessageType.CONNECT, target, text, home, socket, timeout, as_json=as_json)


@app.command()
def send(
    target: _TARGET,
    text: Annotated[str, typer.Argument(help="Text of the message.")],
    home: _HOME = None,
    socket: _SOCKET = "chat",
    forward: Annotated[
        list[str] | None, typer.Option(help="URI of a message in the owner's log to refer to; repeatable.")
    ] = None,
    timeout: _TIMEOUT = 20.0,
    as_json: _JSON = False,
) -> None:
    """Send a message on a connection, and wait until both nodes have stored it."""
    from dovetail.won.vocabulary import MessageType

    _speak(MessageType.CONNECTION, target, text, home, socket, timeout, forward or (), as_json=as_json)


@app.command()
def close(
    target: _TARGET,
    text: Annotated[str | None, typer.Option(help="A last message.")] = None,
    home: _HOME = None,
    socket: _SOCKET = "chat",
    timeout: _TIMEOUT = 20.0,
    as_json: _JSON = False,
) -> None:
    """Close a connection."""
    from dovetail.won.vocabulary import MessageType

    _speak(MessageType.CLOSE, target, text, home, socket, timeout, as_json=as_json)


@app.command()
def replace(
    socket: Annotated[
        list[str] | None, typer.Option(help="A socket's name; repeatable. Those it has by default.")
    ] = None,
    content: Annotated[Path | None, typer.Option(help="A Turtle file that describes the atom (base: its URI).")] = None,
    home: _HOME = None,
    timeout: _TIMEOUT = 20.0,
    as_json: _JSON = False,
) -> None:
    """Replace the atom's description and sockets. Partners are notified; connections of removed sockets are closed."""
    from dovetail.runtime.won_client import OwnerHome
    from dovetail.won.compose import read_description

    owned = OwnerHome(_home(home))
    atom = owned.file.atom
    sockets = tuple(f"{atom}#{each}" for each in socket) if socket else owned.file.sockets
    description = read_description(content.read_bytes(), atom) if content else ()
    _run_action(owned, lambda owner, now: owner.replace(sockets, now, description), timeout, as_json=as_json)
    owned.set_sockets(sockets)


@app.command()
def activate(home: _HOME = None, timeout: _TIMEOUT = 20.0, as_json: _JSON = False) -> None:
    """Let an inactive atom take connections again."""
    _change("ActivateMessage", home, timeout, as_json=as_json)


@app.command()
def deactivate(home: _HOME = None, timeout: _TIMEOUT = 20.0, as_json: _JSON = False) -> None:
    """Close the atom's connections and take no new ones until it is activated."""
    _change("DeactivateMessage", home, timeout, as_json=as_json)


@app.command()
def delete(home: _HOME = None, timeout: _TIMEOUT = 20.0, as_json: _JSON = False) -> None:
    """End the atom for good: its connections are closed, its description is gone; its log stays."""
    _change("DeleteMessage", home, timeout, as_json=as_json)


def _change(kind: str, home: Path | None, timeout: float, *, as_json: bool) -> None:
    from dovetail.runtime.won_client import OwnerHome
    from dovetail.won.vocabulary import MessageType

    _run_action(
        OwnerHome(_home(home)), lambda owner, now: owner.change(MessageType(kind), now), timeout, as_json=as_json
    )


@app.command("get")
def read_document(
    uri: Annotated[str, typer.Argument(help="A connection, container or message at a node.")],
    home: _HOME = None,
) -> None:
    """Print a document of a conversation in TriG; the request is signed with the atom's key."""
    import asyncio

    from dovetail.model.errors import DovetailError
    from dovetail.runtime.won_client import OwnerHome

    data = asyncio.run(OwnerHome(_home(home)).read_signed(uri))
    if data is None:
        raise DovetailError(f"{uri} is not there, or not for this atom")
    for line in data.decode(errors="replace").splitlines():
        sys.stdout.write(escape(line) + "\n")


def _speak(
    kind: MessageType,
    target: str,
    text: str | None,
    home: Path | None,
    socket: str,
    timeout: float,
    forward: Iterable[str] = (),
    *,
    as_json: bool,
) -> None:
    from dovetail.model.errors import RemoteProtocolError, UsageError
    from dovetail.runtime.won_client import OwnerHome
    from dovetail.won.vocabulary import check_socket_uri

    try:
        check_socket_uri(target)
    except RemoteProtocolError as error:
        raise UsageError(error.detail) from None
    owned = OwnerHome(_home(home))
    own = f"{owned.file.atom}#{socket}"
    _run_action(
        owned, lambda owner, now: owner.send_message(kind, own, target, now, text, forward), timeout, as_json=as_json
    )


def _run_action(
    home: OwnerHome,
    action: Callable[[Owner, int], Message] | None,
    timeout: float,
    *,
    as_json: bool,
    is_created: bool = True,
) -> None:
    """Catch up, send one message, wait for its responses and print what became of it; exit 3 unless it is complete."""
    import asyncio

    from dovetail.api.won import WonClient
    from dovetail.cli.output import print_record

    client = WonClient(home.directory, timeout=timeout, is_created=is_created)

    async def run() -> Sent | None:
        async with client:
            return None if action is None else await client.act(action)

    sent = asyncio.run(run())
    if sent is None:
        print_record({"atom": client.atom, "state": "registered"}, as_json=as_json)
        return
    record = describe_sent(sent) | {"atom": client.atom}
    if not is_created:
        record["sockets"] = list(client.sockets)
    print_record(record, as_json=as_json)
    if not sent.is_final:
        say(f"dovetail: {sent.reason or 'the other node has not answered yet'}")
    if not sent.ok or not sent.is_final:
        raise typer.Exit(EXIT_NO)


@app.command("log")
def show_log(
    target: Annotated[str | None, typer.Argument(help="Only the conversation with this socket.")] = None,
    home: _HOME = None,
    offline: Annotated[bool, typer.Option("--offline", help="Do not contact the node for updates or keys.")] = False,
    trig: Annotated[
        bool, typer.Option("--trig", help="Print every message whole, as TriG; `won chains` reads it.")
    ] = False,
    timeout: _TIMEOUT = 10.0,
    as_json: _JSON = False,
) -> None:
    """Show the atom's conversations with their chain states, and whether the log is intact. Exit 3 if it is not."""
    import asyncio

    from dovetail.runtime.won_client import OwnerClient, OwnerHome
    from dovetail.won.conversation_text import read_conversation

    owned = OwnerHome(_home(home))

    async def catch_up() -> None:
        async with OwnerClient(owned) as client:
            if not await client.wait_registered(timeout):
                say(f"node {client.owner.node} did not answer within {timeout} s; this is what is here")

    if not offline:
        asyncio.run(catch_up())
    raws = owned.read_messages()
    conversation = read_conversation(owned.file.atom, raws, target)
    if not offline:
        asyncio.run(owned.fetch_keys(conversation.signers))
    findings = conversation.check(owned.find_keys(conversation.signers))
    if trig:
        sys.stdout.buffer.write(conversation.dataset())
    elif as_json:
        _print_lines(conversation.records())
    else:
        for line in conversation.lines():
            sys.stdout.write(escape(line) + "\n")
    for finding in findings:
        say(f"{finding.kind.value}: {finding.uri}: {finding.detail}")
    say(f"{len(raws)} messages, " + ("the log is intact" if not findings else f"{len(findings)} findings"))
    if findings:
        raise typer.Exit(EXIT_NO)
