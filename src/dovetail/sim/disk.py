"""Real journals for a simulated world: one file per place, signed with keys from the world's seed.

The files are what servers write, so that everything that reads journals can be tried on a world: verify, seal, audit.
Appends are not fsynced: the crash of a simulated place leaves the file as the last append left it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dovetail.journal.writer import JournalWriter
from dovetail.model.hop import Hop, Observation
from dovetail.sim.randomness import Randomness
from dovetail.tlog.keys import Signer

SUFFIX = ".journal"


class DiskJournal:
    """A journal file as the world needs it; closing signs a checkpoint over all of it."""

    def __init__(self, writer: JournalWriter) -> None:
        self._writer = writer
        self._is_open = True

    @property
    def size(self) -> int:
        """How many hops are in it."""
        return self._writer.size

    def append(self, observations: Sequence[Observation], /) -> int:
        """Commit the observations; the size after them."""
        return self._writer.append(observations)

    def hops(self) -> Iterator[Hop]:
        """All hops, by `seq`."""
        return self._writer.hops()

    def close(self) -> None:
        """Index, sign and close the file; closing twice is harmless."""
        if self._is_open:
            self._is_open = False
            self._writer.index()
            self._writer.checkpoint()
            self._writer.close()


class JournalFolder:
    """A JournalFactory that keeps `<place>.journal` in a folder."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder = folder
        self._randomness = Randomness(seed)

    def __call__(self, place: str, server: str) -> DiskJournal:
        key = Ed25519PrivateKey.from_private_bytes(self._randomness.derive_key(f"signing key\0{server}"))
        return DiskJournal(
            JournalWriter.open(
                self.folder / f"{place}{SUFFIX}", server=server, signer=Signer(server, key), durability="relaxed"
            )
        )
