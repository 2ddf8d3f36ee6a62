"""Summarises the audit's tables; every function is pure: Arrow tables in, records out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from itertools import groupby, islice

import pyarrow as pa
import pyarrow.compute as pc

from dovetail.model.hop import Reason
from dovetail.model.outcome import ARRIVED, FAILED
from dovetail.receipt.witness_memory import Witnessed
from dovetail.report.arrays import (
    count_by,
    micros,
    quantiles_by,
    sum_by,
    with_slot,
)
from dovetail.report.numbers import (
    Break,
    ChainCount,
    CoverageSlot,
    ForkEvidence,
    GapCount,
    LatencyBucket,
    Leg,
    OutcomeCount,
    OutcomeSlot,
    PeerState,
    ReasonCount,
    ServerState,
    SkewState,
    SlowRecipient,
    StageCount,
    TrafficSlot,
)
from dovetail.report.text import community_of, name_address

MAX_SLOW_PER_FABRIC = 20
MAX_FORKS = 200
MAX_TYPES_PER_FABRIC = 25
MIN_DELIVERIES_TO_JUDGE = 3
_SENTENCES = {reason.value: reason.sentence for reason in Reason}


def count_outcomes(deliveries: pa.Table) -> list[OutcomeCount]:
    """Deliveries by fabric, message type and outcome."""
    return [
        OutcomeCount(fabric=fabric, type=type_, outcome=outcome, deliveries=count)
        for fabric, type_, outcome, count in count_by(deliveries, ("fabric", "type", "outcome"))
    ]


def count_reasons(deliveries: pa.Table) -> list[ReasonCount]:
    """Deliveries that did not arrive, by fabric, outcome and reason, the most frequent first."""
    failed = deliveries.filter(pc.is_in(deliveries["outcome"], pa.array(sorted(FAILED))))
    counts = [
        ReasonCount(
            fabric=fabric, outcome=outcome, reason=reason, sentence=_SENTENCES.get(reason, ""), deliveries=count
        )
        for fabric, outcome, reason, count in count_by(failed, ("fabric", "outcome", "reason"))
    ]
    return sorted(counts, key=lambda item: -item.deliveries)


def follow_outcomes(deliveries: pa.Table, width_us: int) -> list[OutcomeSlot]:
    """Outcomes of the deliveries that began in each time slot."""
    begun = deliveries.set_column(
        deliveries.schema.get_field_index("accepted"),
        "accepted",
        pc.coalesce(deliveries["accepted"], deliveries["finished"]),
    )
    slots = with_slot(begun, "accepted", width_us)
    return [
        OutcomeSlot(at_us=at, fabric=fabric, outcome=outcome, deliveries=count)
        for at, fabric, outcome, count in count_by(slots, ("slot", "fabric", "outcome"))
    ]


def fill_latency(latency: pa.Table) -> list[LatencyBucket]:
    """Delivery times by fabric, in powers of two of a millisecond."""
    return [
        LatencyBucket(fabric=fabric, up_to_ms=up_to, deliveries=count)
        for fabric, up_to, count in sum_by(latency, ("fabric", "up_to_ms"), ("deliveries",))
    ]


def count_without_latency(deliveries: pa.Table) -> dict[str, int]:
    """Number of arrived deliveries without a known duration, by fabric."""
    arrived = pc.is_in(deliveries["outcome"], pa.array(sorted(ARRIVED)))
    return dict(count_by(deliveries.filter(pc.and_(arrived, pc.is_null(deliveries["latency_us"]))), ("fabric",)))


def measure_legs(deliveries: pa.Table, chains: pa.Table, coverage: pa.Table) -> list[Leg]:
    """How long each leg took, for all messages of a fabric and for each type."""
    legs = [
        Leg(fabric=fabric, leg="delivery", of="", times=times)
        for fabric, times in quantiles_by(deliveries, ("fabric",), "latency_us")
    ]
    by_type: dict[str, list[Leg]] = defaultdict(list)
    for fabric, type_, times in quantiles_by(deliveries, ("fabric", "type"), "latency_us"):
        by_type[fabric].append(Leg(fabric=fabric, leg="delivery", of=type_ or "unknown type", times=times))
    for column, name in (("first_leg_us", "to the first response"), ("second_leg_us", "first to second response")):
        for fabric, times in quantiles_by(chains, ("fabric",), column):
            legs.append(Leg(fabric=fabric, leg=name, of="", times=times))
    spread = _with_fabric(coverage)
    for column, name in (("half_us", "to half of the peers"), ("most_us", "to 95 %"), ("all_us", "to all peers")):
        for fabric, times in quantiles_by(spread, ("fabric",), column):
            legs.append(Leg(fabric=fabric, leg=name, of="", times=times))
    for fabric in sorted(by_type):
        often = sorted(by_type[fabric], key=lambda leg: -leg.times.count)[:MAX_TYPES_PER_FABRIC]
        if len(often) > 1:
            legs += sorted(often, key=lambda leg: leg.of)
    return legs


def find_slow(deliveries: pa.Table) -> list[SlowRecipient]:
    """Recipients of each fabric with the longest ninth decile, if any took measurable time.

    Those with very few deliveries are left out.
    """
    fails = deliveries.filter(pc.is_in(deliveries["outcome"], pa.array(sorted(FAILED))))
    failed = {(fabric, who): count for fabric, who, count in count_by(fails, ("fabric", "recipient"))}
    slow = [
        SlowRecipient(
            fabric=fabric,
            recipient=recipient,
            deliveries=times.count,
            failed=failed.get((fabric, recipient), 0),
            times=times,
        )
        for fabric, recipient, times in quantiles_by(deliveries, ("fabric", "recipient"), "latency_us")
        if recipient is not None and times.count >= MIN_DELIVERIES_TO_JUDGE and times.max_us > 0
    ]
    slow.sort(key=lambda item: (item.fabric, -item.times.p90_us, item.recipient))
    return [item for _, group in groupby(slow, lambda item: item.fabric) for item in islice(group, MAX_SLOW_PER_FABRIC)]


def count_chains(chains: pa.Table) -> list[ChainCount]:
    """Chains by fabric, kind and state."""
    return [
        ChainCount(fabric=fabric, kind=kind, state=state, chains=count)
        for fabric, kind, state, count in count_by(chains, ("fabric", "kind", "state"))
    ]


def count_gaps(gaps: pa.Table) -> list[GapCount]:
    """Gaps by fabric, scope and whether the parent may still be live."""
    return [
        GapCount(fabric=fabric, scope=scope, live=live, gaps=count)
        for fabric, scope, live, count in count_by(gaps, ("fabric", "scope", "unexpired"))
    ]


def list_forks(forks: pa.Table) -> list[ForkEvidence]:
    """The first forks with their evidence."""
    rows = forks.sort_by([("kind", "ascending"), ("first_seen", "ascending")]).slice(0, MAX_FORKS)
    times = micros(rows["first_seen"]).to_pylist()
    return [
        ForkEvidence(
            fabric=row["fabric"],
            kind=row["kind"],
            author=row["author"],
            subject=(row["subject"] or b"").hex(),
            evidence=[name_address(address, row["fabric"]) for address in row["evidence"] or []],
            at_us=at,
        )
        for row, at in zip(rows.drop(["first_seen"]).to_pylist(), times, strict=True)
    ]


def _with_fabric(coverage: pa.Table) -> pa.Table:
    """The rows of messages with the fabric of their community, known from its peers' URIs."""
    peers = coverage.filter(pc.equal(coverage["scope"], "peer"))
    names = zip(peers["swarm"].to_pylist(), peers["peer"].to_pylist(), strict=True)
    fabrics = {community: community_of(peer)[0] for community, peer in names}
    rows = coverage.filter(pc.equal(coverage["scope"], "message"))
    return rows.append_column("fabric", pa.array(map(fabrics.get, rows["swarm"].to_pylist()), pa.string()))


def follow_coverage(coverage: pa.Table, width_us: int) -> list[CoverageSlot]:
    """How completely messages spread, by the time they appeared."""
    rows = coverage.filter(pc.equal(coverage["scope"], "message"))
    slots = with_slot(rows, "first_seen", width_us)
    shares = pc.divide(slots["holders"].cast(pa.float64()), pc.max_element_wise(slots["peers"], 1).cast(pa.float64()))
    slots = slots.append_column("share", shares)
    grouped = slots.group_by(["swarm", "slot"]).aggregate(
        [("share", "mean"), ("share", "min"), ("share", "count"), ("half_us", "max"), ("all_us", "max")]
    )
    return [
        CoverageSlot(
            swarm=row["swarm"],
            at_us=row["slot"],
            messages=row["share_count"],
            share=row["share_mean"],
            worst=row["share_min"],
            half_us=row["half_us_max"] or None,  # 0: its author alone makes up that share of the peers
            all_us=row["all_us_max"] or None,
        )
        for row in sorted(grouped.to_pylist(), key=lambda row: (row["swarm"], row["slot"]))
    ]


def list_peers(coverage: pa.Table) -> list[PeerState]:
    """Peers, those that lack the most first."""
    rows = coverage.filter(pc.equal(coverage["scope"], "peer"))
    columns = (rows["swarm"], rows["peer"], rows["holders"], rows["lacking"], micros(rows["first_seen"]))
    peers = [
        PeerState(swarm=swarm, peer=peer, holds=holds, lacks=lacks, first_us=first)
        for swarm, peer, holds, lacks, first in zip(*(column.to_pylist() for column in columns), strict=True)
    ]
    return sorted(peers, key=lambda peer: (-peer.lacks, peer.peer))


def list_servers(integrity: pa.Table, witnessed: Mapping[str, Witnessed]) -> list[ServerState]:
    """Servers, unproven ones first, each with what a witness last saw."""
    order = {"broken": 0, "incomplete": 1, "proven": 2}
    own = [name for name in ServerState.__struct_fields__ if name in integrity.column_names and name != "breaks"]
    times = micros(integrity["signed_at"]).to_pylist()
    servers = []
    for row, signed_at_us in zip(integrity.drop_columns("signed_at").to_pylist(), times, strict=True):
        look = witnessed.get(row["server"])
        servers.append(
            ServerState(
                **{name: row[name] for name in own},
                signed_at_us=signed_at_us,
                breaks=[Break(**item) for item in row["breaks"] or []],
                witness=None if look is None else look.witness,
                witnessed_at_us=None if look is None else look.at_s * 1_000_000,
                witnessed_hops=0 if look is None else look.size,
            )
        )
    return sorted(servers, key=lambda item: (order.get(item.verdict, 0), item.fabric or "", item.server))


def follow_traffic(hops: pa.Table, time: str, width_us: int) -> list[TrafficSlot]:
    """Hops and bytes of each fabric in each slot; the rows are hops, or counts per minute."""
    slots = with_slot(hops, time, width_us)
    return [
        TrafficSlot(at_us=at, fabric=fabric, hops=count, bytes=size)
        for at, fabric, count, size in sum_by(slots, ("slot", "fabric"), ("hops", "bytes"))
    ]


def count_stages(traffic: pa.Table) -> list[StageCount]:
    """Hops by server and stage."""
    return [
        StageCount(fabric=fabric, server=server, stage=stage, hops=hops)
        for fabric, server, stage, hops in sum_by(traffic, ("fabric", "server", "stage"), ("hops",))
    ]


def list_skew(skew: pa.Table) -> list[SkewState]:
    """Clock differences, the largest first and unknown ones last."""
    states = [SkewState(**{name: row[name] for name in SkewState.__struct_fields__}) for row in skew.to_pylist()]
    return sorted(states, key=lambda item: 1 if item.offset_us is None else -abs(item.offset_us))
