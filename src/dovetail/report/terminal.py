"""A short summary of the report, for a terminal."""

from __future__ import annotations

from dovetail.model.outcome import ARRIVED
from dovetail.report.numbers import Numbers
from dovetail.report.text import write_latency, write_time


def write_summary(numbers: Numbers) -> list[str]:
    """Lines of text; names of peers are unescaped, so the caller must escape them."""
    lines = [_headline(numbers), ""]
    for fabric in sorted({item.fabric for item in numbers.outcomes}):
        outcomes = numbers.outcomes_of(fabric)
        total = sum(outcomes.values())
        rest = ", ".join(
            f"{count:,} {name.replace('_', ' ')}" for name, count in outcomes.items() if name not in ARRIVED
        )
        lines.append(
            f"  {fabric:<6} {numbers.arrived_of(fabric):,} of {total:,} deliveries arrived{'; ' + rest if rest else ''}"
        )
    lines += [
        f"  {leg.fabric:<6} {leg.leg}: half within {write_latency(leg.times.p50_us)}, "
        f"99 of 100 within {write_latency(leg.times.p99_us)}"
        for leg in numbers.legs
        if not leg.of
    ]
    broken = [server.server for server in numbers.servers if server.verdict != "proven"]
    lines.append(
        f"  {numbers.proven} of {len(numbers.servers)} servers proven"
        + (f"; not {', '.join(broken)}" if broken else "")
    )
    if numbers.checks:
        lines.append("")
    lines += [f"  {item.severity:<8} {item.findings:>8,}  {item.check:<28} {item.meaning}" for item in numbers.checks]
    return lines


def _headline(numbers: Numbers) -> str:
    counts = [(numbers.found(severity), severity) for severity in ("error", "warning")]
    verdict = ", ".join(f"{count:,} {severity}{'' if count == 1 else 's'}" for count, severity in counts)
    if not any(count for count, _ in counts):
        verdict = "no errors or warnings" if numbers.hops else "no data"
    as_of = f", as of {write_time(numbers.as_of_us)} UTC" if numbers.as_of_us is not None else ""
    return f"{sum(numbers.messages.values()):,} messages, {numbers.hops:,} hops{as_of}: {verdict}"
