"""What the tables say about some messages: their fields, hops, chains and references.

Read in bulk: one pass over a table answers for all messages on the page.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from dovetail.audit.table import BINARY
from dovetail.audit.tables import Tables
from dovetail.report.arrays import micros


@dataclass(frozen=True, slots=True)
class HopSeen:
    """One hop, for a message trace or a picture."""

    server: str
    seq: int
    at_us: int
    stage: str
    counterpart: str | None
    reason: str | None


@dataclass(frozen=True, slots=True)
class LinkSeen:
    """One reference; `parent` is the full address if the parent is known, else what the wire names."""

    child: bytes
    parent: bytes
    relation: str


@dataclass(frozen=True, slots=True)
class Evidence:
    """Everything that was read, by address."""

    messages: dict[bytes, dict[str, Any]] = field(default_factory=dict)
    hops: dict[bytes, list[HopSeen]] = field(default_factory=dict)
    links: list[LinkSeen] = field(default_factory=list)

    def fabric_of(self, address: bytes) -> str:
        """The fabric of a message, empty if its bytes were never seen."""
        return str(self.messages.get(address, {}).get("fabric", ""))


def read_messages(tables: Tables, addresses: Collection[bytes]) -> dict[bytes, dict[str, Any]]:
    """The fields of the messages whose bytes were found; times as microseconds under `<name>_us`."""
    rows = tables.read("messages", where=_is_one_of("message", addresses))
    for name in ("created", "expires"):
        rows = rows.append_column(f"{name}_us", micros(rows[name])).drop([name])
    return {row["message"]: row for row in rows.to_pylist()}


def read_hops(tables: Tables, addresses: Collection[bytes]) -> dict[bytes, list[HopSeen]]:
    """The hops of the messages, each list ordered by time."""
    rows = tables.read("hops", where=_is_one_of("message", addresses))
    columns = (
        rows["message"],
        rows["server"],
        rows["seq"],
        micros(rows["at"]),
        rows["stage"],
        rows["counterpart"],
        rows["reason"],
    )
    hops: dict[bytes, list[HopSeen]] = defaultdict(list)
    for message, server, seq, at_us, stage, counterpart, reason in zip(
        *(column.to_pylist() for column in columns), strict=True
    ):
        hops[message].append(HopSeen(server, seq, at_us, stage, counterpart, reason))
    for seen in hops.values():
        seen.sort(key=lambda hop: (hop.at_us, hop.server, hop.seq))
    return dict(hops)


def read_chains(tables: Tables, addresses: Collection[bytes]) -> dict[bytes, dict[str, Any]]:
    """Chains in which one of the addresses is the message or a response, by the message's address."""
    where = _is_one_of("message", addresses)
    for column in ("first_response", "second_response", "failure"):
        where = where | _is_one_of(column, addresses)
    rows = tables.read("chains", where=where)
    rows = rows.append_column("begun_us", micros(rows["begun"])).drop(["begun"])
    return {row["message"]: row for row in rows.to_pylist()}


def read_neighbourhood(tables: Tables, focus: Collection[bytes], *, steps: int, limit: int) -> Evidence:
    """Messages within `steps` references of the focus, in both directions, with the references between them."""
    known = read_messages(tables, focus)
    keys = {row["key"]: address for address, row in known.items()}
    found: dict[tuple[bytes, bytes, str], None] = {}
    frontier: set[bytes] = set(focus)
    for _ in range(steps):
        if not frontier or len(known) >= limit:
            break
        names = {known[address]["key"] for address in frontier if address in known} | frontier
        where = _is_one_of("child", frontier) | _is_one_of("parent", names)
        rows = tables.read("links", where=where)
        fresh = set(zip(*(rows[name].to_pylist() for name in ("child", "parent", "relation")), strict=True))
        found |= dict.fromkeys(sorted(fresh))
        children = {child for child, _, _ in fresh} - known.keys()
        parents = {parent for _, parent, _ in fresh} - keys.keys()
        arrived = read_messages(tables, children) | _read_by_key(tables, parents)
        frontier = (arrived.keys() | children) - known.keys()
        known |= arrived
        keys |= {row["key"]: address for address, row in arrived.items()}
    links = [LinkSeen(child, keys.get(parent, parent), relation) for child, parent, relation in found]
    return Evidence(messages=known, links=links)


def _read_by_key(tables: Tables, keys: Iterable[bytes]) -> dict[bytes, dict[str, Any]]:
    rows = tables.read("messages", ("message",), where=_is_one_of("key", list(keys)))
    return read_messages(tables, rows["message"].to_pylist())


def _is_one_of(column: str, values: Collection[bytes]) -> pc.Expression:
    return pc.field(column).isin(pa.array(sorted(values), type=BINARY))
