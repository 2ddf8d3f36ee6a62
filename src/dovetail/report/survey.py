"""Reads the tables once and takes all numbers of the report from them."""

from __future__ import annotations

import pyarrow.compute as pc

from dovetail.report import summary
from dovetail.report.arrays import count_by, span_us
from dovetail.report.guide import count_checks
from dovetail.report.numbers import Numbers
from dovetail.report.tables import Tables

_DELIVERY_COLUMNS = ("fabric", "type", "recipient", "outcome", "reason", "accepted", "finished", "latency_us")


def take_numbers(tables: Tables) -> Numbers:
    """All numbers of the report."""
    deliveries = tables.read("deliveries", _DELIVERY_COLUMNS)
    chains = tables.read("chains", ("fabric", "kind", "state", "first_leg_us", "second_leg_us"))
    coverage = tables.read("coverage")
    integrity = tables.read("integrity")
    traffic = tables.read("traffic")
    forks = tables.read("forks")
    slot_us, over_time = summary.follow_outcomes(deliveries)
    traffic_slot_us, traffic_over_time = summary.follow_traffic(traffic)
    first_us, last_us = span_us(tables.read("hops", ("at",))["at"])
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
        outcomes_over_time=over_time,
        latency=summary.fill_latency(tables.read("latency")),
        legs=summary.measure_legs(deliveries, chains, coverage),
        slow=summary.find_slow(deliveries),
        chains=summary.count_chains(chains),
        gaps=summary.count_gaps(tables.read("gaps", ("fabric", "scope", "unexpired"))),
        forks=summary.list_forks(forks),
        fork_count=forks.num_rows,
        coverage=summary.follow_coverage(coverage),
        peers=summary.list_peers(coverage),
        servers=summary.list_servers(integrity.filter(pc.not_equal(integrity["server"], ""))),
        traffic_slot_us=traffic_slot_us,
        traffic=traffic_over_time,
        stages=summary.count_stages(traffic),
        skew=summary.list_skew(tables.read("skew")),
        checks=count_checks(tables.read("findings", ("check", "severity"))),
    )
