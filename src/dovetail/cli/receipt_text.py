"""How `dovetail receipt` prints a receipt: as text or JSON."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from dovetail.cli.output import escape, print_json, print_text, say
from dovetail.fabrics import address_text
from dovetail.model.canonical_base64 import encode_base64

if TYPE_CHECKING:
    from dovetail.model.errors import ReceiptError
    from dovetail.receipt.proof import Proof

_MAX_SERVERS_NAMED = 3


def summarise(data: bytes) -> str:
    """What a receipt that was just built claims, in one line."""
    from dovetail.receipt.format import Delivery, decode_receipt

    receipt = decode_receipt(data)
    if not isinstance(receipt, Delivery):
        return receipt.claim[0]
    subject = receipt.claim[0].partition(";")[0]
    hops = sum(len(journal.hops) for journal in receipt.journals)
    servers = [journal.checkpoint.partition("\n")[0] for journal in receipt.journals]
    if len(servers) > _MAX_SERVERS_NAMED:
        servers[_MAX_SERVERS_NAMED:] = [f"{len(servers) - _MAX_SERVERS_NAMED} more"]
    return f"{subject}; what happened to it, {hops} hop{'s'[: hops != 1]}, is signed by {', '.join(servers)}"


def print_broken(receipt: Path | str, error: ReceiptError, *, as_json: bool) -> None:
    """Print that a receipt, a file or one that is not saved, is not valid, and the first step that fails."""
    if as_json:
        print_json({"file": _file(receipt), "valid": False, "error": str(error)})
    say(f"{receipt}: not valid: {error}")


def print_proof(receipt: Path | str, proof: Proof, *, as_json: bool, show_bytes: bool = False) -> None:
    """Print what a receipt proves, by whose signatures, and what it does not; with `show_bytes` also the messages."""
    if as_json:
        print_json(_describe(receipt, proof, show_bytes=show_bytes))
        return
    lines = [f"{receipt}: {'contents' if show_bytes else 'valid'} ({proof.kind}, {proof.fabric})"]
    lines += proof.lines("it says:" if show_bytes else "proven:")
    if show_bytes:
        for message in proof.messages:
            lines.append(f"{message.name}:")
            text = "(its bytes are left out)" if message.raw is None else message.raw.decode(errors="backslashreplace")
            lines += [f"  {line}" for line in text.split("\n")]
    print_text("".join(f"{escape(line)}\n" for line in lines))


def _file(receipt: Path | str) -> str | None:
    return str(receipt) if isinstance(receipt, Path) else None


def _describe(receipt: Path | str, proof: Proof, *, show_bytes: bool) -> dict[str, object]:
    described: dict[str, object] = {
        "file": _file(receipt),
        "valid": not show_bytes,
        "kind": proof.kind,
        "fabric": str(proof.fabric),
        "message": None if proof.subject is None else address_text(proof.subject, proof.fabric),
        "proven": proof.claims,
        "witnessed": proof.witnessed,
        "growth": proof.growth,
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
