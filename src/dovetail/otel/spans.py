"""One span for what one server did with one message: its hops are the span's events.

Ids are derived from addresses, so that exporting a journal again gives the same spans, and a trace leads to its
receipt:

    trace id    the first 16 bytes of the address of the message that this one answers, or of its own if it answers none
    span id     the first 8 bytes of SHA-256(server, address); a later span adds the number of its first hop

A span contains the hops within `settle` of its first one; a later hop starts another span of the same trace, as a child
of the first. This depends only on the journal, not on when it is read. Purging is not part of a delivery and left out.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

import msgspec

from dovetail.model.address import Address
from dovetail.model.fabric import Fabric, MessageInfo, Refused
from dovetail.model.hop import Hop, Relation, Stage

MAX_EVENTS: Final = 128
MAX_TEXT: Final = 256
TRACE_ID_BYTES: Final = 16
SPAN_ID_BYTES: Final = 8
_MAX_TIME_US: Final = (1 << 63) // 1000 - 1
_MAX_SEARCHED_BYTES: Final = 65_536
_ANSWERS = (Relation.IN_REPLY_TO, Relation.RESPONDING_TO)
_SENDS = frozenset({Stage.DELIVERED, Stage.FORWARDED, Stage.REDELIVERED, Stage.SERVED})
_FAILS = frozenset({Stage.REJECTED, Stage.UNDELIVERABLE, Stage.EXPIRED})
_TRACEPARENT = re.compile(rb'"traceparent"\s*:\s*"00-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}"')
_NO_TRACE, _NO_SPAN = bytes(TRACE_ID_BYTES), bytes(SPAN_ID_BYTES)

Attributes = dict[str, str | int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One hop of a span."""

    name: str
    at_us: int
    attributes: Attributes


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """What one server did with one message, within a short time."""

    trace_id: bytes
    span_id: bytes
    parent_span_id: bytes | None
    name: str
    start_us: int
    end_us: int
    is_sending: bool
    failure: str | None
    attributes: Attributes
    events: list[Event]
    dropped_events: int
    link: tuple[bytes, bytes] | None
    """Trace and span of a `traceparent` in the payload."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """The fields of a message that its span needs."""

    template: str
    attributes: Attributes
    key: bytes | None
    """How other messages name it."""
    answered: bytes | None
    """How it names the message that it answers."""
    link: tuple[bytes, bytes] | None


@dataclass(slots=True)
class OpenSpan:
    """A span that still gets hops."""

    is_later: bool
    """True if the message was seen before this span started."""
    hops: list[Hop] = field(default_factory=list)
    dropped: int = 0
    last_us: int = 0
    is_sending: bool = False
    failed: Hop | None = None

    @property
    def start_us(self) -> int:
        """The time of its first hop."""
        return self.hops[0].at_us

    def add(self, hop: Hop) -> None:
        """Add a hop, including the first one; its bytes are not kept."""
        if len(self.hops) < MAX_EVENTS:
            self.hops.append(msgspec.structs.replace(hop, raw=None))
        else:
            self.dropped += 1
        self.last_us = max(self.last_us, hop.at_us)
        self.is_sending |= hop.stage in _SENDS
        if self.failed is None and hop.stage in _FAILS:
            self.failed = hop


def split(hops: Sequence[Hop], settle_us: int) -> list[OpenSpan]:
    """Split all hops of one message at one server into spans."""
    spans: list[OpenSpan] = []
    for hop in hops:
        if hop.stage in (Stage.PURGED, Stage.NOTED):
            continue
        if not spans or hop.at_us - spans[-1].start_us > settle_us:
            spans.append(OpenSpan(is_later=bool(spans)))
        spans[-1].add(hop)
    return spans


def span_id(server: str, address: Address, first_seq: int | None = None) -> bytes:
    """The id of a server's span over a message; a later span includes the number of its first hop."""
    later = b"" if first_seq is None else b"\0%d" % first_seq
    return hashlib.sha256(server.encode() + b"\0" + address + later).digest()[:SPAN_ID_BYTES]


def read_subject(raw: bytes | None, server: str, fabric: Fabric) -> Subject:
    """Describe a message, from its bytes if they are stored and readable."""
    info = fabric.read(raw) if raw is not None else None
    link = _find_link(raw)
    if info is None or isinstance(info, Refused):
        return Subject(template=_template(server, fabric, None), attributes={}, key=None, answered=None, link=link)
    attributes: Attributes = {"dovetail.message.type": info.type, "dovetail.message.name": info.id}
    if len(info.recipients) == 1:
        attributes["messaging.destination.name"] = info.recipients[0]
    if info.channel is not None and info.channel.connection is not None:
        attributes["messaging.message.conversation_id"] = info.channel.connection
    answered = next((key for relation in _ANSWERS if (key := info.parent(relation)) is not None), None)
    template = _template(server, fabric, info)
    return Subject(template=template, attributes=attributes, key=info.key, answered=answered, link=link)


def build_span(
    opened: OpenSpan, fabric: Fabric, subject: Subject, answered: Address | None, *, is_answered_here: bool
) -> Span:
    """Build the span of these hops; `answered` is the message that theirs answers, perhaps seen by this server too."""
    first = opened.hops[0]
    server, address = first.server, first.message
    parent = None
    if opened.is_later:
        parent = span_id(server, address)
    elif answered is not None and is_answered_here:
        parent = span_id(server, answered)
    failed = opened.failed
    return Span(
        trace_id=(answered or address)[:TRACE_ID_BYTES],
        span_id=span_id(server, address, first.seq if opened.is_later else None),
        parent_span_id=parent,
        name=f"{first.stage} {subject.template}"[:MAX_TEXT],
        start_us=_bounded(first.at_us),
        end_us=_bounded(max(first.at_us, opened.last_us)),
        is_sending=opened.is_sending,
        failure=None if failed is None else str(failed.reason or failed.stage),
        attributes=_attributes(opened, fabric, subject),
        events=[_event(hop) for hop in opened.hops],
        dropped_events=opened.dropped,
        link=subject.link,
    )


def _attributes(opened: OpenSpan, fabric: Fabric, subject: Subject) -> Attributes:
    first = opened.hops[0]
    found: Attributes = {
        "messaging.system": "dovetail",
        "messaging.operation.name": str(first.stage),
        "messaging.destination.template": subject.template,
        "messaging.message.id": fabric.show_address(first.message),
        "server.address": urlsplit(first.server).netloc or first.server,
        "dovetail.fabric": fabric.name,
        "dovetail.seq": first.seq,
        **subject.attributes,
    }
    if opened.is_sending:
        found["messaging.operation.type"] = "send"
    if opened.failed is not None:
        found["error.type"] = str(opened.failed.reason or opened.failed.stage)
    if first.size is not None:
        found["messaging.message.envelope.size"] = first.size
    return {name: value[:MAX_TEXT] if isinstance(value, str) else value for name, value in found.items()}


def _template(server: str, fabric: Fabric, info: MessageInfo | None) -> str:
    """Where a message goes, with low cardinality: the recipients' scheme and kind, or the server's community."""
    if info is None or not info.recipients:
        community = fabric.community(server)
        return f"{server.partition('://')[0]}://{community}" if community else server
    scheme, _, rest = info.recipients[0].partition("://")
    kind = rest.split("/", 2)[1] if "/" in rest else ""
    return f"{scheme}://*/{kind}"[:MAX_TEXT]


def _event(hop: Hop) -> Event:
    attributes: Attributes = {"dovetail.seq": hop.seq}
    if hop.counterpart is not None:
        attributes["dovetail.counterpart"] = hop.counterpart[:MAX_TEXT]
    if hop.reason is not None:
        attributes["error.type"] = str(hop.reason)
    return Event(name=str(hop.stage), at_us=_bounded(hop.at_us), attributes=attributes)


def _find_link(raw: bytes | None) -> tuple[bytes, bytes] | None:
    found = _TRACEPARENT.search(raw, 0, _MAX_SEARCHED_BYTES) if raw is not None else None
    if found is None:
        return None
    trace, span = bytes.fromhex(found[1].decode()), bytes.fromhex(found[2].decode())
    return None if trace == _NO_TRACE or span == _NO_SPAN else (trace, span)


def _bounded(at_us: int) -> int:
    """Clamp a time to the valid range: clocks may show anything."""
    return min(max(at_us, 0), _MAX_TIME_US)
