"""Exports hops of journals as OpenTelemetry spans, to view deliveries in a trace viewer; not as proof."""
