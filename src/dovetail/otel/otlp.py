"""Encodes spans as an OTLP/HTTP JSON request (OpenTelemetry protocol 1): ids in hex, large numbers as text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from dovetail import __version__
from dovetail.otel.spans import Attributes, Span

PATH = "/v1/traces"
CONTENT_TYPE = "application/json"
_INTERNAL, _CLIENT = 1, 3
_ERROR = 2


def encode_span(span: Span) -> bytes:
    """Encode one span, for use in a request."""
    record: dict[str, Any] = {
        "traceId": span.trace_id.hex(),
        "spanId": span.span_id.hex(),
        "name": span.name,
        "kind": _CLIENT if span.is_sending else _INTERNAL,
        "startTimeUnixNano": str(span.start_us * 1000),
        "endTimeUnixNano": str(span.end_us * 1000),
        "attributes": _attributes(span.attributes),
        "events": [
            {"timeUnixNano": str(event.at_us * 1000), "name": event.name, "attributes": _attributes(event.attributes)}
            for event in span.events
        ],
    }
    if span.parent_span_id is not None:
        record["parentSpanId"] = span.parent_span_id.hex()
    if span.dropped_events:
        record["droppedEventsCount"] = span.dropped_events
    if span.link is not None:
        trace, linked = span.link
        record["links"] = [{"traceId": trace.hex(), "spanId": linked.hex()}]
    if span.failure is not None:
        record["status"] = {"code": _ERROR, "message": span.failure}
    return msgspec.json.encode(record)


def encode_request(server: str, spans: Sequence[bytes]) -> bytes:
    """Encode a request with encoded spans of one server."""
    resource = {"service.name": "dovetail", "service.instance.id": server, "service.version": __version__}
    scope = {"name": "dovetail", "version": __version__}
    return msgspec.json.encode(
        {
            "resourceSpans": [
                {
                    "resource": {"attributes": _attributes(dict(resource))},
                    "scopeSpans": [{"scope": scope, "spans": [msgspec.Raw(span) for span in spans]}],
                }
            ]
        }
    )


def rejected_spans(answer: bytes) -> tuple[int, str]:
    """How many spans the target says it rejected, and why; an answer that is not JSON says nothing."""
    try:
        partial = msgspec.json.decode(answer, type=_Answer).partial_success
    except msgspec.DecodeError:
        return 0, ""
    return int(partial.rejected_spans), partial.error_message


class _PartialSuccess(msgspec.Struct, rename="camel"):
    rejected_spans: int | str = 0
    error_message: str = ""


class _Answer(msgspec.Struct, rename="camel"):
    partial_success: _PartialSuccess = msgspec.field(default_factory=_PartialSuccess)


def _attributes(attributes: Attributes) -> list[dict[str, Any]]:
    return [
        {"key": key, "value": {"stringValue": value} if isinstance(value, str) else {"intValue": str(value)}}
        for key, value in attributes.items()
    ]
