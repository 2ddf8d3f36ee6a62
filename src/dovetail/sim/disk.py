"""Real journals for a simulated world: one file per process, signed with keys from the world's seed.

The files are the same as those of servers, so everything that reads journals can be run on a world: verify, seal,
audit. Appends are not fsynced: a simulated crash leaves the file as of the last append, unless the disk is bad
(`damage`). A journal that is then refused is recovered as an operator would do it: from a copy that acts as the lake,
or from what is left of it, accepting the loss. Only our own errors are handled that way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dovetail.journal.folder import SUFFIX
from dovetail.journal.reader import JournalReader
from dovetail.journal.recovery import recover_journal
from dovetail.journal.source import JournalSource
from dovetail.journal.writer import JournalWriter
from dovetail.model.errors import JournalError
from dovetail.model.hop import Hop, Observation
from dovetail.sim.damage import SUFFIXES, Damage, damage_files
from dovetail.sim.randomness import Randomness
from dovetail.tlog.keys import Signer

_COPY = ".copy"


class DiskJournal:
    """A journal file with the interface that the world needs; the folder closes it."""

    def __init__(self, writer: JournalWriter, fail: Callable[[], object], close: Callable[[DiskJournal], None]) -> None:
        self.writer = writer
        self._fail = fail
        self._close: Callable[[DiskJournal], None] | None = close

    @property
    def size(self) -> int:
        """Number of hops."""
        return self.writer.size

    def append(self, observations: Sequence[Observation], /) -> int:
        """Commit the observations; returns the new size."""
        try:
            return self.writer.append(observations)
        except JournalError:
            self._fail()
            raise

    def hops(self) -> Iterator[Hop]:
        """All hops, by `seq`."""
        return self.writer.hops()

    def sign(self) -> None:
        """Index and sign all of it; if the disk prevents that, it has failed."""
        try:
            self.writer.index()
            self.writer.checkpoint()
        except JournalError:
            self._fail()

    def close(self) -> None:
        """Index, sign and close the file; idempotent."""
        close, self._close = self._close, None
        if close is not None:
            close(self)


class JournalFolder:
    """A JournalFactory that keeps `<process>.journal` in a folder, on a disk that may be bad.

    `outcomes` counts damaged journals by result: `whole`, `recovered` or `lost`, the last with a `hops_lost` hop.
    """

    def __init__(self, folder: Path, seed: int, *, has_copies: bool = True) -> None:
        self.folder = folder
        self.outcomes: Counter[str] = Counter()
        self._has_copies = has_copies
        self._randomness = Randomness(seed)
        self._chance = self._randomness.stream("damage")
        self._open: set[str] = set()
        self._planned: dict[str, Damage] = {}
        """By process: what its disk does when the open journal is closed."""
        self._earlier: dict[str, dict[str, bytes]] = {}
        self._copies: dict[str, dict[str, bytes]] = {}
        """By process: the files before they were damaged."""
        self._failed: set[str] = set()

    def __call__(self, place: str, server: str) -> DiskJournal:
        is_damaged = place in self._copies
        if not is_damaged and place not in self._failed:
            return self._open_journal(place, server)
        if is_damaged and (journal := self._open_damaged(place, server)) is not None:
            self.outcomes["whole"] += 1
        else:
            self._recover(place, server)
            journal = self._open_journal(place, server)
        self._failed.discard(place)
        self._copies.pop(place, None)
        return journal

    def damage(self, place: str, damage: Damage) -> None:
        """Apply this damage to the journal of a process, which must crash now if it is up.

        Only one fault at a time: recovery is not guaranteed if both the mark and the log are damaged.
        """
        if place in self._open:
            self._planned[place] = damage
        elif place not in self._copies:
            self._damage(place, self._read(place), damage)

    def _damage(self, place: str, files: dict[str, bytes], damage: Damage) -> None:
        self._copies[place] = files
        self._write(place, damage_files(files, self._earlier.get(place, {}), damage, self._chance))

    def _open_journal(self, place: str, server: str) -> DiskJournal:
        writer = JournalWriter.open(self._path(place), server=server, signer=self._signer(server), durability="relaxed")
        self._open.add(place)
        return DiskJournal(writer, lambda: self._failed.add(place), lambda journal: self._close(place, journal))

    def _open_damaged(self, place: str, server: str) -> DiskJournal | None:
        """The journal, if the server would start: opens it and reads all of it."""
        try:
            journal = self._open_journal(place, server)
        except JournalError:
            return None
        try:
            for _ in journal.hops():
                pass
        except JournalError:
            journal.writer.close()
            self._open.discard(place)
            return None
        return journal

    def _close(self, place: str, journal: DiskJournal) -> None:
        self._open.discard(place)
        damage = self._planned.pop(place, None)
        state = self._chance.random() if damage is not None else 0
        if state < 0.7:
            journal.sign()
        files = self._read(place)
        journal.writer.close()  # moves the log into the file
        if damage is None:
            self._earlier[place] = self._read(place)
        elif state < 0.4:
            self._damage(place, self._read(place), damage)
        else:
            self._damage(place, files, damage)

    def _recover(self, place: str, server: str) -> None:
        """Recover as an operator would after reading why the server does not start."""
        path, copy = self._path(place), self.folder / f"{place}{_COPY}"
        files = self._copies.get(place, {}) if self._has_copies else {}
        for suffix, data in files.items():
            copy.with_name(copy.name + suffix).write_bytes(data)
        source = JournalReader.open(copy) if files else None
        try:
            recovery = recover_journal(
                path,
                signer=self._signer(server),
                now_us=0,
                elsewhere=None if source is None else JournalSource(source),
                accepts_loss=True,
            )
        finally:
            if source is not None:
                source.close()
            for left in (*self.folder.glob(f"{copy.name}*"), *self.folder.glob(f"{path.name}.before-recovery*")):
                left.unlink()
        self.outcomes["lost" if recovery.lost or recovery.is_uncertain else "recovered"] += 1

    def _path(self, place: str) -> Path:
        return self.folder / f"{place}{SUFFIX}"

    def _signer(self, server: str) -> Signer:
        key = Ed25519PrivateKey.from_private_bytes(self._randomness.derive_key(f"signing key\0{server}"))
        return Signer(server, key)

    def _read(self, place: str) -> dict[str, bytes]:
        paths = {suffix: Path(f"{self._path(place)}{suffix}") for suffix in SUFFIXES}
        return {suffix: path.read_bytes() for suffix, path in paths.items() if path.exists()}

    def _write(self, place: str, files: dict[str, bytes]) -> None:
        Path(f"{self._path(place)}-shm").unlink(missing_ok=True)
        for suffix in SUFFIXES:
            path = Path(f"{self._path(place)}{suffix}")
            if suffix in files:
                path.write_bytes(files[suffix])
            else:
                path.unlink(missing_ok=True)
