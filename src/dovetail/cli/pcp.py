"""`dovetail pcp`: the broker and its clients."""

from __future__ import annotations

import asyncio
import logging
import re
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from dovetail.cli.client_options import (
    BrokerOptions,
    OldTlsKey,
    TlsKey,
    deprecated,
    describe_message,
    describe_sent,
    in_context,
)
from dovetail.cli.exit_codes import EXIT_NO
from dovetail.cli.option_groups import takes_groups
from dovetail.cli.output import print_json, print_record, print_rows, say
from dovetail.cli.stdin import read_stdin, stdin_lines
from dovetail.cli.table_options import AsJson, Form
from dovetail.model.errors import ConfigError, NotDelivered, TimedOut, UsageError

if TYPE_CHECKING:
    from dovetail.api.pcp import PcpClient
    from dovetail.api.values import Message, Sent
    from dovetail.pcp.settings import PcpSettings

app = typer.Typer(no_args_is_help=True)
_MAX_LINE_CHARS = 2 * 65 * 1024 * 1024
MAX_DATA_BYTES = 64 * 1024 * 1024

ConfigFile = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="TOML file with a section [pcp].", show_default=False)
]


@app.callback()
def pcp() -> None:
    """The pcp broker and its clients."""


@dataclass(frozen=True, kw_only=True)
class BrokerOverrides:
    """Settings of a broker that are given on the command line."""

    name: Annotated[str | None, typer.Option(metavar="NAME", help="The broker's common name.", show_default=False)] = (
        None
    )
    host: Annotated[str | None, typer.Option(metavar="ADDRESS", help="Address to listen on.", show_default=False)] = (
        None
    )
    port: Annotated[
        int | None, typer.Option(metavar="PORT", help="Port to listen on; 0 takes a free one.", show_default=False)
    ] = None
    certificate: Annotated[
        str | None, typer.Option(metavar="FILE", help="PEM file of the broker's certificate.", show_default=False)
    ] = None
    tls_key: TlsKey = None
    key: OldTlsKey = None
    authority: Annotated[
        str | None, typer.Option(metavar="FILE", help="PEM file of the CA that signs clients.", show_default=False)
    ] = None
    revocations: Annotated[
        str | None, typer.Option(metavar="FILE", help="Revocation list of the CA; watched.", show_default=False)
    ] = None
    journal: Annotated[str | None, typer.Option(metavar="FILE", help="Path of the journal.", show_default=False)] = None
    durability: Annotated[
        Literal["full", "relaxed"] | None,
        typer.Option(
            metavar="full|relaxed", help="full: journaled before acknowledged; relaxed: soon after.", show_default=False
        ),
    ] = None
    metrics_port: Annotated[
        int | None, typer.Option(metavar="PORT", help="Port of /metrics and /healthz.", show_default=False)
    ] = None
    insecure_plain: Annotated[bool, typer.Option("--insecure-plain", help="No TLS; loopback only.")] = False
    allow_all: Annotated[bool, typer.Option("--allow-all", help="Allow any client to send anything.")] = False

    def table(self) -> dict[str, Any]:
        """By the names that they have in the section [pcp]; None where nothing is given."""
        from dovetail.pcp.settings import ALLOW_ALL

        given = asdict(self)
        del given["tls_key"], given["allow_all"]
        given["key"] = self.tls_key or self.key
        given["insecure_plain"] = self.insecure_plain or None
        given["rules"] = ALLOW_ALL if self.allow_all else None
        return given


@app.command()
@takes_groups
def serve(overrides: BrokerOverrides, config: ConfigFile = None, as_json: AsJson = False) -> None:
    """Run a broker until SIGTERM or SIGINT; queued frames are written first. SIGHUP reloads the rules."""
    from dovetail.runtime.pcp_serve import run_broker

    settings = load_settings(config, overrides.table())

    def on_started(started: dict[str, object]) -> None:
        if settings.journal is None:
            logging.getLogger("dovetail.pcp").warning("no --journal: nothing is recorded, nothing can be proven")
        if as_json:
            print_json(started)
            sys.stdout.flush()

    run_broker(settings, on_started, read_settings=lambda: load_settings(config, overrides.table()))


@app.command()
@in_context
@takes_groups
def send(
    broker: BrokerOptions,
    target: Annotated[str, typer.Argument(metavar="TARGET", help="Recipient: pcp://NAME/TYPE, * for any.")],
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="DATA", help="JSON text, @FILE for its raw bytes, or - for stdin.", show_default=False),
    ] = None,
    to: Annotated[list[str] | None, typer.Option("--to", metavar="TARGET", help="A further recipient.")] = None,
    message_type: Annotated[str, typer.Option("--type", metavar="TYPE", help="Message type.")] = "text",
    data: Annotated[str | None, typer.Option(hidden=True, callback=deprecated("--data", "DATA"))] = None,
    ttl: Annotated[float, typer.Option(metavar="SECONDS", help="Lifetime in seconds.", min=0.001)] = 30.0,
    report: Annotated[bool, typer.Option("--report", hidden=True)] = False,
    await_reply: Annotated[bool, typer.Option("--reply", help="Wait for the reply and print it too.")] = False,
    as_json: AsJson = False,
) -> None:
    """Send one message; print its address, its outcome and its recipients.

    Exits with 3 if it was not accepted, or if no reply came in its lifetime.
    Commands with the identity of one context take turns; next to `listen`, give one of them another: `--as`.
    """
    if report:
        say("dovetail: --report has no effect any more: the recipients are always printed")
    message_type, targets, text = _read_message(target, words or [], to or [], message_type, data)
    if await_reply and len(targets) != 1:
        raise UsageError(f"--reply with {len(targets)} targets, expected one")
    content = _read_data(text)
    client = broker.client()
    if await_reply:
        with broker.turn():
            _ask(client, targets[0], content, message_type, ttl, as_json=as_json)
        return

    async def work() -> Sent:
        async with client:
            return await client.send(targets, content, type=message_type, ttl=ttl)

    with broker.turn():
        sent = asyncio.run(work())
    print_record(describe_sent(sent), as_json=as_json)
    if not sent.ok:
        raise typer.Exit(EXIT_NO)


def _read_message(
    target: str, words: list[str], to: list[str], message_type: str, data: str | None
) -> tuple[str, list[str], str | None]:
    """Type, targets and data; also accepts the old form, TYPE TARGET... --data JSON."""
    if not target.startswith("pcp:") and words and words[0].startswith("pcp:"):
        say("dovetail: use `pcp send TARGET [DATA] --type TYPE`; the old form will be removed in the next release")
        return target, [*words, *to], data
    if not target.startswith("pcp:"):
        raise UsageError(f"{target[:80]!r} is not a PCP URI, expected pcp://<name>/<type>")
    if len(words) > 1 or (words and data is not None):
        raise UsageError(f"{words[-1][:80]!r} is one argument too many: quote DATA; further recipients need --to")
    return message_type, [target, *to], words[0] if words else data


def _ask(client: PcpClient, target: str, content: object, message_type: str, ttl: float, *, as_json: bool) -> None:
    """Send a message and print it with its reply; exit 3 where there is none."""

    async def work() -> tuple[Sent, Message | None]:
        async with client, client.asking(target, content, type=message_type, ttl=ttl) as asked:
            try:
                return asked.sent, await asked.reply() if asked.sent.ok else None
            except (NotDelivered, TimedOut) as error:
                say(f"dovetail: {error}")
                return asked.sent, None

    sent, reply = asyncio.run(work())
    record = describe_sent(sent)
    if as_json:
        print_json(record | {"reply": None if reply is None else describe_message(reply)})
    elif reply is None:
        print_record(record)
    else:
        print_record(record | {"reply": reply.address, "from": reply.sender, "data": _text_of(reply)})
    if reply is None:
        raise typer.Exit(EXIT_NO)


@app.command()
@in_context
@takes_groups
def listen(
    broker: BrokerOptions,
    count: Annotated[int, typer.Option(help="Exit after this many messages (0: never).", min=0)] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per line (the only form).")] = True,
) -> None:
    """Print messages as they arrive, one JSON object per line."""
    del as_json
    client = broker.client()

    async def work() -> None:
        async with client:
            say(f"{client.identity} listens at {client.url}; Ctrl-C ends it")
            left = count
            async for message in client:
                print_json(describe_message(message))
                sys.stdout.flush()
                left -= 1
                if left == 0:
                    return

    with broker.stay():
        asyncio.run(work())


@app.command()
@in_context
@takes_groups
def inventory(
    broker: BrokerOptions,
    patterns: Annotated[
        list[str] | None, typer.Argument(metavar="PATTERN", help="pcp://*/agent, pcp://host/*, ...")
    ] = None,
    follow: Annotated[
        bool,
        typer.Option("--follow", help="Keep watching; print +1 when a client connects and -1 when it disconnects."),
    ] = False,
    *,
    form: Form,
) -> None:
    """List connected clients."""
    from dovetail.api.pcp import check_uris

    check_uris(patterns or ())
    client = broker.client()

    async def work() -> None:
        async with client:
            if not follow:
                uris = await client.inventory(*patterns or ())
                print_rows([{"uri": uri} for uri in uris], ["uri"], form)
                return
            async for uri, is_here in client.watch(*patterns or ()):
                print_json({"client": uri, "change": 1 if is_here else -1})
                sys.stdout.flush()

    with broker.stay() if follow else broker.turn():
        asyncio.run(work())


@app.command()
@in_context
@takes_groups
def trace(
    broker: BrokerOptions,
    message_type: Annotated[str, typer.Argument(metavar="TYPE", help="Message type.")],
    targets: Annotated[list[str], typer.Argument(metavar="TARGET", help="Recipients to check.")],
    config: Annotated[Path, typer.Option("--config", metavar="FILE", help="The broker's configuration: its rules.")],
    sender: Annotated[str, typer.Option(metavar="URI", help="URI of the sender.")],
    clients: Annotated[
        list[str] | None, typer.Option("--client", metavar="URI", help="A client assumed to be connected; repeatable.")
    ] = None,
    *,
    form: Form,
) -> None:
    """Show which clients would receive a message and the rule that decides; nothing is delivered.

    With --url the broker is asked who is connected.
    """
    from dovetail.pcp.authorization import Authorization
    from dovetail.pcp.inventory import Registry
    from dovetail.pcp.routing import trace_route
    from dovetail.pcp.session import Mount, Session
    from dovetail.pcp.uri import is_uri

    settings = load_settings(config, {})
    connected = list(clients or ())
    if broker.url is not None:
        client = broker.client()

        async def ask() -> list[str]:
            async with client:
                return await client.inventory("pcp://*/*")

        with broker.turn():
            connected.extend(asyncio.run(ask()))
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
    print_rows(rows, ["target", "verdict", "connected", "rule"], form)
    for target in traced.unmatched:
        say(f"{target}: nobody there")
    say("would be delivered to all of them" if traced.is_allowed else "would be refused: nobody gets it")
    if not traced.is_allowed:
        raise typer.Exit(EXIT_NO)


@app.command()
def decode(
    hex_frames: Annotated[list[str] | None, typer.Argument(metavar="HEX", help="Frames in hex; or stdin.")] = None,
    layer: Annotated[
        Literal["v1", "v2", "auto"],
        typer.Option(metavar="v1|v2|auto", help="Version of the frames; auto: by the first byte."),
    ] = "auto",
    now: Annotated[
        int | None, typer.Option(metavar="MS", help="Unix milliseconds; expiry is judged at this time.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Explain captured frames: their fields, or the class and detail of the error."""
    from dovetail.pcp.fabric import FABRIC

    for text in hex_frames or stdin_lines(_MAX_LINE_CHARS):
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
    """The section [pcp] of a file, with overrides from the command line; raises ConfigError."""
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


def _read_data(text: str | None) -> object:
    import json

    if text is None:
        return None
    if text == "-":
        return read_stdin(MAX_DATA_BYTES)
    if text.startswith("@"):
        with Path(text[1:]).open("rb") as file:
            return file.read(MAX_DATA_BYTES)
    try:
        json.loads(text)
    except ValueError:
        quoted = f"'\"{text}\"'" if re.fullmatch(r"[\w ,.:!?-]{1,40}", text) else "'\"hello\"'"
        raise UsageError(f"{text[:40]!r} is not JSON; to send text, quote it twice: {quoted}") from None
    return text.encode()


def _text_of(message: Message) -> str:
    import json

    return message.data.hex() if isinstance(message.data, bytes) else json.dumps(message.data)
