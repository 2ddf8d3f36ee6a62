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
    """In the order they were accepted, including messages that expired long ago."""
    taken: dict[Address, Hop] = {}
    routed: dict[Address, dict[str, None]] = {}
    done: dict[Address, set[str]] = {}
    expired: set[Address] = set()
    for hop in hops:
        address, counterpart = hop.message, hop.counterpart or ""
        if hop.stage in (Stage.ACCEPTED, Stage.CREATED):
            taken.setdefault(address, hop)
        elif hop.stage is Stage.ROUTED:
            routed.setdefault(address, {})[counterpart] = None
        elif is_outcome(hop.stage, counterpart):
            done.setdefault(address, set()).add(counterpart)
            if hop.stage is Stage.EXPIRED:
                expired.add(address)
    for address, hop in taken.items():
        message, named = _decode(hop)
        if message is not None:
            message.is_expiry_told = address in expired
        for uri in dict.fromkeys((*named, *routed.get(address, ()))):
            if uri not in done.get(address, ()):
                yield Unfinished(address, uri, None if uri in BROKER_URIS else message)


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
