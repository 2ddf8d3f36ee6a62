"""Everything known about one message: its hops on all servers, its bytes, its parents and its children."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from dovetail.dashboard.site_sources import Damage
from dovetail.fabrics import fabric_named
from dovetail.journal.hop_source import HopSource
from dovetail.model.address import NO_MESSAGE, Address
from dovetail.model.errors import DovetailError
from dovetail.model.fabric import Fabric, Link, MessageInfo, Refused, Role
from dovetail.model.hop import Hop, Relation
from dovetail.report.evidence import Evidence, HopSeen
from dovetail.report.pictures import trace_arrows
from dovetail.report.sequence import ROLES, Reference, draw_sequence

MAX_HOPS = 2_000
MAX_RELATIVES = 50
SECONDS_FOR_RELATIVES = 0.4
SECONDS_WITHOUT_INDEX = 2.0
HOPS_BEFORE = 20_000
HOPS_AFTER = 100_000


@dataclass(frozen=True, slots=True)
class Relative:
    """A message that names this one or is named by it; `address` is None if no source has it."""

    relation: Relation
    address: Address | None
    name: str
    type: str = ""
    role: Role | None = None
    is_child: bool = False


@dataclass(slots=True)
class MessageTrace:
    """One message. `info` is decoded from its bytes; `error` says why they are missing or unreadable."""

    address: Address
    fabric: Fabric
    hops: list[Hop]
    raw: bytes | None
    info: MessageInfo | None = None
    error: str = ""
    relatives: list[Relative] = field(default_factory=list)
    is_search_complete: bool = True
    damages: list[Damage] = field(default_factory=list)
    hops_in_all: int = 0

    @property
    def is_note(self) -> bool:
        """Whether this is no message, but what servers noted about themselves."""
        return self.address == NO_MESSAGE

    @property
    def name(self) -> str:
        """Its address in display form."""
        return self.fabric.show_address(self.address)

    @property
    def key(self) -> bytes | None:
        """How other messages name it, if known."""
        return self.info.key if self.info is not None else self.fabric.key_of(self.address)


def trace_message(sources: Sequence[HopSource], address: Address) -> tuple[MessageTrace | None, list[Damage]]:
    """The trace of a message, None if no source knows it, and what could not be read on the way."""
    damages: list[Damage] = []
    holders: list[tuple[HopSource, list[Hop]]] = []
    raw: bytes | None = None
    for source in sources:
        try:
            hops, body = _hops_of(source, address), source.raw(address)
        except (DovetailError, OSError) as error:
            damages.append(Damage(source.server, str(error)))
            hops, body = _look_through(source, address)
        if hops:
            holders.append((source, hops))
            raw = body if raw is None else raw
    if not holders:
        return None, damages
    fabric = fabric_named(holders[0][0].fabric)
    seen = sorted((hop for _, hops in holders for hop in hops), key=lambda hop: (hop.at_us, hop.server, hop.seq))
    trace = MessageTrace(address, fabric, seen[:MAX_HOPS], raw, damages=damages, hops_in_all=len(seen))
    if raw is None:
        trace.error = "no journal here keeps the bytes any more"
    else:
        info = fabric.read(raw)
        if isinstance(info, Refused):
            trace.error = f"{info.reason}: {info.detail}"
        else:
            trace.info = info
    _find_relatives(trace, holders, [source for source in sources if source.fabric == fabric.name])
    return trace, damages


def _look_through(source: HopSource, address: Address) -> tuple[list[Hop], bytes | None]:
    """The hops and the bytes of a message from the readable rows, if the index cannot be used."""
    deadline = time.monotonic() + SECONDS_WITHOUT_INDEX
    hops: list[Hop] = []
    raw: bytes | None = None
    try:
        end = source.size
        while (head := source.range_before(end)) is not None and time.monotonic() < deadline:
            with contextlib.suppress(DovetailError):
                found = source.read(head[0], end, with_bytes=True)
                hops += [hop for hop in found.hops if hop.message == address]
                raw = found.bodies.get(address) if raw is None else raw
            end = head[0]
    except (DovetailError, OSError):
        return hops, raw  # the damage is already reported
    return sorted(hops, key=lambda hop: hop.seq), raw


def _find_relatives(
    trace: MessageTrace, holders: Sequence[tuple[HopSource, list[Hop]]], sources: Sequence[HopSource]
) -> None:
    deadline = time.monotonic() + SECONDS_FOR_RELATIVES
    try:
        for link in trace.info.links[:MAX_RELATIVES] if trace.info is not None else ():
            trace.relatives.append(_find_parent(link, trace.fabric, holders, sources, deadline))
        if trace.key is not None:
            trace.relatives += _find_children(trace, trace.key, holders, deadline)
    except (DovetailError, OSError) as error:
        trace.is_search_complete = False
        trace.damages.append(Damage("links", str(error)))


def _find_children(
    trace: MessageTrace, key: bytes, holders: Sequence[tuple[HopSource, list[Hop]]], deadline: float
) -> Sequence[Relative]:
    """Later messages that name this one."""
    fabric, needle = trace.fabric, trace.fabric.needle(key)
    found: dict[Address, Relative] = {}
    for source, hops in holders:
        first = hops[0].seq
        for child, raw in source.bodies_between(first, first + HOPS_AFTER):
            if needle in raw.lower() and child != trace.address and child not in found:
                info = fabric.read(raw)
                links = () if isinstance(info, Refused) else info.links
                relation = next((link.relation for link in links if link.parent == key), None)
                if relation is not None:
                    found[child] = _relative(fabric, relation, child, info, is_child=True)
            if time.monotonic() > deadline or len(found) >= MAX_RELATIVES:
                trace.is_search_complete = False
                break
        else:
            trace.is_search_complete &= source.size <= first + HOPS_AFTER
    return list(found.values())


def _find_parent(
    link: Link,
    fabric: Fabric,
    holders: Sequence[tuple[HopSource, list[Hop]]],
    sources: Sequence[HopSource],
    deadline: float,
) -> Relative:
    if fabric.key_bytes == len(link.parent):
        for source in sources:
            for address in sorted(source.find(link.parent)):
                raw = source.raw(address)
                return _relative(fabric, link.relation, address, None if raw is None else fabric.read(raw))
    elif fabric.key_bytes is None:
        needle = fabric.needle(link.parent)
        for source, hops in holders:
            for address, raw in source.bodies_between(max(0, hops[0].seq - HOPS_BEFORE), hops[0].seq + 1):
                if needle in raw.lower():
                    info = fabric.read(raw)
                    if not isinstance(info, Refused) and info.key == link.parent:
                        return _relative(fabric, link.relation, address, info)
                if time.monotonic() > deadline:
                    break
    return Relative(link.relation, None, fabric.show_key(link.parent))


def _relative(
    fabric: Fabric, relation: Relation, address: Address, info: MessageInfo | Refused | None, *, is_child: bool = False
) -> Relative:
    name = fabric.show_address(address)
    if isinstance(info, MessageInfo):
        return Relative(relation, address, name, info.type, info.role, is_child)
    return Relative(relation, address, name, is_child=is_child)


def draw(trace: MessageTrace, sources: Sequence[HopSource]) -> str:
    """The message and its nearest relatives as a sequence of who sent what to whom."""
    own = trace.info.role if trace.info is not None else None
    roles: dict[bytes, str] = {trace.address: ROLES[own]}
    for relative in trace.relatives:
        if relative.address is None or relative.relation not in (Relation.RESPONDING_TO, Relation.IN_REPLY_TO):
            continue
        if not relative.is_child:
            roles[relative.address] = ROLES[None]
        elif relative.role is not None:
            roles.setdefault(relative.address, ROLES[relative.role])
    evidence = Evidence()
    if trace.info is not None:
        evidence.messages[trace.address] = {"type": trace.info.type, "sender": trace.info.sender}
    for address in list(roles)[: MAX_RELATIVES + 1]:
        hops = trace.hops if address == trace.address else _hops_everywhere(sources, Address(address))
        evidence.hops[address] = [
            HopSeen(hop.server, hop.seq, hop.at_us, hop.stage, hop.counterpart, hop.reason) for hop in hops[:MAX_HOPS]
        ]
    servers = {hop.server for hops in evidence.hops.values() for hop in hops}
    arrows = [arrow for address in evidence.hops for arrow in trace_arrows(address, roles[address], evidence, servers)]
    order = list(ROLES.values())
    arrows.sort(key=lambda arrow: (arrow.at_us, order.index(arrow.role)))  # within one turn: the request first
    references = [
        Reference(child=each.address, parent=trace.address, relation=each.relation)
        if each.is_child
        else Reference(child=trace.address, parent=each.address, relation=each.relation)
        for each in trace.relatives
        if each.address is not None
    ]
    return draw_sequence(arrows, references, label="Who handed the message to whom, from top to bottom.")


def _hops_of(source: HopSource, address: Address) -> list[Hop]:
    return [committed.hop for committed in source.hops_of(address)]


def _hops_everywhere(sources: Sequence[HopSource], address: Address) -> list[Hop]:
    hops: list[Hop] = []
    for source in sources:
        try:
            hops += _hops_of(source, address)
        except (DovetailError, OSError):
            continue  # its damage is already on the page
    return sorted(hops, key=lambda hop: (hop.at_us, hop.server, hop.seq))
