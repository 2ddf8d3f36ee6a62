"""How far the journal of each server is known: from when until when every hop was read, as its server sealed it.

What a server did not record is called missing only where its journal is known without a gap. A file that is missing,
altered, unreadable or was left out is a gap: the hops that seem to be missing may have been in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import pyarrow as pa

from dovetail.audit.ingest_log import FileFact, ManifestFact
from dovetail.audit.merkle_scan import Part
from dovetail.audit.proven_files import proven_paths
from dovetail.audit.state_tables import SERVERS_TABLE
from dovetail.model.times import to_us

MAX_REACHES = 1_000
"""Number of reaches kept of each server: the latest."""

_REACHES = SERVERS_TABLE.arrow.field("reaches")


class Reach(NamedTuple):
    """Times of the first and last hop of a part of a journal without gaps; `since_us` is None if it begins with it."""

    since_us: int | None
    until_us: int


def reaches_of(manifests: Sequence[ManifestFact], files: Sequence[FileFact]) -> dict[tuple[str, str], list[Reach]]:
    """By fabric and server, what is known of its journal, by these active manifests."""
    proven = proven_paths(manifests, files)
    parts: dict[tuple[str, str], list[Part]] = {}
    for fact in files:
        if fact.part is not None and fact.path in proven:
            parts.setdefault((fact.fabric, fact.server), []).append(fact.part)
    return {server: _joined(own) for server, own in parts.items()}


def _joined(parts: Sequence[Part]) -> list[Reach]:
    reaches: list[Reach] = []
    end = 0
    for part in sorted(parts, key=lambda one: one.first_seq):
        if reaches and part.first_seq <= end:
            since_us, until_us = reaches.pop()
            reaches.append(Reach(since_us, max(until_us, part.last_at_us)))
        else:
            reaches.append(Reach(part.first_at_us if part.first_seq else None, part.last_at_us))
        end = max(end, part.last_seq + 1)
    return reaches[-MAX_REACHES:]


def with_reaches(servers: pa.Table, manifests: Sequence[ManifestFact], files: Sequence[FileFact]) -> pa.Table:
    """Rows of `servers` with how far each journal is known now."""
    found = reaches_of(manifests, files)
    keys = zip(servers["fabric"].to_pylist(), servers["server"].to_pylist(), strict=True)
    rows = [[{"since": since, "until": until} for since, until in found.get(key, ())] for key in keys]
    others = [name for name in servers.column_names if name != _REACHES.name]
    return servers.select(others).append_column(_REACHES, pa.array(rows, _REACHES.type))


def newly_known(before: pa.Table, now: pa.Table) -> dict[str, tuple[int, int]]:
    """By server, from when until when its journal was not known by these rows of `servers` before, and is now."""
    earlier = _by_server(before)
    found = {}
    for server, reaches in _by_server(now).items():
        known = dict(earlier.get(server, ()))
        new = [(known.get(since, since or 0), until) for since, until in reaches if known.get(since) != until]
        if new:
            found[server] = min(since for since, _ in new), max(until for _, until in new)
    return found


def is_less_known(before: pa.Table, now: pa.Table) -> bool:
    """True if a part of a journal was known before and is not now."""
    later = _by_server(now)

    def is_known(server: str, old: Reach) -> bool:
        start_us = old.since_us or 0
        return any((new.since_us or 0) <= start_us and old.until_us <= new.until_us for new in later.get(server, ()))

    return not all(is_known(server, old) for server, reaches in _by_server(before).items() for old in reaches)


def _by_server(servers: pa.Table) -> Mapping[str, Sequence[Reach]]:
    return {
        row["server"]: [
            Reach(None if one["since"] is None else to_us(one["since"]), to_us(one["until"]))
            for one in row["reaches"] or ()
        ]
        for row in servers.select(["server", "reaches"]).to_pylist()
    }
