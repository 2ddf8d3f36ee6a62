"""swarm for the packages above the core: UEP-12 content messages."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import msgspec

from dovetail.model.fabric import Agreement, Conflict, Fabric, Link, MessageInfo, Refused
from dovetail.model.hop import Relation, Stage
from dovetail.swarm.content import (
    HASH_BYTES,
    POW_TARGET,
    VERSION,
    ContentRules,
    Reference,
    decode_content,
    expiration_ms,
    has_work,
    latest_referee_expiration_ms,
    message_address,
)
from dovetail.swarm.explain import explain_message, explain_refusal
from dovetail.swarm.refusals import Refusal
from dovetail.swarm.settings import SwarmSettings
from dovetail.swarm.uri import swarm_name_of

MESSAGE_TYPE: Final = "content"
COLLISION: Final = "collision"

_ANY_WORK = 1 << 256
_NOT_PROVEN: Mapping[Stage, str] = {
    Stage.ACCEPTED: "who wrote it, and that a peer still holds it: it held it at that time",
    Stage.DELIVERED: "that an application used it: the peer handed it over",
    Stage.FORWARDED: "that a forwarded packet arrived, unless the other peer's hop is here too",
    Stage.SERVED: "that a served packet arrived, unless the other peer's hop is here too",
}


class SwarmFabric(Fabric):
    """Messages are named by the first eight bytes of their address; all peers of a swarm hold the same messages."""

    name = "swarm"
    hashes_bytes = True
    key_bytes = HASH_BYTES
    conflicts = MappingProxyType(
        {
            COLLISION: Conflict(
                "warning",
                "Short hashes collide",
                "Two swarm messages share the 8 bytes by which they are referred to.",
                "This is practically impossible by chance: somebody may have searched for a collision.",
            )
        }
    )
    default_agreement = Agreement(epoch_ms=ContentRules().epoch_ms, work_target=POW_TARGET)

    def read(self, raw: bytes, agreement: Agreement | None = None) -> MessageInfo | Refused:
        """Decode; the agreement gives the length of an epoch and the work a message needs."""
        try:
            content = decode_content(raw)
        except Refusal as refusal:
            return Refused(refusal.reason, refusal.detail)
        address = message_address(raw)
        key = address[:HASH_BYTES]
        expires_ms = (
            None if agreement is None else expiration_ms(content.timestamp_ms, content.ttl_epochs, agreement.epoch_ms)
        )
        return MessageInfo(
            address=address,
            key=key,
            id=key.hex(),
            type=MESSAGE_TYPE,
            version=str(VERSION),
            created_us=content.timestamp_ms * 1000,
            expires_us=None if expires_ms is None else expires_ms * 1000,
            work_valid=None if agreement is None else has_work(raw, agreement.work_target),
            links=_links(content.references, expires_ms, agreement),
        )

    def explain(self, raw: bytes) -> dict[str, object]:
        """Any UEP-12 message. The peer checked the work against its swarm's target, which is not known here."""
        try:
            fields = explain_message(raw, ContentRules(pow_target=_ANY_WORK))
        except Refusal as refusal:
            return explain_refusal(refusal)
        fields.pop("work_ok", None)
        payload = bytes.fromhex(fields.get("payload_hex", ""))
        return fields | {"payload_text": payload.decode(errors="replace")} if payload else fields

    def not_proven(self, stage: Stage) -> str | None:
        """Peers do not sign messages, and packets get lost."""
        return _NOT_PROVEN.get(stage)

    def community(self, server: str) -> str:
        """The swarm in a peer's URI."""
        return swarm_name_of(server)

    def conflict_keys(self, message: MessageInfo) -> dict[str, bytes]:
        """Two messages with the same first eight address bytes collide."""
        return {COLLISION: message.key}

    def parse_agreements(self, document: bytes) -> dict[str, Agreement]:
        """Peers refer to their swarm by its name, or by its address in hex."""
        try:
            agreed = msgspec.toml.decode(document, type=SwarmSettings)
        except (ValueError, RecursionError) as error:
            raise ValueError(str(error)) from None
        return {agreed.name: agreed.agreement, agreed.swarm_address.hex(): agreed.agreement}


FABRIC: Final = SwarmFabric()


def _links(references: tuple[Reference, ...], expires_ms: int | None, agreement: Agreement | None) -> tuple[Link, ...]:
    links = []
    for reference in references:
        until_ms = None
        if expires_ms is not None and agreement is not None:
            until_ms = latest_referee_expiration_ms(expires_ms, reference.epoch_diff, agreement.epoch_ms)
        links.append(Link(reference.msg_hash, Relation.REFERS, None if until_ms is None else until_ms * 1000))
    return tuple(links)
