"""`dovetail receipt`: prove one delivery with one file; check it anywhere, offline."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dovetail.errors import ReceiptError
    from dovetail.hop import Address
    from dovetail.journal.checkpoint import Verifier
    from dovetail.receipt.proof import Proof

app = typer.Typer(help="Prove one delivery with one file; check it offline.", no_args_is_help=True)

Trust = Annotated[
    list[Path],
    typer.Option(
        "--trust", help="Keys you trust: a file with one per line, or a directory of .vkey files.", metavar="KEYS"
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object per file.")]
Out = Annotated[Path | None, typer.Option("-o", "--out", help="Where to write it; stdout without it.", metavar="FILE")]


@app.command()
def build(
    address: Annotated[
        str, typer.Argument(help="The message: hex or wm:/..., or a beginning of it.", metavar="ADDRESS")
    ],
    journal: Annotated[
        list[Path] | None, typer.Option("--journal", help="A journal that saw it; may be repeated.", metavar="FILE")
    ] = None,
    out: Out = None,
    redact: Annotated[bool, typer.Option("--redact", help="Leave out the message's bytes: only its address.")] = False,
    counterpart: Annotated[
        list[str] | None,
        typer.Option("--counterpart", help="Only hops from or to this one; may be repeated.", metavar="URI"),
    ] = None,
    related: Annotated[
        list[str] | None,
        typer.Option("--related", help="A response to show (won); found by itself where left out.", metavar="ADDRESS"),
    ] = None,
) -> None:
    """Build the receipt of one message from the journals of the servers that saw it."""
    import contextlib

    from dovetail.cli.output import say
    from dovetail.errors import UsageError
    from dovetail.receipt.build import BuildOptions, build_receipt, find_address
    from dovetail.receipt.source import JournalSource

    if not journal:
        raise UsageError("name at least one --journal")
    options = BuildOptions(
        redact=redact,
        counterparts=frozenset(counterpart or ()),
        related=None if related is None else [_parse_address(text) for text in related],
    )
    with contextlib.ExitStack() as stack:
        sources = [stack.enter_context(JournalSource.open(path)) for path in journal]
        built = build_receipt(sources, find_address(sources, _parse_prefix(address)), options)
    for remark in built.remarks:
        say(remark)
    _write(built.data, out)


@app.command()
def verify(
    files: Annotated[list[Path], typer.Argument(help="Receipt files.", metavar="FILE...")],
    trust: Trust,
    witnesses: Annotated[int, typer.Option(help="How many trusted witnesses must have cosigned.", min=0)] = 0,
    max_age: Annotated[
        int | None, typer.Option(help="How long ago, in seconds, a trusted witness may have seen it.", min=1)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check receipts with nothing but the trusted keys; say what they prove and what they do not."""
    from dovetail.errors import ReceiptError
    from dovetail.receipt.proof import Policy
    from dovetail.receipt.verify import verify_receipt

    policy = Policy(now_us=_now_us(), witnesses=witnesses, max_age_s=max_age)
    trusted = _load_trust(trust)
    is_any_broken = False
    for path in files:
        try:
            proof = verify_receipt(_read(path), trusted, policy)
        except ReceiptError as error:
            is_any_broken = True
            _print_broken(path, error, as_json=as_json)
        else:
            _print_proof(path, proof, as_json=as_json)
    if is_any_broken:
        raise typer.Exit(1)


@app.command()
def show(
    file: Annotated[Path, typer.Argument(help="A receipt file.", metavar="FILE")],
    as_json: AsJson = False,
) -> None:
    """Show what is in a receipt, for people. Proofs and signatures are checked, but nobody is trusted."""
    from dovetail.cli.output import say
    from dovetail.receipt.format import decode_receipt
    from dovetail.receipt.note import parse_key
    from dovetail.receipt.verify import verify_receipt

    data = _read(file)
    carried = [parse_key(journal.keys[0])[0] for journal in decode_receipt(data).journals]
    proof = verify_receipt(data, carried)
    _print_proof(file, proof, as_json=as_json, show_bytes=True)
    say("not verified: the keys are those that the file itself carries; `dovetail receipt verify` asks for yours")


def _print_proof(path: Path, proof: Proof, *, as_json: bool, show_bytes: bool = False) -> None:
    from dovetail.cli.output import escape, print_json, print_text

    if as_json:
        print_json(_describe(path, proof, show_bytes=show_bytes))
        return
    lines = [f"{path}: {'contents' if show_bytes else 'valid'}", f"  {proof.kind} over {proof.fabric}", "proven:"]
    lines += [f"  {claim}" for claim in proof.claims]
    lines.append("signed by:")
    for signatory in proof.signatories:
        lines.append(f"  {signatory.server}, key {signatory.fingerprint}")
        lines += [f"    cosigned by {c.witness.name}, trusted" for c in signatory.witnesses]
        lines += [f"    cosigned by {name}, not known to you" for name in signatory.unknown_witnesses]
    lines.append("not proven:")
    lines += [f"  {limit}" for limit in proof.not_proven]
    if show_bytes:
        for message in proof.messages:
            lines.append(f"{message.name}:")
            text = "(its bytes are left out)" if message.raw is None else message.raw.decode(errors="backslashreplace")
            lines += [f"  {line}" for line in text.split("\n")]
    print_text("".join(f"{escape(line)}\n" for line in lines))


def _print_broken(path: Path, error: ReceiptError, *, as_json: bool) -> None:
    from dovetail.cli.output import print_json, say

    if as_json:
        print_json({"file": str(path), "valid": False, "error": str(error)})
    say(f"{path}: not valid: {error}")


def _describe(path: Path, proof: Proof, *, show_bytes: bool) -> dict[str, object]:
    from dovetail.hop import address_text
    from dovetail.receipt.format import encode_base64

    described: dict[str, object] = {
        "file": str(path),
        "valid": not show_bytes,
        "kind": proof.kind,
        "fabric": str(proof.fabric),
        "message": None if proof.subject is None else address_text(proof.subject, proof.fabric),
        "proven": proof.claims,
        "not_proven": proof.not_proven,
        "servers": [
            {
                "server": signatory.server,
                "key_sha256": signatory.fingerprint,
                "hops": signatory.checkpoint.size,
                "root": signatory.checkpoint.root.hex(),
                "witnesses": [{"name": c.witness.name, "at": c.at_s} for c in signatory.witnesses],
                "unknown_witnesses": signatory.unknown_witnesses,
            }
            for signatory in proof.signatories
        ],
        "hops": [
            {
                "server": hop.server,
                "seq": hop.seq,
                "at_us": hop.at_us,
                "stage": str(hop.stage),
                "message": address_text(hop.message, hop.fabric),
                "counterpart": hop.counterpart,
                "reason": hop.reason and str(hop.reason),
            }
            for hop in proof.hops
        ],
    }
    if show_bytes:
        described["messages"] = [
            {
                "address": address_text(message.address, proof.fabric),
                "relation": message.relation and str(message.relation),
                "bytes": None if message.raw is None else encode_base64(message.raw),
            }
            for message in proof.messages
        ]
    return described


def _load_trust(paths: Sequence[Path]) -> list[Verifier]:
    from dovetail.journal.checkpoint import Verifier
    from dovetail.keys import load_verifier_keys

    return [Verifier(key.name, key.public_key) for path in paths for key in load_verifier_keys(path)]


def _parse_prefix(text: str) -> bytes:
    from dovetail.errors import UsageError
    from dovetail.hop import parse_address_prefix

    try:
        return parse_address_prefix(text)
    except ValueError as error:
        raise UsageError(str(error)) from None


def _parse_address(text: str) -> Address:
    from dovetail.errors import UsageError
    from dovetail.hop import parse_address

    try:
        return parse_address(text)
    except ValueError as error:
        raise UsageError(str(error)) from None


def _read(path: Path) -> bytes:
    """A file's bytes, never more than one too many."""
    from dovetail.receipt.format import MAX_RECEIPT_BYTES

    with path.open("rb") as file:
        return file.read(MAX_RECEIPT_BYTES + 1)


def _write(data: bytes, out: Path | None) -> None:
    from dovetail.cli.output import print_text

    if out is None:
        print_text(data.decode())
    else:
        out.write_bytes(data)


def _now_us() -> int:
    import time

    return time.time_ns() // 1000
