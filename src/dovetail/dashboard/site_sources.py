"""The hop sources of a site: its journals, live or closed, and the lake for servers whose journal is not here.

Sources are opened for one request, by one thread, and closed again. What cannot be opened or read is reported as a
`Damage` and never hides the rest.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from dovetail.journal.folder import PEER_JOURNAL, find_journals
from dovetail.journal.hop_source import HopRange, HopSource
from dovetail.journal.reader import JournalReader
from dovetail.journal.source import JournalSource
from dovetail.lake.location import Location, local_directory, open_store
from dovetail.lake.snapshot import snapshot
from dovetail.model.address import Address
from dovetail.model.errors import DovetailError, JournalError
from dovetail.model.hop import Hop

T = TypeVar("T")
MAX_SOURCES = 200
SEALED_WINDOW_HOPS = 512


@dataclass(frozen=True, slots=True)
class Damage:
    """Something that cannot be read: where, and what is wrong."""

    where: str
    text: str


class JournalWithLake(JournalSource):
    """A journal whose purged bytes come from the lake, if the lake still has them."""

    def __init__(self, reader: JournalReader, sealed: HopSource | None) -> None:
        super().__init__(reader)
        self._sealed = sealed
        self._window: tuple[int, dict[Address, bytes]] = (-1, {})

    def raw(self, address: Address) -> bytes | None:
        """The bytes of one message; from the lake only those that the journal committed to."""
        own = super().raw(address)
        if own is not None or self._sealed is None:
            return own
        with contextlib.suppress(DovetailError, OSError):  # bytes that neither has are reported as not kept
            sealed = self._sealed.raw(address)
            if sealed is not None and hashlib.sha256(sealed).digest() in {hop.digest for hop in self.hops_of(address)}:
                return sealed
        return None

    def read(self, first: int, end: int, *, with_bytes: bool) -> HopRange:
        """The commit that begins at hop `first`, with purged bytes filled in."""
        found = super().read(first, end, with_bytes=with_bytes)
        if with_bytes and self._sealed is not None and None in found.bodies.values():
            self._recall(found.hops, found.bodies)
        return found

    def _recall(self, hops: Sequence[Hop], bodies: dict[Address, bytes | None]) -> None:
        """Fill in purged bytes. A message whose bytes are on a hop elsewhere is skipped: `raw` finds it."""
        for hop in hops:
            if bodies.get(hop.message, b"") is None:
                sealed = self._sealed_near(hop.seq).get(hop.message) if hop.size is not None else None
                if sealed is not None:
                    bodies[hop.message] = sealed
                elif hop.size is None:
                    del bodies[hop.message]

    def _sealed_near(self, seq: int) -> dict[Address, bytes]:
        """The sealed bytes around a hop. A search goes backwards, so caching one window is enough."""
        assert self._sealed is not None
        begin = seq - seq % SEALED_WINDOW_HOPS
        if self._window[0] != begin:
            end = min(begin + SEALED_WINDOW_HOPS, self._sealed.size)
            self._window = (begin, {})
            with contextlib.suppress(DovetailError, OSError):  # as in `raw`
                self._window = (begin, dict(self._sealed.bodies_between(begin, end)) if begin < end else {})
        return self._window[1]


@dataclass(frozen=True, slots=True)
class Site:
    """What the dashboard is configured to show; directories are listed again for each request."""

    journals: tuple[Path, ...] = ()
    lake: Location | None = None

    def files(self) -> list[Path]:
        """The current journals."""
        return list(dict.fromkeys(file for path in self.journals for file in find_journals(path)))

    @contextlib.contextmanager
    def open(self) -> Iterator[tuple[list[HopSource], list[Damage]]]:
        """All sources by server, and what could not be opened. A server in both is read from its journal."""
        damages: list[Damage] = []
        with contextlib.ExitStack() as stack:
            sealed = {source.server: source for source in open_lake(self.lake, damages)}
            sources: dict[str, HopSource] = {}
            files = self.files()
            if len(files) > MAX_SOURCES:
                damages.append(Damage("journals", f"there are {len(files)}; only {MAX_SOURCES} are shown"))
            for path in files[:MAX_SOURCES]:
                name = name_of(path)
                for source in attempt(name, damages, partial(_open_journal, stack, path, sealed)):
                    if source.server in sources:
                        damages.append(Damage(name, f"a second journal of {source.server}; not shown"))
                    else:
                        sources[source.server] = source
            sources = sealed | sources
            yield [sources[server] for server in sorted(sources)], damages


def name_of(journal: Path) -> str:
    """The name of a journal on the page; a peer's includes its directory, because all peers' journals have one name."""
    return f"{journal.parent.name}/{journal.name}" if journal.name == PEER_JOURNAL else journal.name


def attempt(where: str, damages: list[Damage], act: Callable[[], T]) -> list[T]:
    """The result of `act`, or nothing and one more damage."""
    try:
        return [act()]
    except (DovetailError, OSError) as error:
        damages.append(Damage(where, str(error)))
        return []


def _open_journal(stack: contextlib.ExitStack, path: Path, sealed: Mapping[str, HopSource]) -> HopSource:
    reader = stack.enter_context(JournalReader.open(path))
    return JournalWithLake(reader, sealed.get(reader.identity.server))


def open_lake(lake: Location | None, damages: list[Damage]) -> list[HopSource]:
    """Each server of a lake separately: the bad manifest of one hides no other."""
    if lake is None:
        return []
    from dovetail.lake.reader import ServerReader  # loads Arrow

    name = str(lake).rpartition("/")[2]
    store = open_store(lake)
    for found in attempt(name, damages, partial(snapshot, store)):
        if not found.servers and not found.damages and any(True for _ in store.list()):
            damages.append(Damage(name, "has no manifests: it is not a lake"))
        bad = {**found.unreadable, **found.damages}
        damages += [Damage(f"{name}/{directory}", str(damage)) for directory, damage in bad.items()]
        return [ServerReader(store, manifests) for manifests in found.servers.values()]
    return []


def check_site(site: Site) -> None:
    """Raise JournalError if a given path does not exist."""
    lake = None if site.lake is None else local_directory(site.lake)
    for path in (*site.journals, *([lake] if lake else [])):
        if not path.exists():
            raise JournalError(f"{path} does not exist")
