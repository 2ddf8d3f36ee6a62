"""Compaction: merges small files of the lake, and removes the bytes of expired messages.

For each group of manifests (`compact_plan`), in this order, so that after a crash readers see the old or the new state:

1. The new files are written and checked (`rewrite`), in any process. No manifest lists them yet.
2. The new manifest is created under the next number. From here on it is active, and those in its `replaces` are not.
3. What was replaced is deleted after a grace period, by this compaction or a later one (`retain`).

A group that differs from what was sealed is skipped, and so is one that another compaction replaced meanwhile.
"""

from __future__ import annotations

import datetime as dt
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from multiprocessing import get_context, parent_process

import msgspec

from dovetail.journal.verify import no_progress
from dovetail.lake.compact_plan import CompactionGroup, CompactionTask, plan_groups
from dovetail.lake.layout import server_slug
from dovetail.lake.manifest import SealedFile
from dovetail.lake.retain import DEFAULT_GRACE_S, ORPHAN_AGE_S, object_keys, sweep
from dovetail.lake.retained import may_sign, sign_retained
from dovetail.lake.rewrite import Rewriter, Rewritten
from dovetail.lake.seal import DEFAULT_TARGET_BYTES, Progress
from dovetail.lake.snapshot import Snapshot, commit, snapshot
from dovetail.lake.store import Store
from dovetail.model.errors import JournalDamaged, JournalError, UsageError
from dovetail.model.fabric import Agreement
from dovetail.model.times import to_us
from dovetail.tlog.keys import Signer

WAVE_BYTES = 4 << 30
"""About how much is rewritten before its manifests are created: what an interrupted compaction repeats."""

RunTasks = Callable[[Rewriter, Sequence[CompactionTask]], Iterator[Rewritten]]
"""Runs `Rewriter.rewrite` for each of the tasks, anywhere, and yields the results in any order."""


class LeftAlone(msgspec.Struct, frozen=True, kw_only=True):
    """Hops of a server that were skipped, and why."""

    server: str
    hops: str
    why: str


class CompactionSummary(msgspec.Struct, kw_only=True):
    """What a compaction did, or would do; before and after count what is active in the lake."""

    lake: str
    before: str
    dry_run: bool
    manifests_before: int = 0
    manifests_after: int = 0
    files_before: int = 0
    files_after: int = 0
    bytes_before: int = 0
    bytes_after: int | None = None
    removed_messages: int = 0
    removed_bytes: int = 0
    deleted_files: int = 0
    deleted_bytes: int = 0
    waiting_files: int = 0
    waiting_bytes: int = 0
    left_alone: list[LeftAlone] = []
    is_signed: bool = False

    def text(self) -> str:
        """The summary for a terminal."""
        verb = "would lose" if self.dry_run else "lost"
        after = "" if self.bytes_after is None else f", {self.bytes_before:,} -> {self.bytes_after:,} bytes"
        files = f"{self.files_before:,} -> {self.files_after:,} files"
        lines = [
            f"{self.removed_messages:,} messages expired before {self.before} and {verb} {self.removed_bytes:,} bytes",
            f"{self.manifests_before:,} -> {self.manifests_after:,} manifests, {files}{after}",
        ]
        if not self.dry_run:
            waiting = f"{self.waiting_files:,} ({self.waiting_bytes:,} bytes) are kept for the grace time"
            lines.append(f"deleted {self.deleted_files:,} replaced files ({self.deleted_bytes:,} bytes); {waiting}")
        if self.removed_messages and not self.is_signed:
            lines.append("their fields are not signed, so audits from scratch will not read them: give --signing-key")
        lines += [f"left alone: {item.server} hops {item.hops}: {item.why}" for item in self.left_alone]
        return "\n".join(lines) + "\n"


def run_here(rewriter: Rewriter, tasks: Sequence[CompactionTask]) -> Iterator[Rewritten]:
    """Run tasks in this process."""
    return map(rewriter.rewrite, tasks)


def run_in_processes(rewriter: Rewriter, tasks: Sequence[CompactionTask]) -> Iterator[Rewritten]:
    """Run tasks in one process per processor."""
    workers = min(len(tasks), len(os.sched_getaffinity(0)))
    try:
        with ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=_end_with_parent) as pool:
            yield from pool.map(rewriter.rewrite, tasks)
    except BrokenProcessPool:
        raise JournalError("a process of the compaction was killed, perhaps for lack of memory") from None


def _end_with_parent() -> None:
    """End this worker when the process that started it is killed; otherwise it would wait for work forever."""
    parent = parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@dataclass(frozen=True, slots=True, kw_only=True)
class Compaction:
    """A compaction of everything in one lake before a moment; `agreements` are by community.

    `signer` signs what is retained of messages: not a server's key. It stays in this process.
    """

    store: Store
    before: dt.datetime
    agreements: Mapping[str, Agreement] = field(default_factory=dict)
    signer: Signer | None = None
    is_dry: bool = False
    grace_s: float = DEFAULT_GRACE_S
    target_bytes: int = DEFAULT_TARGET_BYTES
    run_tasks: RunTasks = run_here
    progress: Progress = no_progress

    def run(self) -> CompactionSummary:
        """Compact, and delete what was replaced long enough ago."""
        if self.signer is not None and not may_sign(self.signer.verifier):
            raise UsageError(f"{self.signer.name} is the key of a server: sign with another one, named for its owner")
        summary = CompactionSummary(
            lake=str(self.store), before=self.before.isoformat().replace("+00:00", "Z"), dry_run=self.is_dry
        )
        found = snapshot(self.store)
        for directory, damage in {**found.unreadable, **found.damages}.items():
            summary.left_alone.append(LeftAlone(server=directory, hops="all", why=str(damage)))
        summary.manifests_before, summary.files_before, summary.bytes_before = _count(found)
        groups = list(self._plan(found))
        for wave in _waves(groups):
            self._compact(wave, found, summary)
        if self.is_dry:
            summary.manifests_after = summary.manifests_before - sum(len(group.manifests) - 1 for group in groups)
            joined = sum(len(task.inputs) - 1 for group in groups for task in group.tasks)
            summary.files_after = summary.files_before - joined
            return summary
        swept = sweep(self.store, grace_s=self.grace_s)
        summary.deleted_files, summary.deleted_bytes = swept.files, swept.bytes
        summary.waiting_files, summary.waiting_bytes = swept.waiting_files, swept.waiting_bytes
        summary.manifests_after, summary.files_after, summary.bytes_after = _count(snapshot(self.store))
        return summary

    @property
    def _rewriter(self) -> Rewriter:
        return Rewriter(
            store=self.store,
            before_us=to_us(self.before),
            agreements=self.agreements,
            is_dry=self.is_dry,
            verifier=None if self.signer is None else self.signer.verifier,
        )

    def _plan(self, found: Snapshot) -> Iterator[CompactionGroup]:
        """Groups that may have work."""
        rewriter = self._rewriter
        for server, manifests in found.servers.items():
            if server_slug(server) in found.unreadable:
                continue  # it may have replaced some of these
            for group in plan_groups(manifests, before_us=rewriter.before_us, target_bytes=self.target_bytes):
                if len(group.manifests) > 1 or any(map(rewriter.has_work, group.tasks)):
                    yield group

    def _compact(self, groups: Sequence[CompactionGroup], found: Snapshot, summary: CompactionSummary) -> None:
        """Write the files of these groups, then create the manifest of each."""
        started_s = time.time()
        rewriter = self._rewriter
        tasks = [task for group in groups for task in group.tasks if rewriter.has_work(task)]
        tasks.sort(key=lambda task: -task.bytes)
        done: dict[tuple[str, int], Rewritten] = {}
        for item in self.run_tasks(rewriter, tasks) if tasks else ():
            done[item.id] = item
            self.progress(len(done), len(tasks))
        for group in groups:
            own = [done[task.id] for task in group.tasks if task.id in done]
            why = next((item.error for item in own if item.error is not None), None)
            if why is None and not self.is_dry:
                why = self._replace(group, done, found.next_numbers[group.server], started_s)
            if why is not None:
                new = [item.file for item in own if item.is_new and item.file is not None]
                self.store.delete(key for file in new for key in object_keys(group.server, file))
                hops = f"{group.manifests[0].first_seq} to {group.manifests[-1].end - 1}"
                summary.left_alone.append(LeftAlone(server=group.server, hops=hops, why=why))
                continue
            summary.is_signed = self.signer is not None
            summary.removed_messages += sum(item.removed for item in own)
            summary.removed_bytes += sum(item.removed_bytes for item in own)

    def _replace(
        self, group: CompactionGroup, done: Mapping[tuple[str, int], Rewritten], number: int, started_s: float
    ) -> str | None:
        """Create the manifest that replaces the group's; returns why it could not."""
        files: list[SealedFile] = []
        is_new = len(group.manifests) > 1
        for task in group.tasks:
            item = done.get(task.id)
            files.append(task.inputs[0] if item is None or item.file is None else self._signed(item, item.file))
            is_new = is_new or (item is not None and item.is_new)
        if not is_new:
            return None
        if time.time() - started_s > ORPHAN_AGE_S / 2:
            return "writing took so long that the new files may be deleted as abandoned; compact less at a time"
        own = {manifest.id for manifest in group.manifests}
        manifest = group.replace_with(files)
        try:
            made = commit(self.store, manifest, number, lambda newer: not own.isdisjoint(newer.replaces))
        except JournalDamaged as damage:
            return str(damage)
        return "another compaction replaced these manifests meanwhile" if made is None else None

    def _signed(self, item: Rewritten, file: SealedFile) -> SealedFile:
        """The file of a result, with a signature of what was written now; that of an older file stays as it is."""
        if self.signer is None or file.retained is None or not item.is_new:
            return file
        return msgspec.structs.replace(file, retained=sign_retained(file.retained, self.signer))


def _count(found: Snapshot) -> tuple[int, int, int]:
    manifests = found.manifests()
    files = [file for manifest in manifests for file in manifest.files]
    retained = sum(file.retained.bytes for file in files if file.retained is not None)
    return len(manifests), len(files), sum(file.bytes for file in files) + retained


def _waves(groups: Sequence[CompactionGroup]) -> Iterator[list[CompactionGroup]]:
    wave: list[CompactionGroup] = []
    for group in groups:
        wave.append(group)
        if sum(item.bytes for item in wave) >= WAVE_BYTES:
            yield wave
            wave = []
    if wave:
        yield wave


def parse_before(text: str, now: dt.datetime) -> dt.datetime:
    """Parse a UTC date that is not in the future; returns its start."""
    try:
        day = dt.datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=dt.UTC)
    except ValueError:
        raise UsageError(f"--before takes a date such as 2026-11-01, got {text[:40]!r}") from None
    if day > now:
        raise UsageError(f"--before {text} is in the future: what may not have expired is never removed")
    return day
