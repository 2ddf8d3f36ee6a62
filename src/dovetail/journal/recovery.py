"""Rebuilds a journal that was truncated, rolled back or damaged, from copies elsewhere and from its remains.

The new file replaces the old one only when it is complete and agrees with everything that was signed; the old one is
kept beside it. Hops without any copy are lost. Continuing without them needs the operator's consent, and a `noted` hop
with the reason `hops_lost` then records it permanently.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from dovetail.journal.continuity import Known, root_at
from dovetail.journal.durable_file import sync_directory
from dovetail.journal.expiry import Lifetimes
from dovetail.journal.high_water import Mark, mark_path, read_mark
from dovetail.journal.hop_source import CommittedHop, HopSource
from dovetail.journal.reader import JournalReader
from dovetail.journal.source import JournalSource
from dovetail.journal.verify import verify_journal
from dovetail.journal.writer import JournalWriter, take_lock
from dovetail.model.address import NO_MESSAGE, Address
from dovetail.model.errors import JournalError, JournalRolledBack
from dovetail.model.hop import Observation, Reason, Stage
from dovetail.tlog.keys import Signer
from dovetail.tlog.leaf import NO_DIGEST

HOPS_A_STEP = 2_048
BYTES_A_STEP = 8 << 20
"""A step of more hops ends with the message that reaches this."""
_DRAFT = ".recovering"
_OLD = ".before-recovery"


@dataclass(frozen=True, slots=True)
class Recovery:
    """What was done, or would be: the journal now has `hops`, `restored` of them from elsewhere.

    Hops from `hops` up to but excluding `known_end` are lost; those before `signed_end` were signed. `is_uncertain` if
    no mark says how many there were. `kept_as` is the old file, if one was replaced.
    """

    hops: int
    restored: int = 0
    known_end: int = 0
    signed_end: int = 0
    is_uncertain: bool = False
    is_done: bool = True
    kept_as: Path | None = None

    @property
    def lost(self) -> int:
        """How many hops are known to be lost."""
        return max(0, self.known_end - self.hops)

    @property
    def lost_text(self) -> str:
        """Which hops are lost, as text for the user and the journal."""
        if self.lost:
            return f"hops {self.hops} to {self.known_end - 1}"
        return f"perhaps hops from {self.hops} on"


def recover_journal(
    path: Path,
    *,
    signer: Signer,
    now_us: int,
    elsewhere: HopSource | None = None,
    known: Iterable[Known] = (),
    accepts_loss: bool = False,
) -> Recovery:
    """Rebuild the journal at `path` from `elsewhere`, usually the lake, and from what is still readable of it.

    If hops are lost, nothing is changed unless the caller `accepts_loss`. Raises JournalRolledBack if what can be
    restored contradicts what was signed, according to `known` or the journal's mark: then the server needs a new name.
    """
    lock = take_lock(path)
    try:
        return _Rebuilding(path, signer, now_us, elsewhere, [*known]).run(accepts_loss=accepts_loss)
    finally:
        os.close(lock)


class _Rebuilding:
    """One recovery."""

    def __init__(
        self, path: Path, signer: Signer, now_us: int, elsewhere: HopSource | None, known: list[Known]
    ) -> None:
        self._path = path
        self._signer = signer
        self._now_us = now_us
        self._elsewhere = elsewhere
        self._draft = path.with_name(path.name + _DRAFT)
        self._mark = read_mark(path, signer.verifier)
        self._known = [*known, *_known_to_mark(self._mark)]
        if elsewhere is not None and (signed := elsewhere.latest_checkpoint()) is not None:
            self._known.append(Known.of(f"what was sealed of {elsewhere.server}", signed.checkpoint))
        self._own_size = 0
        self._own = self._open_own()
        self._without_bytes: dict[Address, None] = {}

    def _open_own(self) -> JournalReader | None:
        """The existing journal; None if not even its size can be read."""
        try:
            reader = JournalReader.open(self._path)
        except JournalError:
            return None
        try:
            self._own_size = reader.size
        except JournalError:
            reader.close()
            return None
        if reader.identity.verifier != self._signer.verifier:
            raise JournalError(f"{self._path} is the journal of {reader.identity.verifier.text()}, not of this key")
        return reader

    def run(self, *, accepts_loss: bool) -> Recovery:
        if self._own is not None and not self._is_uncertain and self._is_intact():
            return Recovery(self._own_size)
        self._remove_draft()
        try:
            with JournalWriter.open(self._draft, server=self._signer.name, signer=self._signer) as writer:
                recovery = self._fill(writer)
                is_complete = not recovery.lost and not recovery.is_uncertain
                if not is_complete and not accepts_loss:
                    return replace(recovery, is_done=False)
                self._finish(writer, recovery, is_complete=is_complete)
            return replace(recovery, kept_as=self._replace())
        finally:
            self._remove_draft()
            if self._own is not None:
                self._own.close()

    def _is_intact(self) -> bool:
        try:
            return verify_journal(self._path, known=self._known).is_intact
        except JournalError:
            return False

    @property
    def _is_uncertain(self) -> bool:
        return self._mark is None and (self._own is None or self._own.identity.has_mark)

    def _fill(self, writer: JournalWriter) -> Recovery:
        """Copy everything available, and compare it with everything known."""
        restored = 0
        if self._elsewhere is not None:
            for step in _steps(self._elsewhere, 0, self._elsewhere.size):
                self._append(writer, step)
            restored = max(0, writer.size - self._own_size)
        if self._own is not None and self._continues(writer):
            try:
                for step in _steps(JournalSource(self._own), writer.size, self._own_size):
                    self._append(writer, step)
            except JournalError:
                pass  # everything readable up to here was copied
        for known in self._known:
            if (
                known.root is not None
                and known.size <= writer.size
                and root_at(writer.reader, known.size) != known.root
            ):
                raise JournalRolledBack(
                    f"{self._path} cannot be recovered: what is left has other hops among its first {known.size} than "
                    f"{known.where} knows; start under a new name, and keep it to read"
                )
        return Recovery(
            writer.size,
            restored,
            max((known.size for known in self._known), default=0),
            max((known.size for known in self._known if known.root is not None), default=0),
            self._is_uncertain,
        )

    def _continues(self, writer: JournalWriter) -> bool:
        """True if what is left of the journal continues the history restored so far."""
        assert self._own is not None
        try:
            return self._own_size > writer.size and root_at(self._own, writer.size) == root_at(
                writer.reader, writer.size
            )
        except JournalError:
            return False

    def _append(self, writer: JournalWriter, step: tuple[list[CommittedHop], dict[Address, bytes]]) -> None:
        hops, bodies = step
        lifetimes = Lifetimes(writer.reader)
        observations = []
        for committed in hops:
            hop, raw = committed.hop, bodies.get(committed.hop.message)
            has_bytes = committed.digest != NO_DIGEST
            if has_bytes and raw is None:
                self._without_bytes[hop.message] = None
            if hop.stage is Stage.PURGED:
                self._without_bytes.pop(hop.message, None)
            kept = raw if has_bytes else None
            expires_us = lifetimes.end_us(kept, hop.size, hop.stage)
            observations.append(_observation(committed, kept, expires_us))
        writer.append(observations)

    def _finish(self, writer: JournalWriter, recovery: Recovery, *, is_complete: bool) -> None:
        notes = [
            Observation(at_us=self._now_us, stage=Stage.PURGED, message=address) for address in self._without_bytes
        ]
        if not is_complete:
            notes.append(
                Observation(
                    at_us=self._now_us,
                    stage=Stage.NOTED,
                    message=NO_MESSAGE,
                    counterparts=(recovery.lost_text,),
                    reason=Reason.HOPS_LOST,
                )
            )
        writer.append(notes)
        writer.index()
        writer.checkpoint()

    def _replace(self) -> Path | None:
        """Move the new file into place. After a crash in between, servers refuse to start and recovery is run again."""
        kept = None
        if self._path.exists():
            kept = _free_name(self._path.with_name(self._path.name + _OLD))
            for suffix in ("-wal", ""):
                old = self._path.with_name(self._path.name + suffix)
                if old.exists():
                    old.rename(kept.with_name(kept.name + suffix))
        self._path.with_name(f"{self._path.name}-shm").unlink(missing_ok=True)
        self._draft.rename(self._path)
        mark_path(self._draft).replace(mark_path(self._path))
        sync_directory(self._path.parent)
        return kept

    def _remove_draft(self) -> None:
        for suffix in ("", "-wal", "-shm", "-journal", ".mark", ".lock"):
            self._draft.with_name(self._draft.name + suffix).unlink(missing_ok=True)


def _known_to_mark(mark: Mark | None) -> Iterator[Known]:
    if mark is not None:
        yield Known("its high-water mark", mark.size if mark.is_of_this_boot else mark.synced)
        if mark.signed:
            yield Known("its high-water mark", mark.signed, mark.root)


def _steps(source: HopSource, first: int, end: int) -> Iterator[tuple[list[CommittedHop], dict[Address, bytes]]]:
    """Hops with the bytes they carry, in batches; each becomes one commit of the new file."""
    for start in range(first, end, HOPS_A_STEP):
        step: list[CommittedHop] = []
        size = 0
        for committed in source.hops_between(start, min(end, start + HOPS_A_STEP)):
            if size >= BYTES_A_STEP:
                yield _with_bytes(source, step)
                step, size = [], 0
            step.append(committed)
            size += committed.hop.size or 0
        if step:
            yield _with_bytes(source, step)


def _with_bytes(source: HopSource, step: list[CommittedHop]) -> tuple[list[CommittedHop], dict[Address, bytes]]:
    return step, dict(source.bodies_between(step[0].hop.seq, step[-1].hop.seq + 1))


def _observation(committed: CommittedHop, raw: bytes | None, expires_us: int | None) -> Observation:
    """The observation that reproduces exactly this hop."""
    hop = committed.hop
    return Observation(
        at_us=hop.at_us,
        stage=hop.stage,
        message=hop.message,
        counterparts=() if hop.counterpart is None else (hop.counterpart,),
        reason=hop.reason,
        raw=raw,
        size=None if raw is not None and hop.size == len(raw) else hop.size,
        expires_us=expires_us,
        digest=None if raw is not None or committed.digest == NO_DIGEST else committed.digest,
    )


def _free_name(path: Path) -> Path:
    number, free = 1, path
    while free.exists():
        number, free = number + 1, path.with_name(f"{path.name}-{number}")
    return free
