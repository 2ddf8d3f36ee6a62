"""Hops of journals as OpenTelemetry spans, for looking at deliveries in a trace viewer; never for proof."""
