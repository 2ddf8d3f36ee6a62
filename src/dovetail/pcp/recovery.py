"""What a restarted broker still owes, found in its journal: accepted, no outcome, bytes kept, sent to one definite URI.

Whom a wildcard stood for is not in the journal before the outcome is, so what was held for the members of a wildcard is
not found again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from dovetail.model.address import Address
from dovetail.model.errors import RemoteProtocolError
from dovetail.model.hop import Hop, Stage
from dovetail.pcp.codec_v1 import decode_frame
from dovetail.pcp.message import Message, message_of
from dovetail.pcp.uri import BROKER_URIS, parse_uri

_OUTCOMES = frozenset(
    stage.value
    for stage in (Stage.DELIVERED, Stage.REDELIVERED, Stage.UNDELIVERABLE, Stage.EXPIRED, Stage.REJECTED, Stage.PURGED)
)


def find_unfinished(hops: Iterable[Hop]) -> Iterator[tuple[Message, str]]:
    """Messages and targets without an outcome, in the order they were accepted; messages expired long ago included."""
    accepted: dict[Address, Hop] = {}
    done: dict[Address, set[str]] = {}
    for hop in hops:
        if hop.stage.value == Stage.ACCEPTED.value:
            if hop.raw is not None:
                accepted[hop.message] = hop
        elif hop.stage.value in _OUTCOMES and hop.message in accepted:
            done.setdefault(hop.message, set()).add(hop.counterpart or "")
    for address, hop in accepted.items():
        assert hop.raw is not None
        try:
            frame = decode_frame(hop.raw)
        except RemoteProtocolError:
            continue  # v2 messages do not wait
        outcomes = done.get(address, set())
        for target in dict.fromkeys(frame.envelope.targets):
            if target in outcomes or target in BROKER_URIS or parse_uri(target).is_wildcard:
                continue
            yield message_of(frame, address, hop.at_us), target
