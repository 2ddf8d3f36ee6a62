"""Chooses what to draw and converts evidence to the input of the diagrams."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from dovetail.audit.server_names import name_server_briefly, strip_uri
from dovetail.model.fabric import Role
from dovetail.model.outcome import ARRIVED
from dovetail.report import dag, sequence, spread
from dovetail.report.evidence import Evidence, HopSeen, LinkSeen
from dovetail.report.text import name_briefly, write_duration

_MAX_TROUBLE = 3
_TAKEN = ("accepted", "created")
_AWAY = ("delivered", "redelivered", "echoed", "forwarded", "served")
_FAILED_AWAY = ("undeliverable", "expired")
_PARTS = {None: "message", Role.FIRST: "first_response", Role.SECOND: "second_response", Role.FAILURE: "failure"}
"""The columns of a chain by the roles of their messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """One picture with a description."""

    kind: str
    title: str
    caption: str
    svg: str


def draw_conversation(
    chains: Sequence[dict[str, Any]], evidence: Evidence, links: Iterable[LinkSeen], *, title: str, caption: str
) -> Picture:
    """Related chains as one sequence: each message with every leg of its delivery."""
    servers = {hop.server for seen in evidence.hops.values() for hop in seen}
    arrows: list[sequence.Arrow] = []
    for chain in sorted(chains, key=lambda each: each["begun_us"] or 0):
        for role, column in _PARTS.items():
            if chain[column] is not None:
                arrows += trace_arrows(chain[column], sequence.ROLES[role], evidence, servers)
    arrows.sort(key=lambda arrow: arrow.at_us)
    caption += _name_trouble(arrows)
    shown = {arrow.message for arrow in arrows}
    references = [
        sequence.Reference(child=link.child, parent=link.parent, relation=link.relation)
        for link in links
        if link.child in shown and link.parent in shown
    ]
    return Picture(
        kind="sequence",
        title=title,
        caption=caption,
        svg=sequence.draw_sequence(arrows, references, label=f"{title}. {caption}"),
    )


def _name_trouble(arrows: Sequence[sequence.Arrow]) -> str:
    """What the crosses in the picture mean, so that its caption does not call failed messages complete."""
    verbs = {"lost": "did not reach", "refused": "was refused by"}
    words = dict.fromkeys(
        f"; {arrow.role} {verbs[arrow.mark]} {name_server_briefly(arrow.target)}"
        for arrow in arrows
        if arrow.mark in verbs
    )
    return "".join(list(words)[:_MAX_TROUBLE])


def trace_arrows(address: bytes, role: str, evidence: Evidence, servers: set[str]) -> list[sequence.Arrow]:
    """One arrow per leg of a message: sent by one server and received by another is one leg."""
    hops = evidence.hops.get(address, [])
    message = evidence.messages.get(address, {})
    label = f"{role} {_short_type(message.get('type'))}".strip() if role == sequence.ROLES[None] else role
    taken = {hop.server for hop in hops if hop.stage in _TAKEN}
    arrows = []
    for hop in hops:
        leg = _trace_leg(hop, label, role, message.get("sender"), taken, servers)
        if leg is not None:
            arrows.append(
                sequence.Arrow(
                    role=role,
                    label=leg[0],
                    source=leg[1],
                    target=leg[2],
                    mark=leg[3],
                    note=leg[4],
                    at_us=hop.at_us,
                    message=address,
                )
            )
    return arrows


def _trace_leg(
    hop: HopSeen,
    label: str,
    role: str,
    sender: str | None,
    taken: set[str],
    servers: set[str],
) -> tuple[str, str, str, sequence.Mark, str] | None:
    other = hop.counterpart or sender or "unknown"
    if hop.stage == "created":
        return label, hop.server, hop.server, "made", ""
    if hop.stage == "accepted":
        return label, other, hop.server, "arrived", ""
    if hop.stage == "rejected":
        return role, other, hop.server, "refused", _words(hop.reason or "refused")
    if hop.stage in _FAILED_AWAY:
        return role, hop.server, other, "lost", _words(hop.reason or hop.stage)
    if hop.stage == "pulled":
        return f"asks for {role}", hop.server, other, "arrived", ""
    if hop.stage in _AWAY:
        if hop.stage in ("forwarded", "served") and other in taken:
            return None  # the other server's own hop shows this leg
        is_lost = hop.stage == "forwarded" and other in servers
        return label, hop.server, other, "lost" if is_lost else "arrived", "" if hop.stage == "delivered" else hop.stage
    return None


def draw_neighbourhood(
    focus: Sequence[bytes], evidence: Evidence, *, steps: int, title: str, caption: str, is_evidence: bool = False
) -> Picture:
    """The messages within `steps` references of the focus."""
    links = evidence.links
    near = _walk(focus, links, steps)
    fabrics = {link.parent: evidence.fabric_of(link.child) for link in links}
    fabrics |= {address: row["fabric"] for address, row in evidence.messages.items()}
    nodes = [
        _dag_node(address, fabrics.get(address, ""), evidence, is_focus=address in focus, is_evidence=is_evidence)
        for address in near
    ]
    edges = [
        dag.Edge(child=link.child, parent=link.parent, relation=link.relation)
        for link in links
        if link.child in near and link.parent in near
    ]
    return Picture(
        kind="dag", title=title, caption=caption, svg=dag.draw_dag(nodes, edges, label=f"{title}. {caption}")
    )


def _walk(focus: Sequence[bytes], links: Sequence[LinkSeen], steps: int) -> dict[bytes, None]:
    """Messages within `steps` references, the nearest first."""
    near = dict.fromkeys(focus)
    for _ in range(steps):
        fresh: dict[bytes, None] = {}
        for link in links:
            if link.child in near:
                fresh.setdefault(link.parent)
            if link.parent in near:
                fresh.setdefault(link.child)
        near |= fresh
    return near


def _dag_node(address: bytes, fabric: str, evidence: Evidence, *, is_focus: bool, is_evidence: bool) -> dag.Node:
    message = evidence.messages.get(address)
    if message is None:
        return dag.Node(id=address, label=name_briefly(address, fabric), caption="nobody has it", kind="missing")
    kind: dag.Kind = "known"
    if is_focus:
        kind = "evidence" if is_evidence else "focus"
    caption = _short_type(message["type"]) or strip_uri(message["sender"] or "")
    return dag.Node(id=address, label=name_briefly(address, fabric), caption=caption, kind=kind)


def draw_holders(hops: Sequence[HopSeen], members: Iterable[str], *, title: str) -> Picture:
    """How a message reached each member of its community."""
    first: dict[str, HopSeen] = {}
    asked: dict[str, int] = {}
    for hop in hops:
        if hop.stage in _TAKEN:
            first.setdefault(hop.server, hop)
        elif hop.stage == "pulled":
            asked.setdefault(hop.server, hop.at_us)
    begun = min((hop.at_us for hop in first.values()), default=0)
    origin = min(first.values(), key=lambda hop: (hop.stage != "created", hop.at_us), default=None)
    arrivals = [
        spread.Arrival(
            receiver=server,
            after_us=hop.at_us - begun,
            via=hop.counterpart,
            how="origin" if hop is origin else "pulled" if asked.get(server, hop.at_us + 1) <= hop.at_us else "pushed",
        )
        for server, hop in first.items()
    ]
    lacking = sorted(set(members) - first.keys())
    arrivals += [spread.Arrival(receiver=peer, after_us=None, how="failed") for peer in lacking]
    pulled = sum(each.how == "pulled" for each in arrivals)
    longest = max((each.after_us for each in arrivals if each.after_us is not None), default=0)
    caption = f"{len(first)} of {len(arrivals)} peers have it, the last after {write_duration(longest)}"
    return _draw_spread(arrivals, title, f"{caption}; {pulled} had to request it")


def draw_recipients(deliveries: Sequence[dict[str, Any]], *, title: str) -> Picture:
    """The outcomes of a message with many recipients."""
    arrivals = [
        spread.Arrival(
            receiver=row["recipient"] or "unknown",
            after_us=(row["latency_us"] or 0) if row["outcome"] in ARRIVED else None,
            via=row["sender"],
            how="pushed" if row["outcome"] in ARRIVED else "failed",
            note="" if row["outcome"] in ARRIVED else _words(row["reason"] or row["outcome"]),
        )
        for row in deliveries
    ]
    sender = next((row["sender"] for row in deliveries if row["sender"]), None)
    arrived = sum(each.after_us is not None for each in arrivals)
    if sender and all(each.receiver != sender for each in arrivals):
        arrivals.append(spread.Arrival(receiver=sender, after_us=0, how="origin"))
    return _draw_spread(arrivals, title, f"{arrived} of {len(deliveries)} targets have it")


def _draw_spread(arrivals: Sequence[spread.Arrival], title: str, caption: str) -> Picture:
    drawn = spread.draw_spread(arrivals, label=f"{title}. {caption}")
    return Picture(kind="spread", title=title, caption=caption, svg=drawn)


def _short_type(type_: str | None) -> str:
    """The last part of a message type, which is a URI."""
    return (type_ or "").rstrip("/#").rpartition("#")[2].rpartition("/")[2].removesuffix("Message")


def _words(name: str) -> str:
    return name.replace("_", " ")
