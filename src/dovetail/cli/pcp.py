"""`dovetail pcp`: the broker and its clients."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dovetail.model.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from dovetail.pcp.client_events import Incoming
    from dovetail.pcp.settings import PcpSettings
    from dovetail.runtime.pcp_client import PcpClient

app = typer.Typer(no_args_is_help=True)
_MAX_LINE_CHARS = 2 * 65 * 1024 * 1024

AsJson = Annotated[bool, typer.Option("--json", help="One JSON object per line.")]
ConfigFile = Annotated[
    Path | None, typer.Option("--config", help="TOML file with a section [pcp].", show_default=False)
]
Url = Annotated[str, typer.Option("--url", help="Broker URL: wss://host:8142/pcp, or /pcp2 for version 2.")]
Identity = Annotated[str, typer.Option("--as", metavar="URI", help="Own URI: pcp://<certificate's name>/<type>.")]
CertificateFile = Annotated[
    str | None, typer.Option("--certificate", help="PEM file of the client's certificate.", show_default=False)
]
KeyFile = Annotated[str | None, typer.Option("--key", help="PEM file of its private key.", show_default=False)]
AuthorityFile = Annotated[
    str | None, typer.Option("--authority", help="PEM file of the CA that signs brokers.", show_default=False)
]
Version = Annotated[int, typer.Option("--protocol", min=1, max=2, help="Protocol version.")]


@app.callback()
def pcp() -> None:
    """The pcp broker and its clients."""


@app.command()
def serve(
    config: ConfigFile = None,
    name: Annotated[str | None, typer.Option(help="The broker's common name.", show_default=False)] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.", show_default=False)] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on; 0 takes a free one.", show_default=False)] = None,
    certificate: CertificateFile = None,
    key: KeyFile = None,
    authority: AuthorityFile = None,
    revocations: Annotated[
        str | None, typer.Option(help="Revocation list of the CA; watched.", show_default=False)
    ] = None,
    journal: Annotated[str | None, typer.Option(help="Path of the journal.", show_default=False)] = None,
    durability: Annotated[str | None, typer.Option(help="relaxed or full.", show_default=False)] = None,
    metrics_port: Annotated[int | None, typer.Option(help="Port of /metrics and /healthz.", show_default=False)] = None,
    insecure_plain: Annotated[bool, typer.Option("--insecure-plain", help="No TLS; loopback only.")] = False,
    allow_all: Annotated[bool, typer.Option("--allow-all", help="Allow any client to send anything.")] = False,
    as_json: AsJson = False,
) -> None:
    """Run a broker until SIGTERM or SIGINT; queued frames are written first. SIGHUP reloads the rules."""
    from dovetail.pcp.settings import ALLOW_ALL
    from dovetail.runtime.pcp_serve import run_broker

    overrides: dict[str, Any] = {
        "name": name,
        "host": host,
        "port": port,
        "certificate": certificate,
        "key": key,
        "authority": authority,
        "revocations": revocations,
        "journal": journal,
        "durability": durability,
        "metrics_port": metrics_port,
        "insecure_plain": insecure_plain or None,
        "rules": ALLOW_ALL if allow_all else None,
    }
    run_broker(
        load_settings(config, overrides),
        lambda started: _print_started(started, as_json=as_json),
        read_settings=lambda: load_settings(config, overrides),
    )


@app.command()
def send(
    message_type: Annotated[str, typer.Argument(metavar="TYPE", help="Message type.")],
    targets: Annotated[list[str], typer.Argument(metavar="TARGET...", help="Recipients.")],
    url: Url,
    identity: Identity,
    data: Annotated[str | None, typer.Option(help="JSON text, or @FILE for raw bytes.", show_default=False)] = None,
    ttl: Annotated[float, typer.Option(help="Lifetime in seconds.", min=0.001)] = 30.0,
    report: Annotated[bool, typer.Option("--report", help="Request a destination report and print it.")] = False,
    await_reply: Annotated[bool, typer.Option("--reply", help="Wait for the reply and print it.")] = False,
    certificate: CertificateFile = None,
    key: KeyFile = None,
    authority: AuthorityFile = None,
    version: Version = 1,
    as_json: AsJson = False,
) -> None:
    """Send one message; print its id, its destination report or the reply."""
    from dovetail.cli.output import print_record

    content = _read_data(data)
    ttl_ms = int(ttl * 1000)

    async def work(client: PcpClient) -> None:
        if report:
            reported = await client.send_reported(message_type, targets, content, ttl_ms=ttl_ms)
            print_record({"targets": list(reported)}, as_json=as_json)
        elif await_reply:
            if len(targets) != 1:
                raise UsageError(f"--reply with {len(targets)} targets, expected one")
            reply = await client.request(message_type, targets[0], content, ttl_ms=ttl_ms)
            print_record(_describe(reply), as_json=as_json)
        else:
            message_id = await client.send(message_type, targets, content, ttl_ms=ttl_ms)
            print_record({"id": message_id}, as_json=as_json)

    _run_client(url, identity, version, certificate, key, authority, work, ttl)


@app.command()
def listen(
    url: Url,
    identity: Identity,
    count: Annotated[int, typer.Option(help="Exit after this many messages (0: never).", min=0)] = 0,
    certificate: CertificateFile = None,
    key: KeyFile = None,
    authority: AuthorityFile = None,
    version: Version = 1,
) -> None:
    """Print messages as they arrive, one JSON object per line."""
    from dovetail.cli.output import print_json

    async def work(client: PcpClient) -> None:
        left = count
        async for message in client.messages():
            print_json(_describe(message))
            sys.stdout.flush()
            left -= 1
            if left == 0:
                return

    _run_client(url, identity, version, certificate, key, authority, work)


@app.command()
def inventory(
    patterns: Annotated[list[str], typer.Argument(metavar="PATTERN...", help="pcp://*/agent, pcp://host/*, ...")],
    url: Url,
    identity: Identity,
    follow: Annotated[
        bool,
        typer.Option("--follow", help="Keep watching; print +1 when a client connects and -1 when it disconnects."),
    ] = False,
    certificate: CertificateFile = None,
    key: KeyFile = None,
    authority: AuthorityFile = None,
    version: Version = 1,
    as_json: AsJson = False,
) -> None:
    """List connected clients."""
    from dovetail.cli.output import print_json, print_rows

    async def work(client: PcpClient) -> None:
        if not follow:
            uris = await client.inventory(*patterns)
            print_rows([{"uri": uri} for uri in uris], ["uri"], as_json=as_json)
            return
        async for uri, change in client.subscribe(*patterns):
            print_json({"client": uri, "change": change})
            sys.stdout.flush()

    _run_client(url, identity, version, certificate, key, authority, work)


@app.command()
def trace(
    message_type: Annotated[str, typer.Argument(metavar="TYPE", help="Message type.")],
    targets: Annotated[list[str], typer.Argument(metavar="TARGET...", help="Recipients to check.")],
    config: Annotated[Path, typer.Option("--config", help="The broker's configuration: its rules.")],
    sender: Annotated[str, typer.Option(help="URI of the sender.")],
    clients: Annotated[
        list[str] | None, typer.Option("--client", help="A client assumed to be connected; repeatable.")
    ] = None,
    url: Annotated[str | None, typer.Option(help="Ask this broker who is connected.", show_default=False)] = None,
    identity: Annotated[
        str | None, typer.Option("--as", metavar="URI", help="Own URI for the query.", show_default=False)
    ] = None,
    certificate: CertificateFile = None,
    key: KeyFile = None,
    authority: AuthorityFile = None,
    version: Version = 1,
    as_json: AsJson = False,
) -> None:
    """Show which clients would receive a message and the rule that decides; nothing is delivered."""
    from dovetail.cli.output import print_rows, say
    from dovetail.pcp.authorization import Authorization
    from dovetail.pcp.inventory import Registry
    from dovetail.pcp.routing import trace_route
    from dovetail.pcp.session import Mount, Session
    from dovetail.pcp.uri import is_uri

    settings = load_settings(config, {})
    connected = list(clients or ())
    if url is not None:
        if identity is None:
            raise UsageError("--url needs --as, who to be when asking the broker")

        async def work(client: PcpClient) -> None:
            connected.extend(await client.inventory("pcp://*/*"))

        _run_client(url, identity, version, certificate, key, authority, work)
    for uri in (sender, *targets, *connected):
        if not is_uri(uri):
            raise UsageError(f"{uri!r} is not a PCP URI, expected pcp://<name>/<type>")
    registry = Registry()
    for number, uri in enumerate(connected):
        registry.add(uri, Session(str(number), None, Mount(1, None), 0))
    traced = trace_route(sender, message_type, targets, Authorization(settings), registry)
    if traced.forbidden is not None:
        say(f"refused: {traced.forbidden}")
    rows = [
        {
            "target": verdict.target,
            "verdict": "allow" if verdict.is_allowed else "deny",
            "connected": verdict.target in registry.by_uri,
            "rule": "no rule matches" if verdict.rule is None else verdict.rule.describe(),
        }
        for verdict in traced.verdicts
    ]
    print_rows(rows, ["target", "verdict", "connected", "rule"], as_json=as_json)
    for target in traced.unmatched:
        say(f"{target}: nobody there")
    say("would be delivered to all of them" if traced.is_allowed else "would be refused: nobody gets it")
    if not traced.is_allowed:
        raise typer.Exit(1)


@app.command()
def decode(
    hex_frames: Annotated[list[str] | None, typer.Argument(metavar="HEX...", help="Frames in hex; or stdin.")] = None,
    layer: Annotated[str, typer.Option(help="v1, v2 or auto (by the first byte).")] = "auto",
    now: Annotated[int | None, typer.Option(help="Unix milliseconds; expiry is judged at this time.")] = None,
    as_json: AsJson = False,
) -> None:
    """Explain captured frames: their fields, or the class and detail of the error."""
    from dovetail.cli.output import print_record
    from dovetail.pcp.fabric import FABRIC

    if layer not in {"auto", "v1", "v2"}:
        raise UsageError(f"layer {layer!r}, expected auto, v1 or v2")
    stdin = (line.strip() for line in iter(lambda: sys.stdin.readline(_MAX_LINE_CHARS), ""))
    for text in hex_frames or stdin:
        if not text:
            continue
        try:
            frame = bytes.fromhex(text)
        except ValueError as error:
            fields: dict[str, object] = {"error": "malformed", "detail": f"not hexadecimal: {error}"}
        else:
            fields = FABRIC.explain(frame, layer, None if now is None else now * 1000)
        print_record(fields, as_json=as_json)


def load_settings(path: Path | None, overrides: dict[str, Any]) -> PcpSettings:
    """The section [pcp] of a file, with what the command line overrides; raises ConfigError."""
    import msgspec

    from dovetail.pcp.settings import PcpSettings
    from dovetail.site.config.toml import read_toml

    table: dict[str, Any] = {} if path is None else read_toml(path).get("pcp", {})
    if not isinstance(table, dict):
        raise ConfigError(f"{path}: `dovetail up` runs [[pcp]] tables; this takes a file with one [pcp]")
    table |= {key: msgspec.to_builtins(value) for key, value in overrides.items() if value is not None}
    try:
        return msgspec.convert(table, PcpSettings)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path or 'command line'}: [pcp]: {str(error)[:1].lower()}{str(error)[1:]}") from None


def _print_started(started: dict[str, object], *, as_json: bool) -> None:
    from dovetail.cli.output import print_json

    if as_json:
        print_json(started)
        sys.stdout.flush()


def _read_data(text: str | None) -> object:
    import json

    if text is None:
        return None
    if text.startswith("@"):
        return Path(text[1:]).read_bytes()
    try:
        json.loads(text)
    except ValueError as error:
        raise UsageError(f"--data is not JSON: {error}") from None
    return text.encode()


def _describe(message: Incoming) -> dict[str, object]:
    fields: dict[str, object] = {
        "id": message.id,
        "message_type": message.message_type,
        "sender": message.sender,
        "targets": list(message.targets),
    }
    if message.in_reply_to is not None:
        fields["in_reply_to"] = message.in_reply_to
    if message.data is not None:
        try:
            fields["data"] = message.json()
        except ValueError:
            fields["data_hex"] = message.data.hex()
    return fields


def _run_client(
    url: str,
    identity: str,
    version: int,
    certificate: str | None,
    key: str | None,
    authority: str | None,
    work: Any,
    timeout_s: float = 30.0,
) -> None:
    import asyncio

    from dovetail.model.errors import NotAllowed
    from dovetail.runtime.pcp_client import PcpClient
    from dovetail.runtime.tls import client_context

    context = None
    if url.startswith("wss:"):
        if not (certificate and key and authority):
            raise UsageError("wss: needs --certificate, --key and --authority")
        context = client_context(certificate, key, authority)

    async def run() -> None:
        async with PcpClient(url, identity, version=version, context=context) as client:
            try:
                await client.wait_associated(timeout_s)
            except TimeoutError:
                raise NotAllowed(f"{identity} is not associated with {url} after {timeout_s:g} s") from None
            await work(client)
            await client.flush()

    asyncio.run(run())
