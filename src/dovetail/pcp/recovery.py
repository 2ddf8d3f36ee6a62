"""What a restarted broker still has to deliver, from its journal: recipients of messages without an outcome.

The recipients are in the bytes of a message, or in `routed` hops if the bytes are not stored or name a wildcard.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from msgspec import UNSET

from dovetail.model.address import Address
from dovetail.model.errors import RemoteProtocolError
from dovetail.model.hop import Hop, Stage
from dovetail.pcp.codec_v1 import decode_frame
from dovetail.pcp.codec_v2 import decode_message
from dovetail.pcp.message import Message, message_of
from dovetail.pcp.uri import BROKER_URI, BROKER_URIS, parse_uri
from dovetail.pcp.vocabulary import TTL_EXPIRED, is_outcome


class Unfinished(NamedTuple):
    """One recipient of a message without an outcome; `message` is None if it can no longer be delivered."""

    address: Address
    uri: str
    message: Message | None


def find_unfinished(hops: Iterable[Hop]) -> Iterator[Unfinished]:
    """In the order they were accepted, including messages that expired long ago; one accepted twice is owed twice."""
    taken: dict[Address, tuple[Message | None, list[str]]] = {}
    owed: dict[Address, dict[str, int]] = {}
    for hop in hops:
        address, counterpart = hop.message, hop.counterpart or ""
        if hop.stage in (Stage.ACCEPTED, Stage.CREATED):
            message, named = taken[address] = taken.get(address) or _decode(hop)
            for uri in dict.fromkeys(named):
                _add(owed, address, uri, 1)
        elif hop.stage is Stage.ROUTED:
            _add(owed, address, counterpart, 1)
        elif is_outcome(hop.stage, counterpart):
            _add(owed, address, counterpart, -1)
            message, _ = taken.get(address, (None, []))
            if message is not None and hop.stage is Stage.EXPIRED:
                message.is_expiry_told = True
    for address, (message, _) in taken.items():
        for uri, count in owed.get(address, {}).items():
            for _ in range(count):
                yield Unfinished(address, uri, None if uri in BROKER_URIS else message)


def _add(owed: dict[Address, dict[str, int]], address: Address, uri: str, change: int) -> None:
    """One more outcome is owed, or one less; recipients whose outcome was in the same commit have no `routed` hop."""
    recipients = owed.setdefault(address, {})
    recipients[uri] = max(0, recipients.get(uri, 0) + change)


def _decode(hop: Hop) -> tuple[Message | None, list[str]]:
    """The message if it may still be delivered, and the recipients its bytes name; one without a lifetime may not."""
    if hop.raw is None:
        return None, []
    try:
        frame = decode_frame(hop.raw)
    except RemoteProtocolError:
        return None, _read_target(hop.raw)
    named = [target for target in frame.envelope.targets if not parse_uri(target).is_wildcard]
    if frame.envelope.sender == BROKER_URI and frame.envelope.message_type != TTL_EXPIRED:
        return None, named
    return message_of(frame, hop.message, hop.at_us), named


def _read_target(raw: bytes) -> list[str]:
    try:
        target = decode_message(raw).target
    except RemoteProtocolError:
        return []
    return [BROKER_URI if target is UNSET else target]
