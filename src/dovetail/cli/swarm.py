"""`dovetail swarm`: run a peer, publish, follow, look into it, and explain captured bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dovetail.swarm.content import ContentRules
    from dovetail.swarm.explain import Explained

app = typer.Typer(help="Peers that keep one DAG of messages complete over UDP.", no_args_is_help=True)

LAYERS = ("uep12", "uep10", "uep7", "uep6")
MAX_LINE_CHARS = 2 * 65_536


@app.callback()
def swarm_noun() -> None:
    """Peers that keep one DAG of messages complete over UDP."""


@app.command()
def decode(
    hexes: Annotated[
        list[str] | None, typer.Argument(metavar="[HEX]...", help="Bytes in hex; or one per line on stdin.")
    ] = None,
    layer: Annotated[str, typer.Option(help="Which layer the bytes begin with: uep12, uep10, uep7 or uep6.")] = "uep12",
    now: Annotated[int | None, typer.Option(help="Unix milliseconds; judge acceptance at this time.")] = None,
    swarm: Annotated[str | None, typer.Option(help="Swarm address, 40 hex digits (uep10).")] = None,
    secret: Annotated[str | None, typer.Option(help="Secret of a private swarm, 40 hex digits (uep10).")] = None,
    epoch_ms: Annotated[int, typer.Option(min=1, help="Length of an epoch.")] = 60_000,
    max_ttl: Annotated[int, typer.Option(min=1, max=65535, help="Longest ttl in epochs.")] = 65_535,
    target: Annotated[str | None, typer.Option(help="Proof-of-work target, 64 hex digits.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per line (the only form).")] = True,
) -> None:
    """Explain captured bytes: one JSON object per line, the fields or {"error": class, "detail": ...}."""
    import json
    import sys

    from dovetail.errors import UsageError
    from dovetail.swarm.content import ContentRules

    del as_json
    if layer not in LAYERS:
        raise UsageError(f"layer {layer!r}, expected one of {', '.join(LAYERS)}")
    rules = ContentRules(epoch_ms=epoch_ms, max_ttl_epochs=max_ttl)
    if target is not None:
        rules = ContentRules(epoch_ms=epoch_ms, max_ttl_epochs=max_ttl, pow_target=_parse_target(target))
    lines = hexes or (line.strip() for line in sys.stdin)
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
    from dovetail.errors import UsageError
    from dovetail.swarm.explain import explain_packet
    from dovetail.swarm.packet import SwarmSigner, check_header, swarm_key

    check_header(data)
    if swarm is None or now is None:
        raise UsageError("a uep10 packet is judged with --swarm ADDRESS and --now MS")
    try:
        key = swarm_key(bytes.fromhex(swarm), bytes.fromhex(secret) if secret else None)
    except ValueError as error:
        raise UsageError(f"--swarm or --secret: {error}") from None
    return explain_packet(data, SwarmSigner(key), now, rules)


def _parse_bytes(text: str) -> bytes:
    from dovetail.errors import UsageError

    if len(text) > MAX_LINE_CHARS:
        raise UsageError(f"{len(text)} hex digits, expected at most {MAX_LINE_CHARS}")
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise UsageError(f"not hex: {text[:40]!r}") from None


def _parse_target(text: str) -> int:
    from dovetail.errors import UsageError

    try:
        value = int(text, 16)
    except ValueError:
        raise UsageError(f"--target {text[:70]!r} is not hex") from None
    if not 0 < value <= 1 << 256:
        raise UsageError("--target must lie between 1 and 2^256")
    return value
