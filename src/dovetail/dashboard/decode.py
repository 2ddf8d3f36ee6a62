"""One message's bytes as fields and links, read with the fabrics' own decoders; what does not decode says why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from dovetail.model.errors import RemoteProtocolError
from dovetail.model.hop import Fabric, Relation

_ANY_WORK = 1 << 256


@dataclass(frozen=True, slots=True)
class Named:
    """A message that another one names: by its address, the beginning of it, or its id."""

    relation: Relation
    parent: bytes | str


@dataclass(frozen=True, slots=True)
class Decoded:
    """What the bytes say."""

    fields: dict[str, Any] = field(default_factory=dict)
    type: str = ""
    id: str = ""
    sender: str = ""
    names: Sequence[Named] = ()
    error: str = ""


def decode(fabric: Fabric, raw: bytes) -> Decoded:
    """The fields of a message of this fabric; `error` where the bytes cannot be read."""
    match fabric:
        case Fabric.PCP:
            return _decode_pcp(raw)
        case Fabric.WON:
            return _decode_won(raw)
        case Fabric.SWARM:
            return _decode_swarm(raw)


def _decode_pcp(raw: bytes) -> Decoded:
    from dovetail.pcp.explain import explain_frame

    fields = explain_frame(raw)
    if "error" in fields:
        return Decoded(error=f"{fields['error']}: {fields['detail']}")
    reply = fields.get("in-reply-to") or fields.get("in_reply_to")
    return Decoded(
        fields,
        type=fields["message_type"],
        id=fields["id"].lower(),
        sender=fields.get("sender", ""),
        names=[Named(Relation.IN_REPLY_TO, reply.lower())] if reply else [],
    )


def _decode_won(raw: bytes) -> Decoded:
    from dovetail.won.message import decode_message, describe, uri_address

    try:
        message = decode_message(raw)
    except RemoteProtocolError as error:
        return Decoded(error=f"{error.reason}: {error.detail}")
    named = [(Relation.PREVIOUS, uri) for uri in message.previous]
    named += [(Relation.REFERS, uri) for uri in message.forwarded]
    if message.responding_to is not None:
        named.insert(0, (Relation.RESPONDING_TO, message.responding_to))
    return Decoded(
        describe(message),
        type=message.type.value,
        id=message.uri,
        sender=message.sender or "",
        names=[Named(relation, uri_address(uri) or uri) for relation, uri in named],
    )


def _decode_swarm(raw: bytes) -> Decoded:
    from dovetail.swarm.content import ContentRules
    from dovetail.swarm.explain import explain_message

    try:
        # the journal has judged the work by the swarm's own target, which is not known here
        fields = explain_message(raw, ContentRules(pow_target=_ANY_WORK))
    except RemoteProtocolError as error:
        return Decoded(error=f"{error.reason}: {error.detail}")
    fields.pop("work_ok", None)
    payload = bytes.fromhex(fields.get("payload_hex", ""))
    if payload:
        fields["payload_text"] = payload.decode(errors="replace")
    return Decoded(
        fields,
        type="content",
        id=fields.get("msg_hash", ""),
        names=[Named(Relation.REFERS, bytes.fromhex(edge["msg_hash"])) for edge in fields.get("references", ())],
    )
