"""Where hops lie: journals, live or closed, and the lake for servers whose journal is not here.

A place is opened for one request or one look, by one thread, and closed again. What cannot be opened or read is told
as a `Damage`; it never hides what can be.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from dovetail.errors import DovetailError, JournalDamaged, JournalError
from dovetail.hop import Address, Fabric, Hop
from dovetail.journal.folder import PEER_JOURNAL, find_journals
from dovetail.journal.reader import JournalReader
from dovetail.receipt.journal_source import JournalSource
from dovetail.receipt.source import Source

MAX_PLACES = 200
LAKE_STRETCH_HOPS = 2_048


@dataclass(frozen=True, slots=True)
class Damage:
    """Something that cannot be read: where, and what is wrong."""

    where: str
    text: str


@dataclass(frozen=True, slots=True)
class Stretch:
    """Some hops in a row, with the bytes of their messages where those were asked for and are kept."""

    first: int
    hops: Sequence[Hop]
    bodies: dict[Address, bytes | None]


class Place(Protocol):
    """One server's hops."""

    server: str
    fabric: Fabric
    source: Source

    def size(self) -> int:
        """How many hops there are now."""

    def begin_of(self, end: int) -> tuple[int, int] | None:
        """The stretch that ends at or just before hop `end`: its first hop and the time of its last one."""

    def read(self, first: int, end: int, *, with_bytes: bool) -> Stretch:
        """The stretch that begins with hop `first`, without what lies at `end` or behind."""

    def find(self, prefix: bytes, limit: int) -> list[Address]:
        """Addresses that begin with `prefix`, by the index."""

    def hops_of(self, address: Address) -> list[Hop]:
        """All hops of one message."""


class JournalPlace:
    """A journal; its stretches are its group commits."""

    def __init__(self, reader: JournalReader) -> None:
        self._reader = reader
        self.server = reader.identity.server
        self.fabric = reader.identity.fabric
        self.source: Source = JournalSource(reader)

    def size(self) -> int:
        return self._reader.size

    def begin_of(self, end: int) -> tuple[int, int] | None:
        row = self._reader.one(
            "SELECT first_seq, last_at_us FROM commits WHERE first_seq < ? ORDER BY first_seq DESC LIMIT 1", (end,)
        )
        return (row[0], row[1]) if row else None

    def read(self, first: int, end: int, *, with_bytes: bool) -> Stretch:
        hops: list[Hop] = []
        bodies: dict[Address, bytes | None] = {}
        for commit in self._reader.commits(first, first + 1):
            ids = {run.message_id for run in commit.runs}
            messages = self._reader.messages_by_id(ids, 0, self._reader.size if with_bytes else 0)
            for run in commit.runs:
                self._reader.message_of(run, messages, commit.first_seq)
            hops += [hop for hop in self._reader.hops_of_commit(commit, messages) if hop.seq < end]
            bodies |= {message.address: message.raw for message in messages.values()}
        return Stretch(first, hops, bodies)

    def find(self, prefix: bytes, limit: int) -> list[Address]:
        return [row.address for row in self._reader.find(prefix, limit)]

    def hops_of(self, address: Address) -> list[Hop]:
        return self._reader.hops_of(address)


class LakePlace:
    """What the lake has of one server."""

    def __init__(self, source: Source, size: int) -> None:
        self.source = source
        self.server = source.server
        self.fabric = source.fabric
        self._size = size

    def size(self) -> int:
        return self._size

    def begin_of(self, end: int) -> tuple[int, int] | None:
        if end <= 0:
            return None
        (last,) = self.source.hops_between(end - 1, end)
        return max(0, end - LAKE_STRETCH_HOPS), last.hop.at_us

    def read(self, first: int, end: int, *, with_bytes: bool) -> Stretch:
        hops = [kept.hop for kept in self.source.hops_between(first, end)]
        bodies: dict[Address, bytes | None] = {}
        if with_bytes:
            bodies.update(self.source.bodies_between(first, end))
        return Stretch(first, hops, bodies)

    def find(self, prefix: bytes, limit: int) -> list[Address]:
        return sorted(self.source.find(prefix))[:limit]

    def hops_of(self, address: Address) -> list[Hop]:
        return [kept.hop for kept in self.source.hops_of(address)]


@dataclass(frozen=True, slots=True)
class Site:
    """What the dashboard was told to look at; folders are looked through anew each time."""

    journals: tuple[Path, ...] = ()
    lake: Path | None = None

    def files(self) -> list[Path]:
        """The journals there are now."""
        return list(dict.fromkeys(file for path in self.journals for file in find_journals(path)))

    @contextlib.contextmanager
    def open(self) -> Iterator[tuple[list[Place], list[Damage]]]:
        """All places by server, and what could not be opened. A server in both counts by its journal."""
        damages: list[Damage] = []
        with contextlib.ExitStack() as stack:
            places: dict[str, Place] = {}
            files = self.files()
            if len(files) > MAX_PLACES:
                damages.append(Damage("journals", f"there are {len(files)}; only {MAX_PLACES} are shown"))
            for path in files[:MAX_PLACES]:
                name = name_of(path)
                for place in attempt(name, damages, partial(_open_journal, stack, path)):
                    if place.server in places:
                        damages.append(Damage(name, f"a second journal of {place.server}; not shown"))
                    else:
                        places[place.server] = place
            if self.lake is not None:
                for place in attempt(self.lake.name, damages, partial(_open_lake, self.lake)):
                    places.setdefault(place.server, place)
            yield [places[server] for server in sorted(places)], damages


def name_of(journal: Path) -> str:
    """What a journal is called on the page; a peer's by its directory too, since all of them have one name."""
    return f"{journal.parent.name}/{journal.name}" if journal.name == PEER_JOURNAL else journal.name


def attempt(where: str, damages: list[Damage], act: Callable[[], list[Place]]) -> list[Place]:
    """What `act` gives, or nothing and one more damage."""
    try:
        return act()
    except (DovetailError, OSError) as error:
        damages.append(Damage(where, str(error)))
        return []


def _open_journal(stack: contextlib.ExitStack, path: Path) -> list[Place]:
    return [JournalPlace(stack.enter_context(JournalReader.open(path)))]


def _open_lake(lake: Path) -> list[Place]:
    from dovetail.receipt.lake_source import open_lake

    places: list[Place] = []
    for source in open_lake(lake):
        signed = source.latest_checkpoint()
        if signed is None:
            raise JournalDamaged(f"{lake}: the manifest of {source.server} has no checkpoint")
        places.append(LakePlace(source, signed.size))
    return places


def check_site(site: Site) -> None:
    """JournalError where a path that was named does not exist."""
    for path in (*site.journals, *([site.lake] if site.lake else [])):
        if not path.exists():
            raise JournalError(f"{path} does not exist")
