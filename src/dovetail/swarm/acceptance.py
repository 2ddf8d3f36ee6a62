"""Whether a content message is accepted: the one order of refusals (reading 16), and what is stored of a message.

Length, indicator, opcode, version, fixed part, reference count and references are refused by `content.decode_fields`;
work, ttl, future, expired and self-reference follow here. Received messages, own messages and the command line that
explains captured bytes all pass through `Acceptance.admit`.
"""

from __future__ import annotations

import msgspec

from dovetail.model.address import Address
from dovetail.swarm.content import (
    HASH_BYTES,
    ContentRules,
    MsgHash,
    check_work,
    decode_fields,
    expiration_ms,
    is_expired,
    work_of,
)
from dovetail.swarm.peer_exchange import Endpoint
from dovetail.swarm.refusals import Expired, FromFuture, SelfReference, TtlTooLong
from dovetail.swarm.room import OWN


class Entry(msgspec.Struct, gc=False, eq=False):
    """One message as a peer holds it."""

    address: Address
    msg_hash: MsgHash
    timestamp_ms: int
    expires_ms: int
    ttl_epochs: int
    refers: tuple[MsgHash, ...]
    """The hashes of its references."""
    raw: bytes
    referred: int = 0
    """How many unexpired messages refer to it."""
    is_live: bool = True
    """False once it has left the graph."""
    source: Endpoint = OWN
    """Whose share of the room it takes."""


def read_entry(data: bytes, address: Address, epoch_ms: int) -> Entry:
    """The entry of a message whose work and lifetime were checked before; raises a `Refusal` if it is malformed."""
    timestamp_ms, ttl_epochs, refers = decode_fields(data)
    expires_ms = expiration_ms(timestamp_ms, ttl_epochs, epoch_ms)
    msg_hash: MsgHash = address[:HASH_BYTES]  # type: ignore[assignment]  # calling the NewType costs time for every message
    return Entry(address, msg_hash, timestamp_ms, expires_ms, ttl_epochs, refers, data)


class Acceptance:
    """Checks messages against the rules of one swarm."""

    __slots__ = ("_rules",)

    def __init__(self, rules: ContentRules) -> None:
        self._rules = rules

    def admit(self, data: bytes, address: Address, now_ms: int | None) -> Entry:
        """Return the entry of an acceptable message or raise a `Refusal`. Without a time, lifetime is not checked."""
        rules = self._rules
        entry = read_entry(data, address, rules.epoch_ms)
        if int.from_bytes(work_of(data)) >= rules.pow_target:
            check_work(data, rules.pow_target)
        if now_ms is not None:
            _check_lifetime(entry, now_ms, rules)
        if entry.msg_hash in entry.refers:
            raise SelfReference("it refers to its own hash")
        return entry


def _check_lifetime(entry: Entry, now_ms: int, rules: ContentRules) -> None:
    if entry.ttl_epochs > rules.max_ttl_epochs:
        raise TtlTooLong(f"ttl of {entry.ttl_epochs} epochs, expected at most {rules.max_ttl_epochs}")
    ahead_ms = entry.timestamp_ms - now_ms
    if ahead_ms > rules.max_future_ms:
        raise FromFuture(f"timestamp {ahead_ms} ms ahead, expected at most {rules.max_future_ms}")
    if is_expired(entry.expires_ms, now_ms):
        raise Expired(f"lifetime over {now_ms - entry.expires_ms} ms ago")
