"""The charts of the page, each next to the same numbers as a table.

Colours are mid tones that are distinguishable on white, on the dark background and on paper.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle

from dovetail.audit.server_names import name_server_briefly
from dovetail.fabrics import REGISTRY
from dovetail.report import vega
from dovetail.report.numbers import Numbers
from dovetail.report.text import shorten, show, write_duration, write_latency, write_time

OUTCOME_COLOURS = {
    "delivered": "#278f60",
    "handed_over": "#4f8a2c",
    "echoed": "#3d98a8",
    "in_flight": "#7c8a9b",
    "unreported": "#8c7a4a",
    "expired": "#b8800f",
    "undeliverable": "#d9691f",
    "unauthorized": "#9a6bd4",
    "rejected": "#d1589a",
    "lost": "#d9413f",
    "no_outcome": "#cc3a5c",
}
STATE_COLOURS = {
    "complete": "#278f60",
    "awaiting_sender": "#7c8a9b",
    "awaiting_recipient": "#b8800f",
    "failed": "#d9413f",
    "orphan_response": "#9a6bd4",
}
_PALETTE = ("#4a7fe0", "#b565c9", "#1f9e9e", "#c2832e", "#6a8f3c")
FABRIC_COLOURS = dict(zip(REGISTRY, cycle(_PALETTE), strict=False))
COVERAGE_COLOUR = "#1f9e9e"
MAX_TYPES = 12
MAX_REASONS = 20
_NAME_CHARS = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A chart, as text, as a specification and as a table."""

    id: str
    title: str
    caption: str
    spec: vega.Spec
    colours: vega.Colours
    columns: Sequence[str]
    rows: Sequence[Sequence[object]]


def make_charts(numbers: Numbers) -> dict[str, Chart]:
    """All charts that have data, by id."""
    charts = [
        *(_outcomes_over_time(numbers, fabric) for fabric in FABRIC_COLOURS),
        _types(numbers),
        _reasons(numbers),
        _latency(numbers),
        _legs(numbers),
        _chains(numbers),
        *_coverage(numbers),
        _traffic(numbers),
        _stages(numbers),
    ]
    return {chart.id: chart for chart in charts if chart.rows}


def _outcomes_over_time(numbers: Numbers, fabric: str) -> Chart:
    slots = [
        (slot.at_us, slot.outcome, slot.deliveries) for slot in numbers.outcomes_over_time if slot.fabric == fabric
    ]
    colours = _used(OUTCOME_COLOURS, {outcome for _, outcome, _ in slots})
    return Chart(
        id=f"time-{fabric}",
        title=fabric,
        caption=f"deliveries by start time, per {write_duration(numbers.slot_us)}",
        spec=vega.stack_over_time(
            slots, numbers.slot_us, colours, part="outcome", count="deliveries", time="began (UTC)"
        ),
        colours=colours,
        columns=("began (UTC)", "outcome", "deliveries"),
        rows=[(write_time(at_us), _words(outcome), count) for at_us, outcome, count in slots],
    )


def _types(numbers: Numbers) -> Chart:
    totals: dict[tuple[str, str], int] = defaultdict(int)
    counts = [(item.fabric, item.type or "unknown type", item.outcome, item.deliveries) for item in numbers.outcomes]
    for fabric, type_, _, count in counts:
        totals[fabric, type_] += count
    most = sorted(totals, key=lambda key: (-totals[key], key))[:MAX_TYPES]
    names = {(fabric, type_): f"{fabric} · {_name(_tail(type_))}" for fabric, type_ in most}
    rows = [(names[fabric, type_], outcome, n) for fabric, type_, outcome, n in counts if (fabric, type_) in names]
    colours = _used(OUTCOME_COLOURS, {outcome for _, outcome, _ in rows})
    return Chart(
        id="types",
        title="By message type",
        caption="outcomes of each type, most frequent first",
        spec=vega.stack_shares(rows, list(names.values()), colours, part="outcome", count="deliveries"),
        colours=colours,
        columns=("fabric", "type", "outcome", "deliveries"),
        rows=[(fabric, type_, _words(outcome), n) for fabric, type_, outcome, n in counts],
    )


def _reasons(numbers: Numbers) -> Chart:
    rows = [
        (f"{item.fabric} · {_words(item.reason or item.outcome)}", item.fabric, item.deliveries, item.sentence)
        for item in numbers.reasons[:MAX_REASONS]
    ]
    colours = _used(FABRIC_COLOURS, {fabric for _, fabric, _, _ in rows})
    return Chart(
        id="reasons",
        title="By reason",
        caption="why deliveries did not arrive",
        spec=vega.rank_bars(rows, colours, count="deliveries"),
        colours=colours,
        columns=("fabric", "outcome", "reason", "meaning", "deliveries"),
        rows=[
            (item.fabric, _words(item.outcome), _words(item.reason or "none given"), item.sentence, item.deliveries)
            for item in numbers.reasons
        ],
    )


def _latency(numbers: Numbers) -> Chart:
    buckets = [
        (bucket.fabric, max(bucket.up_to_ms, 1), bucket.deliveries, write_duration(max(bucket.up_to_ms, 1) * 1000))
        for bucket in numbers.latency
    ]
    colours = _used(FABRIC_COLOURS, {fabric for fabric, *_ in buckets})
    untold = [f"{fabric} {count:,}" for fabric, count in sorted(numbers.without_latency.items())]
    below = f"; not measured: {', '.join(untold)}" if untold else ""
    return Chart(
        id="latency",
        title="Delivery times",
        caption=f"cumulative share of measured deliveries{below}",
        spec=vega.draw_cumulative(buckets, colours, count="deliveries"),
        colours=colours,
        columns=("fabric", "up to", "deliveries"),
        rows=[(fabric, up_to, count) for fabric, _, count, up_to in buckets],
    )


def _legs(numbers: Numbers) -> Chart:
    rows = [
        (
            f"{leg.fabric} · {leg.leg}",
            leg.fabric,
            [max(time, 1) / 1000 for time in (leg.times.p50_us, leg.times.p90_us, leg.times.p99_us)],
        )
        for leg in numbers.legs
        if not leg.of
    ]
    colours = _used(FABRIC_COLOURS, {fabric for _, fabric, _ in rows})
    return Chart(
        id="legs",
        title="By leg",
        caption="dot: median; thick line: to 90 %; thin line: to 99 %; "
        "times within one turn of a server are at the left edge",
        spec=vega.draw_ranges(rows, colours),
        colours=colours,
        columns=("fabric", "leg", "type", "measured", "p50", "p90", "p99", "longest"),
        rows=[
            (
                leg.fabric,
                leg.leg,
                leg.of or "all",
                leg.times.count,
                *map(write_latency, (leg.times.p50_us, leg.times.p90_us, leg.times.p99_us, leg.times.max_us)),
            )
            for leg in numbers.legs
        ],
    )


def _chains(numbers: Numbers) -> Chart:
    rows = [(f"{item.fabric} · {item.kind}", item.state, item.chains) for item in numbers.chains]
    names = list(dict.fromkeys(name for name, _, _ in rows))
    colours = _used(STATE_COLOURS, {state for _, state, _ in rows})
    return Chart(
        id="chains",
        title="Chains by state",
        caption="state of the chains of each kind",
        spec=vega.stack_shares(rows, names, colours, part="state", count="chains"),
        colours=colours,
        columns=("fabric", "kind", "state", "chains"),
        rows=[(item.fabric, item.kind, _words(item.state), item.chains) for item in numbers.chains],
    )


def _coverage(numbers: Numbers) -> list[Chart]:
    charts = []
    for number, swarm in enumerate(sorted({slot.swarm for slot in numbers.coverage})):
        slots = [slot for slot in numbers.coverage if slot.swarm == swarm]
        points = [(slot.at_us, slot.share, slot.worst, slot.messages) for slot in slots]
        charts.append(
            Chart(
                id=f"coverage-{number}",
                title=f"Coverage of {_name(swarm)}",
                caption="mean share of peers that hold a message; the shaded area extends to the worst message",
                spec=vega.draw_band(points, COVERAGE_COLOUR, share="held by", time="appeared (UTC)"),
                colours={},
                columns=("appeared (UTC)", "messages", "mean", "worst", "half had it within", "all had it within"),
                rows=[
                    (
                        write_time(slot.at_us),
                        slot.messages,
                        f"{slot.share:.1%}",
                        f"{slot.worst:.1%}",
                        write_duration(slot.half_us),
                        write_duration(slot.all_us),
                    )
                    for slot in slots
                ],
            )
        )
    return charts


def _traffic(numbers: Numbers) -> Chart:
    slots = [(slot.at_us, slot.fabric, slot.hops) for slot in numbers.traffic]
    colours = _used(FABRIC_COLOURS, {fabric for _, fabric, _ in slots})
    return Chart(
        id="traffic",
        title="Hops over time",
        caption=f"hops per {write_duration(numbers.slot_us)}",
        spec=vega.stack_over_time(slots, numbers.slot_us, colours, part="fabric", count="hops", time="from (UTC)"),
        colours=colours,
        columns=("from (UTC)", "fabric", "hops", "bytes"),
        rows=[(write_time(slot.at_us), slot.fabric, slot.hops, slot.bytes) for slot in numbers.traffic],
    )


def _stages(numbers: Numbers) -> Chart:
    totals: dict[tuple[str, str], int] = defaultdict(int)
    for item in numbers.stages:
        totals[item.fabric, item.stage] += item.hops
    rows = [(_words(stage), fabric, hops, "") for (fabric, stage), hops in totals.items()]
    colours = _used(FABRIC_COLOURS, {fabric for _, fabric, _, _ in rows})
    return Chart(
        id="stages",
        title="Hops by stage",
        caption="hops by stage; the table lists each server",
        spec=vega.rank_bars(rows, colours, count="hops"),
        colours=colours,
        columns=("fabric", "server", "stage", "hops"),
        rows=[
            (item.fabric, name_server_briefly(item.server), _words(item.stage), item.hops) for item in numbers.stages
        ],
    )


def _used(colours: vega.Colours, names: set[str]) -> vega.Colours:
    """The colours of the names that occur; grey for a name without a colour."""
    known = {name: colour for name, colour in colours.items() if name in names}
    return known | dict.fromkeys(sorted(names - known.keys()), "#7c8a9b")


def _name(text: str) -> str:
    return shorten(show(text), _NAME_CHARS)


def _tail(type_: str) -> str:
    return type_.rpartition("#")[2].removeprefix("http://").removeprefix("https://")


def _words(name: str) -> str:
    return name.replace("_", " ")
