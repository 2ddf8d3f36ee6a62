"""Everything that is known of one message: its hops everywhere, its bytes, what it names and what names it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from dovetail.dashboard.decode import Decoded, Named, decode
from dovetail.dashboard.site_sources import Damage
from dovetail.journal.hop_source import HopSource
from dovetail.model.address import Address
from dovetail.model.errors import DovetailError
from dovetail.model.hop import Fabric, Hop, Relation, address_text
from dovetail.report.evidence import Evidence, HopSeen
from dovetail.report.pictures import trace_arrows
from dovetail.report.sequence import Reference, draw_sequence

MAX_HOPS = 2_000
MAX_RELATIVES = 50
SECONDS_FOR_RELATIVES = 0.4
SECONDS_WITHOUT_INDEX = 2.0
HOPS_BEFORE = 20_000
HOPS_AFTER = 100_000
_SWARM_KEY_BYTES = 8


@dataclass(frozen=True, slots=True)
class Relative:
    """A message that is named, or that names; `address` is None where nobody here has it."""

    relation: Relation
    address: Address | None
    name: str
    type: str = ""
    is_child: bool = False


@dataclass(slots=True)
class Story:
    """One message."""

    address: Address
    fabric: Fabric
    hops: list[Hop]
    raw: bytes | None
    decoded: Decoded
    relatives: list[Relative] = field(default_factory=list)
    is_search_complete: bool = True
    damages: list[Damage] = field(default_factory=list)
    hops_in_all: int = 0


def tell(sources: Sequence[HopSource], address: Address) -> tuple[Story | None, list[Damage]]:
    """The story of a message, None where no source knows it, and what could not be read on the way."""
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
    fabric = holders[0][0].fabric
    seen = sorted((hop for _, hops in holders for hop in hops), key=lambda hop: (hop.at_us, hop.server, hop.seq))
    decoded = decode(fabric, raw) if raw is not None else Decoded(error="no journal here keeps the bytes any more")
    story = Story(address, fabric, seen[:MAX_HOPS], raw, decoded, damages=damages, hops_in_all=len(seen))
    _find_relatives(story, holders, [source for source in sources if source.fabric is fabric])
    return story, damages


def _look_through(source: HopSource, address: Address) -> tuple[list[Hop], bytes | None]:
    """The hops and the bytes of a message from the rows that can be read, where the index cannot be used."""
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
        return hops, raw  # the damage is told already
    return sorted(hops, key=lambda hop: hop.seq), raw


def _find_relatives(story: Story, holders: Sequence[tuple[HopSource, list[Hop]]], sources: Sequence[HopSource]) -> None:
    deadline = time.monotonic() + SECONDS_FOR_RELATIVES
    try:
        for named in story.decoded.names[:MAX_RELATIVES]:
            story.relatives.append(_find_parent(named, story, holders, sources, deadline))
        needle, names_it = _child_test(story)
        found: dict[Address, Relative] = {}
        for source, hops in holders:
            first = hops[0].seq
            for child, raw in source.bodies_between(first, first + HOPS_AFTER):
                if needle in raw.lower() and child != story.address and child not in found:
                    decoded = decode(story.fabric, raw)
                    relation = next((each.relation for each in decoded.names if names_it(each.parent)), None)
                    if relation is not None:
                        name = address_text(child, story.fabric)
                        found[child] = Relative(relation, child, name, decoded.type, is_child=True)
                if time.monotonic() > deadline or len(found) >= MAX_RELATIVES:
                    story.is_search_complete = False
                    break
            else:
                story.is_search_complete &= source.size <= first + HOPS_AFTER
        story.relatives += found.values()
    except (DovetailError, OSError) as error:
        story.is_search_complete = False
        story.damages.append(Damage("links", str(error)))


def _child_test(story: Story) -> tuple[bytes, Callable[[bytes | str], bool]]:
    """Bytes that a child must hold, in lower case, and whether what it names is this message."""
    if story.fabric is Fabric.PCP:
        own = story.decoded.id or "-"
        return own.encode(), lambda parent: parent == own
    if story.fabric is Fabric.SWARM:
        return story.address[:_SWARM_KEY_BYTES].lower(), lambda parent: parent == story.address[:_SWARM_KEY_BYTES]
    return address_text(story.address, story.fabric).encode().lower(), lambda parent: parent == story.address


def _find_parent(
    named: Named,
    story: Story,
    holders: Sequence[tuple[HopSource, list[Hop]]],
    sources: Iterable[HopSource],
    deadline: float,
) -> Relative:
    if isinstance(named.parent, bytes):
        for source in sources:
            for address in sorted(source.find(named.parent)):
                raw = source.raw(address)
                kind = decode(story.fabric, raw).type if raw is not None else ""
                return Relative(named.relation, address, address_text(address, story.fabric), kind)
        is_whole = len(named.parent) == len(story.address)
        name = address_text(Address(named.parent), story.fabric) if is_whole else named.parent.hex()
        return Relative(named.relation, None, name)
    if story.fabric is Fabric.PCP:
        wanted = named.parent.encode()
        for source, hops in holders:
            for address, raw in source.bodies_between(max(0, hops[0].seq - HOPS_BEFORE), hops[0].seq + 1):
                if wanted in raw.lower() and (decoded := decode(story.fabric, raw)).id == named.parent:
                    return Relative(named.relation, address, address.hex(), decoded.type)
                if time.monotonic() > deadline:
                    break
    return Relative(named.relation, None, named.parent)


def draw(story: Story, sources: Sequence[HopSource]) -> str:
    """The message and its nearest relatives as a sequence of who handed what to whom."""
    roles: dict[bytes, str] = {story.address: "m"}
    responses = 0
    for relative in story.relatives:
        if relative.address is None or relative.relation not in (Relation.RESPONDING_TO, Relation.IN_REPLY_TO):
            continue
        if not relative.is_child:
            roles[relative.address], roles[story.address] = "m", "s1"
        else:
            responses += 1
            roles.setdefault(relative.address, "failure" if "Failure" in relative.type else f"s{min(responses, 2)}")
    evidence = Evidence()
    evidence.messages[story.address] = {"type": story.decoded.type, "sender": story.decoded.sender or None}
    for address in list(roles)[: MAX_RELATIVES + 1]:
        hops = story.hops if address == story.address else _hops_everywhere(sources, Address(address))
        evidence.hops[address] = [
            HopSeen(hop.server, hop.seq, hop.at_us, hop.stage, hop.counterpart, hop.reason) for hop in hops[:MAX_HOPS]
        ]
    servers = {hop.server for hops in evidence.hops.values() for hop in hops}
    arrows = [arrow for address in evidence.hops for arrow in trace_arrows(address, roles[address], evidence, servers)]
    arrows.sort(key=lambda arrow: arrow.at_us)
    references = [
        Reference(child=each.address, parent=story.address, relation=each.relation)
        if each.is_child
        else Reference(child=story.address, parent=each.address, relation=each.relation)
        for each in story.relatives
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
            continue  # its damage stands on the page already
    return sorted(hops, key=lambda hop: (hop.at_us, hop.server, hop.seq))
