"""Explains captured bytes field by field, as JSON-ready objects with the field names of the specification."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dovetail.swarm import fragments, obfuscation
from dovetail.swarm.acceptance import Acceptance
from dovetail.swarm.content import VERSION_OFFSET, Content, ContentRules, message_address, work_of
from dovetail.swarm.packet import HEADER_BYTES, SwarmSigner
from dovetail.swarm.queries import PullHashes, PullRange, RangeList, decode_message
from dovetail.swarm.refusals import Refusal

Explained = dict[str, Any]


def explain_message(data: bytes, rules: ContentRules, now_ms: int | None = None) -> Explained:
    """Explain a UEP-12 message; with `now_ms` it must also be acceptable at that time. Raises a `Refusal`."""
    message = decode_message(data)
    fields = _content_fields(message, data, rules, now_ms) if isinstance(message, Content) else _query_fields(message)
    return {"layer": "uep12", "opcode": data[1]} | fields


def _content_fields(message: Content, data: bytes, rules: ContentRules, now_ms: int | None) -> Explained:
    entry = Acceptance(rules).admit(data, message_address(data), now_ms)
    return {
        "version": data[VERSION_OFFSET],
        "pow_nonce": message.pow_nonce,
        "timestamp": message.timestamp_ms,
        "ttl_epoch": message.ttl_epochs,
        "msg_refer_count": len(message.references),
        "reserved": message.reserved,
        "references": [{"msg_hash": edge.msg_hash.hex(), "epoch_diff": edge.epoch_diff} for edge in message.references],
        "payload_hex": message.payload.hex(),
        "msg_hash": entry.msg_hash.hex(),
        "address": entry.address.hex(),
        "work": work_of(data).hex(),
        "work_ok": True,
        "expiration": entry.expires_ms,
        "pullable": message.ttl_epochs > 0,
    }


def _query_fields(message: PullHashes | PullRange | RangeList) -> Explained:
    match message:
        case PullHashes():
            return {"count": len(message.hashes), "hashes": [item.hex() for item in message.hashes]}
        case PullRange():
            return {"ticket": message.ticket.hex(), "start_time": message.start_ms, "end_time": message.end_ms}
        case RangeList():
            return {
                "ticket": message.ticket.hex(),
                "start_time": message.start_ms,
                "end_time": message.end_ms,
                "count": len(message.hashes),
                "hashes": [item.hex() for item in message.hashes],
            }


def explain_packet(data: bytes, signer: SwarmSigner, now_ms: int, rules: ContentRules) -> Explained:
    """Explain a UEP-10 packet and the message in it; a refusal of only the message is reported under `message`."""
    subband = signer.subband_of(data, now_ms)
    inner = data[HEADER_BYTES:]
    try:
        message = explain_message(inner, rules)
    except Refusal as refusal:
        message = explain_refusal(refusal)
    return {
        "layer": "uep10",
        "swarm_sig": data[1:HEADER_BYTES].hex(),
        "subband": subband,
        "inner": inner.hex(),
        "message": message,
    }


def explain_fragments(datagrams: Sequence[bytes]) -> Explained:
    """Explain the fragments of one UEP-7 packet; without the packet while some are missing."""
    assembler: fragments.Assembler[None] = fragments.Assembler()
    packet: bytes | None = None
    signature = b""
    for datagram in datagrams:
        _, _, signature, _ = fragments.decode_fragment(datagram)
        packet = assembler.add(datagram, None, 0) or packet
    explained: Explained = {
        "layer": "uep7",
        "seq_no": [datagram[1] for datagram in datagrams],
        "signature": signature.hex(),
        "complete": packet is not None,
    }
    if packet is not None:
        explained |= {
            "assembled_len": len(packet),
            "assembled_sha256": message_address(packet).hex(),
            "inner": packet.hex(),
        }
    return explained


def explain_obfuscated(data: bytes) -> Explained:
    """Explain a UEP-6 datagram and the packet in it."""
    inner = obfuscation.decode_obfuscated(data)
    mask = obfuscation.mask_of(data[0], data[1], len(inner))
    return {"layer": "uep6", "h": data[0], "seed": data[1], "mask": f"{mask:08x}", "inner": inner.hex()}


def explain_refusal(refusal: Refusal) -> Explained:
    """What the command line prints for refused bytes."""
    return {"error": type(refusal).__name__, "detail": refusal.detail}
