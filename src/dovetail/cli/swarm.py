"""`dovetail swarm`: run a peer, publish, follow, show its status, and explain captured bytes."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from dovetail.cli.client_options import describe_sent, given_or_known, in_context

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Iterable

    from dovetail.api.swarm import Evidence, Gap, SwarmPeer
    from dovetail.api.values import Message, Sent
    from dovetail.model.errors import Missed
    from dovetail.swarm.content import ContentRules
    from dovetail.swarm.explain import Explained

app = typer.Typer(help="Peers that keep one DAG of messages complete over UDP.", no_args_is_help=True)

MAX_LINE_CHARS = 2 * 65_536


@app.callback()
def swarm_noun() -> None:
    """Peers that keep one DAG of messages complete over UDP."""


Directory = Annotated[
    str, typer.Option("--dir", metavar="DIR", help="The peer's directory, with its key, journal and control socket.")
]
RunningPeer = Annotated[
    Path | None,
    typer.Option(
        "--dir", help="The directory of a running peer; from the context by default.", metavar="DIR", show_default=False
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


@app.command()
def serve(
    settings: Annotated[
        str, typer.Option(metavar="FILE", help="The swarm's settings, a TOML file shared by all peers.")
    ],
    directory: Directory,
    listen: Annotated[
        list[str] | None,
        typer.Option(metavar="HOST:PORT", help="Address and port to bind; once for IPv4, once for IPv6."),
    ] = None,
    peer: Annotated[
        list[str] | None, typer.Option(metavar="HOST:PORT", help="Endpoint of a bootstrap peer; repeatable.")
    ] = None,
    durability: Annotated[
        Literal["full", "relaxed"],
        typer.Option(metavar="full|relaxed", help="full: journaled before relayed; relaxed: soon after."),
    ] = "full",
    metrics: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Address and port for /metrics and /healthz.")
    ] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads for the proof of work.")] = None,
    purge_interval: Annotated[
        float,
        typer.Option(
            min=0,
            max=31_536_000,
            metavar="SECONDS",
            help="Seconds between removals of expired payloads from the journal (0: never).",
        ),
    ] = 60.0,
) -> None:
    """Run a peer until it is stopped; prints one JSON object when it is ready."""
    import asyncio
    import sys

    from dovetail.cli.output import print_json
    from dovetail.journal.journal import JournalOptions
    from dovetail.runtime.swarm_node import SwarmNode
    from dovetail.runtime.swarm_serve import serve_peer
    from dovetail.runtime.swarm_settings import load_swarm_settings
    from dovetail.runtime.swarm_udp import parse_endpoint

    options = JournalOptions(durability=durability)

    async def run() -> None:
        node = SwarmNode(
            load_swarm_settings(Path(settings)),
            Path(directory),
            listen=listen or ["0.0.0.0:0"],
            bootstrap=peer or (),
            journal_options=options,
            threads=threads,
            purge_interval_s=purge_interval,
        )
        metrics_at = None if metrics is None else parse_endpoint(metrics)
        await serve_peer(node, metrics_at, lambda ready: on_ready(ready | {"restored": node.restored}))

    def on_ready(ready: dict[str, object]) -> None:
        print_json({"peer": ready.pop("server"), **ready})
        sys.stdout.flush()

    asyncio.run(run())


@app.command()
@in_context
def publish(
    text: Annotated[str | None, typer.Argument(help="The payload; read from stdin if omitted.")] = None,
    directory: RunningPeer = None,
    ttl: Annotated[
        int, typer.Option(min=0, max=65535, metavar="EPOCHS", help="Lifetime in epochs; 0: pushed once, not kept.")
    ] = 60,
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", help="Seconds to wait for the peer's journal after the work.", min=0.1)
    ] = 10.0,
    as_json: AsJson = False,
) -> None:
    """Publish one message through a running peer; print its address. Ctrl-C cancels the proof of work."""
    import asyncio

    from dovetail.api.swarm import MAX_PAYLOAD_BYTES, check_payload
    from dovetail.cli.output import print_record
    from dovetail.cli.progress import Bar
    from dovetail.cli.stdin import read_stdin

    payload = check_payload(read_stdin(MAX_PAYLOAD_BYTES + 1) if text is None else text)

    async def work() -> Sent:
        with Bar("proof of work", "hashes") as bar:
            return await _peer(directory).publish(payload, ttl_epochs=ttl, timeout=timeout, progress=bar.update)

    print_record(describe_sent(asyncio.run(work())), as_json=as_json)


@app.command()
@in_context
def tail(
    directory: RunningPeer = None,
    since: Annotated[
        str | None,
        typer.Option(help="Start with messages from this time on (ISO 8601, or Unix milliseconds).", metavar="TIME"),
    ] = None,
    count: Annotated[int | None, typer.Option("-n", "--count", min=1, help="Stop after this many items.")] = None,
    as_json: AsJson = False,
) -> None:
    """Print messages as they arrive, each once, and gaps."""
    import asyncio
    import sys

    from dovetail.cli.output import print_json, print_text

    start = None if since is None else _parse_time(since)

    async def work() -> None:
        peer = _peer(directory)
        async with contextlib.AsyncExitStack() as stack:
            if start is None:  # else the events have a queue of their own
                await stack.enter_async_context(peer)
            events = await stack.enter_async_context(contextlib.aclosing(peer.events(start)))
            left = count
            async for event in events:
                if as_json:
                    print_json(_record(event))
                else:
                    print_text(_describe(event) + "\n")
                sys.stdout.flush()
                left = None if left is None else left - 1
                if left == 0:
                    return

    asyncio.run(work())


def _parse_time(text: str) -> dt.datetime:
    from dovetail.model.errors import UsageError
    from dovetail.model.times import parse_time, to_datetime

    try:
        return to_datetime(int(text) * 1000 if text.isdigit() else parse_time(text))
    except (ValueError, OverflowError):
        raise UsageError(f"--since {text[:40]!r} is not a time such as 2026-01-31T12:00:00Z") from None


def _peer(given: Path | None) -> SwarmPeer:
    from dovetail.api.swarm import SwarmPeer

    return SwarmPeer(Path(given_or_known(given, "directory", "no peer: give --dir")))


def _record(event: Message | Gap | Evidence | Missed) -> dict[str, Any]:
    from dovetail.api.swarm import Gap
    from dovetail.api.values import Message
    from dovetail.cli.client_options import describe_message
    from dovetail.model.errors import Missed

    match event:
        case Message():
            return describe_message(event)
        case Gap():
            return {"gap": event.key, "state": event.state, "referrer": event.referrer}
        case Missed():
            return {"missed": event.count}
    return {"evidence": event.kind, "messages": list(event.messages)}


def _describe(event: Message | Gap | Evidence | Missed) -> str:
    from dovetail.api.values import Message
    from dovetail.cli.output import escape
    from dovetail.model.times import time_text, to_us

    if isinstance(event, Message):
        return f"{time_text(to_us(event.at))}  {event.address[:16]}  {escape(event.raw.decode('utf-8', 'replace'))}"
    record = _record(event)
    if "gap" in record:
        return f"gap {record['gap']}: {record['state']}"
    return escape(" ".join(f"{key} {value}" for key, value in record.items()))


@app.command()
@in_context
def status(directory: RunningPeer = None, as_json: AsJson = False) -> None:
    """Print the state of a running peer: peers, messages, tips, missing, refusals, bytes."""
    import asyncio

    from dovetail.cli.output import print_record

    async def work() -> dict[str, Any]:
        return await _peer(directory).status()

    answer = asyncio.run(work())
    if not as_json:
        answer = {
            name: [f"{key} {each}" for key, each in value.items()] if isinstance(value, dict) else value
            for name, value in answer.items()
        }
        answer = {
            name: ", ".join(map(str, value)) if isinstance(value, list) else value for name, value in answer.items()
        }
    print_record(answer, as_json=as_json)


@app.command()
def decode(
    hexes: Annotated[
        list[str] | None, typer.Argument(metavar="HEX", help="Bytes in hex; or one per line on stdin.")
    ] = None,
    layer: Annotated[
        Literal["uep12", "uep10", "uep7", "uep6"],
        typer.Option(metavar="uep12|uep10|uep7|uep6", help="Outermost layer of the bytes: uep12, uep10, uep7 or uep6."),
    ] = "uep12",
    now: Annotated[
        int | None, typer.Option(metavar="MS", help="Unix milliseconds; judge acceptance at this time.")
    ] = None,
    swarm: Annotated[str | None, typer.Option(metavar="HEX", help="Swarm address, 40 hex digits (uep10).")] = None,
    secret: Annotated[
        str | None, typer.Option(metavar="HEX", help="Secret of a private swarm, 40 hex digits (uep10).")
    ] = None,
    epoch_ms: Annotated[int, typer.Option(min=1, metavar="MS", help="Length of an epoch.")] = 60_000,
    max_ttl: Annotated[int, typer.Option(min=1, max=65535, metavar="EPOCHS", help="Longest ttl in epochs.")] = 65_535,
    target: Annotated[str | None, typer.Option(metavar="HEX", help="Proof-of-work target, 64 hex digits.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per line (the only form).")] = True,
) -> None:
    """Explain captured bytes: one JSON object per line, with the fields or with the error."""
    import json
    import sys

    from dovetail.cli.stdin import stdin_lines
    from dovetail.swarm.content import ContentRules

    del as_json
    rules = ContentRules(epoch_ms=epoch_ms, max_ttl_epochs=max_ttl)
    if target is not None:
        rules = ContentRules(epoch_ms=epoch_ms, max_ttl_epochs=max_ttl, pow_target=_parse_target(target))
    lines = hexes or stdin_lines(MAX_LINE_CHARS + 1)
    for explained in _explain(lines, layer, now, swarm, secret, rules):
        sys.stdout.write(json.dumps(explained) + "\n")


def _explain(
    lines: Iterable[str], layer: str, now: int | None, swarm: str | None, secret: str | None, rules: ContentRules
) -> Iterable[Explained]:
    from dovetail.swarm import explain
    from dovetail.swarm.refusals import Refusal

    if layer == "uep7":
        try:
            yield explain.explain_fragments([_parse_bytes(line) for line in lines])
        except Refusal as refusal:
            yield explain.explain_refusal(refusal)
        return
    for line in lines:
        data = _parse_bytes(line)
        try:
            if layer == "uep12":
                yield explain.explain_message(data, rules, now)
            elif layer == "uep6":
                yield explain.explain_obfuscated(data)
            else:
                yield _explain_packet(data, now, swarm, secret, rules)
        except Refusal as refusal:
            yield explain.explain_refusal(refusal)


def _explain_packet(
    data: bytes, now: int | None, swarm: str | None, secret: str | None, rules: ContentRules
) -> Explained:
    from dovetail.model.errors import UsageError
    from dovetail.swarm.explain import explain_packet
    from dovetail.swarm.packet import SwarmSigner, check_header, swarm_key

    check_header(data)
    if swarm is None or now is None:
        raise UsageError("a uep10 packet needs --swarm ADDRESS and --now MS")
    try:
        key = swarm_key(bytes.fromhex(swarm), bytes.fromhex(secret) if secret else None)
    except ValueError as error:
        raise UsageError(f"--swarm or --secret: {error}") from None
    return explain_packet(data, SwarmSigner(key), now, rules)


def _parse_bytes(text: str) -> bytes:
    from dovetail.model.errors import UsageError

    if len(text) > MAX_LINE_CHARS:
        raise UsageError(f"{len(text)} hex digits, expected at most {MAX_LINE_CHARS}")
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise UsageError(f"not hex: {text[:40]!r}") from None


def _parse_target(text: str) -> int:
    from dovetail.model.errors import UsageError

    try:
        value = int(text, 16)
    except ValueError:
        raise UsageError(f"--target {text[:70]!r} is not hex") from None
    if not 0 < value <= 1 << 256:
        raise UsageError("--target must be between 1 and 2^256")
    return value
