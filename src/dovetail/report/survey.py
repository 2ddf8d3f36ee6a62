"""Reads the tables once and computes all numbers of the report."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from dovetail.audit.tables import Tables
from dovetail.model.times import MINUTE_US
from dovetail.receipt.witness_memory import Witnessed
from dovetail.report import summary
from dovetail.report.arrays import count_by, slot_width_us, span_us
from dovetail.report.check_counts import count_checks
from dovetail.report.numbers import Numbers, TrafficSlot

_DELIVERY_COLUMNS = ("fabric", "type", "recipient", "outcome", "reason", "accepted", "finished", "latency_us")

MAX_HOPS_TO_COUNT = 5_000_000
"""Up to this many hops are counted for slots of less than a minute, which the traffic table does not have."""


def take_numbers(tables: Tables, witnessed: Mapping[str, Witnessed] | None = None) -> Numbers:
    """All numbers of the report; `witnessed` is what witnesses saw, by server."""
    deliveries = tables.read("deliveries", _DELIVERY_COLUMNS)
    chains = tables.read("chains", ("fabric", "kind", "state", "first_leg_us", "second_leg_us"))
    coverage = tables.read("coverage")
    integrity = tables.read("integrity")
    traffic = tables.read("traffic")
    forks = tables.read("forks")
    first_us, last_us = span_us(tables.read("hops", ("at",))["at"])
    slot_us, traffic_over_time = _follow_traffic(tables, traffic, first_us, last_us)
    return Numbers(
        lake=tables.run.lake,
        as_of_us=tables.run.as_of_us,
        hops=tables.count("hops"),
        first_us=first_us,
        last_us=last_us,
        messages=dict(count_by(tables.read("messages", ("fabric",)), ("fabric",))),
        outcomes=summary.count_outcomes(deliveries),
        reasons=summary.count_reasons(deliveries),
        slot_us=slot_us,
        outcomes_over_time=summary.follow_outcomes(deliveries, slot_us),
        latency=summary.fill_latency(tables.read("latency")),
        without_latency=summary.count_without_latency(deliveries),
        legs=summary.measure_legs(deliveries, chains, coverage),
        slow=summary.find_slow(deliveries),
        chains=summary.count_chains(chains),
        gaps=summary.count_gaps(tables.read("gaps", ("fabric", "scope", "unexpired"))),
        forks=summary.list_forks(forks),
        fork_count=forks.num_rows,
        coverage=summary.follow_coverage(coverage, slot_us),
        peers=summary.list_peers(coverage),
        servers=summary.list_servers(integrity.filter(pc.not_equal(integrity["server"], "")), witnessed or {}),
        traffic=traffic_over_time,
        stages=summary.count_stages(traffic),
        skew=summary.list_skew(tables.read("skew")),
        checks=count_checks(tables.read("findings", ("check", "severity"))),
    )


def _follow_traffic(
    tables: Tables, traffic: pa.Table, first_us: int | None, last_us: int | None
) -> tuple[int, list[TrafficSlot]]:
    """The slot width of all charts over time, and the hops in each slot."""
    width = slot_width_us(first_us, last_us)
    if width >= MINUTE_US or tables.count("hops") > MAX_HOPS_TO_COUNT:
        width = max(width, MINUTE_US)
        return width, summary.follow_traffic(traffic, "minute", width)
    hops = tables.read("hops", ("fabric", "at", "size")).rename_columns(["fabric", "at", "bytes"])
    counted = hops.append_column("hops", pa.array([1] * hops.num_rows, type=pa.int64()))
    return width, summary.follow_traffic(counted, "at", width)
