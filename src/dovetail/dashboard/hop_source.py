"""Where hops lie: journals, live or closed, and the lake for servers whose journal is not here.

A place is opened for one request or one look, by one thread, and closed again. What cannot be opened or read is told
as a `Damage`; it never hides what can be.
"""

from __future__ import annotations

import bisect
import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

from dovetail.journal.folder import PEER_JOURNAL, find_journals
from dovetail.journal.reader import JournalReader
from dovetail.lake.manifest import MANIFESTS, Manifest, SealedFile, manifest_paths, read_manifest, standing_paths
from dovetail.model.address import Address
from dovetail.model.errors import DovetailError, JournalError
from dovetail.model.hop import Fabric, Hop
from dovetail.receipt.journal_source import JournalSource
from dovetail.receipt.source import Source

T = TypeVar("T")
MAX_PLACES = 200
LAKE_STRETCH_HOPS = 2_048
SEALED_WINDOW_HOPS = 512
MAX_FOUND_BY_INDEX = 100
_ATTEMPTS = 3


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
    find_limit: int
    """`find` gives all there are where it gives fewer than this."""

    def size(self) -> int:
        """How many hops there are now."""

    def raw(self, address: Address) -> bytes | None:
        """The bytes of a message, None where they are kept nowhere here."""

    def begin_of(self, end: int) -> tuple[int, int] | None:
        """The stretch that ends at or just before hop `end`: its first hop and the time of its last one."""

    def read(self, first: int, end: int, *, with_bytes: bool) -> Stretch:
        """The stretch that begins with hop `first`, without what lies at `end` or behind."""

    def find(self, prefix: bytes) -> list[Address]:
        """Addresses that begin with `prefix`, by the index; at most `find_limit`."""

    def hops_of(self, address: Address) -> list[Hop]:
        """All hops of one message."""


class JournalPlace:
    """A journal; its stretches are its group commits. Bytes that it no longer keeps come from the lake, if there."""

    find_limit = MAX_FOUND_BY_INDEX

    def __init__(self, reader: JournalReader, sealed: LakePlace | None = None) -> None:
        self._reader = reader
        self._sealed = sealed
        self._window: tuple[int, dict[Address, bytes]] = (-1, {})
        self.server = reader.identity.server
        self.fabric = reader.identity.fabric
        self.source: Source = JournalSource(reader)

    def size(self) -> int:
        return self._reader.size

    def raw(self, address: Address) -> bytes | None:
        own = self.source.raw(address)
        if own is None and self._sealed is not None:
            with contextlib.suppress(DovetailError, OSError):  # what is gone from both is told as not kept
                return self._sealed.raw(address)
        return own

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
        if with_bytes and self._sealed is not None and None in bodies.values():
            self._recall(hops, bodies)
        return Stretch(first, hops, bodies)

    def _recall(self, hops: Sequence[Hop], bodies: dict[Address, bytes | None]) -> None:
        """Fill in what was purged; what another stretch carries is left out, so that it is asked for by itself."""
        for hop in hops:
            if bodies.get(hop.message, b"") is None:
                sealed = self._sealed_near(hop.seq).get(hop.message) if hop.size is not None else None
                if sealed is not None:
                    bodies[hop.message] = sealed
                elif hop.size is None:
                    del bodies[hop.message]

    def _sealed_near(self, seq: int) -> dict[Address, bytes]:
        """The sealed bytes around a hop; a search goes back, so one window is enough to keep."""
        assert self._sealed is not None
        begin = seq - seq % SEALED_WINDOW_HOPS
        if self._window[0] != begin:
            end = min(begin + SEALED_WINDOW_HOPS, self._sealed.size())
            self._window = (begin, {})
            with contextlib.suppress(DovetailError, OSError):  # as in `raw`
                self._window = (begin, dict(self._sealed.source.bodies_between(begin, end)) if begin < end else {})
        return self._window[1]

    def find(self, prefix: bytes) -> list[Address]:
        return [row.address for row in self._reader.find(prefix, self.find_limit)]

    def hops_of(self, address: Address) -> list[Hop]:
        return self._reader.hops_of(address)


class LakePlace:
    """What the lake has of one server. No stretch reaches over two files, so that a bad file hides no other."""

    find_limit = 2  # the lake looks no further once it has found more than one

    def __init__(self, source: Source, files: Sequence[SealedFile]) -> None:
        self.source = source
        self.server = source.server
        self.fabric = source.fabric
        self._files = files
        self._starts = [file.first_seq for file in files]

    def size(self) -> int:
        return self._files[-1].end if self._files else 0

    def raw(self, address: Address) -> bytes | None:
        return self.source.raw(address)

    def begin_of(self, end: int) -> tuple[int, int] | None:
        if end <= 0:
            return None
        file = self._files[bisect.bisect_left(self._starts, end) - 1]
        return max(file.first_seq, end - LAKE_STRETCH_HOPS), file.last_at_us

    def read(self, first: int, end: int, *, with_bytes: bool) -> Stretch:
        hops = [kept.hop for kept in self.source.hops_between(first, end)]
        bodies: dict[Address, bytes | None] = {}
        if with_bytes:
            bodies.update(self.source.bodies_between(first, end))
        return Stretch(first, hops, bodies)

    def find(self, prefix: bytes) -> list[Address]:
        return sorted(self.source.find(prefix))[: self.find_limit]

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
            sealed = {place.server: place for place in _open_lake(self.lake, damages)}
            files = self.files()
            if len(files) > MAX_PLACES:
                damages.append(Damage("journals", f"there are {len(files)}; only {MAX_PLACES} are shown"))
            for path in files[:MAX_PLACES]:
                name = name_of(path)
                for place in attempt(name, damages, partial(_open_journal, stack, path, sealed)):
                    if place.server in places:
                        damages.append(Damage(name, f"a second journal of {place.server}; not shown"))
                    else:
                        places[place.server] = place
            places = sealed | places
            yield [places[server] for server in sorted(places)], damages


def name_of(journal: Path) -> str:
    """What a journal is called on the page; a peer's by its directory too, since all of them have one name."""
    return f"{journal.parent.name}/{journal.name}" if journal.name == PEER_JOURNAL else journal.name


def attempt(where: str, damages: list[Damage], act: Callable[[], T]) -> list[T]:
    """What `act` gives, or nothing and one more damage."""
    try:
        return [act()]
    except (DovetailError, OSError) as error:
        damages.append(Damage(where, str(error)))
        return []


def _open_journal(stack: contextlib.ExitStack, path: Path, sealed: Mapping[str, LakePlace]) -> JournalPlace:
    reader = stack.enter_context(JournalReader.open(path))
    return JournalPlace(reader, sealed.get(reader.identity.server))


def _open_lake(lake: Path | None, damages: list[Damage]) -> list[LakePlace]:
    """Each server of a lake by itself: the bad manifest of one hides no other."""
    if lake is None:
        return []
    if not (lake / MANIFESTS).is_dir() and lake.is_dir() and any(lake.iterdir()):
        damages.append(Damage(lake.name, "has no manifests: it is not a lake"))
    places: list[LakePlace] = []
    for folder in sorted({path.parent for path in manifest_paths(lake)}):
        places += attempt(f"{lake.name}/{folder.name}", damages, partial(_open_sealed, lake, folder))
    return places


def _open_sealed(lake: Path, folder: Path) -> LakePlace:
    from dovetail.receipt.lake_source import LakeSource

    manifests: list[Manifest] = []
    for _ in range(_ATTEMPTS):
        with contextlib.suppress(FileNotFoundError):  # a compaction has replaced one since they were listed
            manifests = [read_manifest(path) for path in standing_paths(folder.glob("[0-9]*.json"))]
            break
    if not manifests:
        raise JournalError(f"the manifests in {folder} are being replaced; look again")
    return LakePlace(LakeSource(lake, manifests), [file for manifest in manifests for file in manifest.files])


def check_site(site: Site) -> None:
    """JournalError where a path that was named does not exist."""
    for path in (*site.journals, *([site.lake] if site.lake else [])):
        if not path.exists():
            raise JournalError(f"{path} does not exist")
