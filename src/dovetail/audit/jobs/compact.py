"""`audit compact`: small files of the lake are merged, and the bytes of expired messages removed.

For each group of manifests (`compaction`), in this order, so that a crash leaves readers with the old or the new:

1. The new files are written by Spark's workers (`rewrite`). No manifest announces them yet.
2. They are read back and walked as an audit does it: every row as it was sealed, every root the announced one.
3. The manifest of the next generation gets its name. From here on it counts, and those it covers do not.
4. The files that only the old manifests announced are removed, and then those manifests.

What an interrupted compaction left is cleared away by the next one. A group that is not as it was sealed is left alone.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from pyspark.sql import SparkSession

from dovetail.audit.compaction import Group, Target, plan_groups
from dovetail.audit.lock import changing, reading
from dovetail.audit.progress import Progress, silent
from dovetail.audit.removal import is_readable, remove_files, remove_replaced, sweep
from dovetail.audit.rewrite import BLOB_SCHEMA, Rewriter, Rewritten, announce, decode_rewritten, encode_target
from dovetail.audit.session import SessionOptions, open_session, tune
from dovetail.audit.settings import AuditSettings, load_settings
from dovetail.audit.sources import check_lake, learn_files
from dovetail.lake.manifest import (
    MANIFESTS,
    Manifest,
    SealedFile,
    encode_manifest,
    manifest_directory,
    manifest_name,
    manifest_paths,
    publish,
    read_manifest,
    standing_paths,
)
from dovetail.lake.seal import DEFAULT_TARGET_BYTES, sole_sealer
from dovetail.model.errors import JournalDamaged, JournalLocked, UsageError
from dovetail.model.times import to_us

WAVE_BYTES = 4 << 30
"""About so much is rewritten before the old files of it go: the room on the disk that a compaction needs."""

_MAX_PARTITIONS = 1024
_SEALER_WAIT_S = 60.0


class LeftAlone(msgspec.Struct, frozen=True, kw_only=True):
    """Hops of a server that were not touched, and why."""

    server: str
    hops: str
    why: str


class CompactionSummary(msgspec.Struct, kw_only=True):
    """What a compaction did, or would do; counts of manifests, files and bytes are those of the whole lake."""

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
    left_alone: list[LeftAlone] = []

    def text(self) -> str:
        """The summary for a terminal."""
        verb = "would lose" if self.dry_run else "lost"
        after = "" if self.bytes_after is None else f", {self.bytes_before:,} -> {self.bytes_after:,} bytes"
        files = f"{self.files_before:,} -> {self.files_after:,} files"
        lines = [
            f"{self.removed_messages:,} messages expired before {self.before} and {verb} {self.removed_bytes:,} bytes",
            f"{self.manifests_before:,} -> {self.manifests_after:,} manifests, {files}{after}",
            *(f"left alone: {item.server} hops {item.hops}: {item.why}" for item in self.left_alone),
        ]
        return "\n".join(lines) + "\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Compaction:
    """A compaction of one lake, of what lies before a moment."""

    spark: SparkSession
    lake: Path
    before: dt.datetime
    settings: AuditSettings = field(default_factory=AuditSettings)
    is_dry: bool = False
    wait_s: float = 30
    target_bytes: int = DEFAULT_TARGET_BYTES
    progress: Progress = silent

    def run(self) -> CompactionSummary:
        """Do it, with the lake alone."""
        summary = CompactionSummary(
            lake=str(self.lake), before=self.before.isoformat().replace("+00:00", "Z"), dry_run=self.is_dry
        )
        with reading(self.lake) if self.is_dry else changing(self.lake, self.wait_s):
            self.progress.step("plan")
            groups = list(self._plan(summary))
            for wave in _waves(groups):
                self._compact(wave, summary)
            if not self.is_dry:
                manifests = [read_manifest(path) for path in manifest_paths(self.lake) if is_readable(path)]
                summary.manifests_after, summary.files_after, summary.bytes_after = _count(manifests)
        return summary

    @property
    def _before_us(self) -> int:
        return to_us(self.before)

    @property
    def _rewriter(self) -> Rewriter:
        # only agreements that were given by name: a lifetime that was guessed is none
        named = {name: rules for name, rules in self.settings.swarms.items() if name}
        return Rewriter(str(self.lake), self._before_us, named, self.is_dry)

    def _plan(self, summary: CompactionSummary) -> Iterator[Group]:
        """Groups in which anything may change; counts all there is."""
        for directory in sorted((self.lake / MANIFESTS).iterdir()):
            if not directory.is_dir():
                continue
            try:
                manifests = _whole([read_manifest(path) for path in standing_paths(directory.glob("[0-9]*.json"))])
            except JournalDamaged as error:
                summary.left_alone.append(LeftAlone(server=directory.name, hops="all", why=str(error)))
                continue
            if not manifests:
                continue
            if not self.is_dry:
                with self._sealing_stopped(manifests[0].server):
                    sweep(self.lake, directory, manifests)
            counts = _count(manifests)
            summary.manifests_before += counts[0]
            summary.files_before += counts[1]
            summary.bytes_before += counts[2]
            planned = plan_groups(manifests, before_us=self._before_us, target_bytes=self.target_bytes)
            working = [group for group in planned if self._has_work(group)]
            # for a dry run; a real one counts what there is at its end
            summary.manifests_after += counts[0] - sum(len(group.manifests) - 1 for group in working)
            summary.files_after += counts[1] - sum(len(t.inputs) - 1 for group in working for t in group.targets)
            yield from working

    def _has_work(self, group: Group) -> bool:
        return len(group.manifests) > 1 or any(self._rewriter.has_work(target) for target in group.targets)

    def _compact(self, groups: Sequence[Group], summary: CompactionSummary) -> None:
        rewriter = self._rewriter
        targets = [target for group in groups for target in group.targets if rewriter.has_work(target)]
        self.progress.step("compact: write files")
        done = rewrite_targets(self.spark, rewriter, targets)
        errors = {path: item.error for path, item in done.items() if item.error is not None}
        if not self.is_dry:
            self.progress.step("compact: check what was written")
            new = [announce(target, done[target.path]) for target in targets if done[target.path].is_new]
            errors |= self._unproven([target for target in targets if done[target.path].is_new], new)
        for group in groups:
            why = next((errors[target.path] for target in group.targets if target.path in errors), None)
            own = {target.path: done[target.path] for target in group.targets if target.path in done}
            if why is not None:
                hops = f"{group.manifests[0].first_seq} to {group.manifests[-1].end - 1}"
                summary.left_alone.append(LeftAlone(server=group.server, hops=hops, why=why))
                for target in group.targets:
                    remove_files(self.lake, target.written if target.path in done else [])
                continue
            summary.removed_messages += sum(item.removed for item in own.values())
            summary.removed_bytes += sum(item.removed_bytes for item in own.values())
            if not self.is_dry and (len(group.manifests) > 1 or any(item.is_new for item in own.values())):
                self._replace(group, own)

    def _unproven(self, targets: Sequence[Target], files: Sequence[SealedFile]) -> dict[str, str]:
        """Files that, read back, are not the very hops that were announced before."""
        if not files:
            return {}
        tune(self.spark, sum(file.rows for file in files))
        facts = learn_files(self.spark, self.lake, [(t.server, file) for t, file in zip(targets, files, strict=True)])
        return {
            file.path: f"the hops of {target.inputs[0].path} and what follows it are not those that were sealed; "
            "`dovetail audit run` tells which"
            for target, file, fact in zip(targets, files, facts, strict=True)
            if not (fact.is_whole and fact.is_proven(file, target.server) and fact.part and not fact.part.invalid)
        }

    def _replace(self, group: Group, done: Mapping[str, Rewritten]) -> None:
        """One manifest takes the place of the group's; then what only those announced goes."""
        files = [
            announce(target, done[target.path]) if target.path in done else target.inputs[0] for target in group.targets
        ]
        manifest = group.replace_with(files)
        directory = manifest_directory(self.lake, group.server)
        with self._sealing_stopped(group.server):
            self.progress.step("compact: announce")
            name = manifest_name(manifest.first_seq, manifest.end, manifest.generation)
            publish(directory / name, encode_manifest(manifest))
            self.progress.step("compact: remove what was replaced")
            remove_replaced(self.lake, directory, group.manifests, manifest, self.progress.step)

    @contextlib.contextmanager
    def _sealing_stopped(self, server: str) -> Iterator[None]:
        """Hold the server's sealing while its manifests change; a sealing under way is waited for."""
        deadline = time.monotonic() + _SEALER_WAIT_S
        with contextlib.ExitStack() as stack:
            while True:
                try:
                    stack.enter_context(sole_sealer(self.lake, server))
                    break
                except JournalLocked:
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(0.1)
            yield


def rewrite_targets(spark: SparkSession, rewriter: Rewriter, targets: Sequence[Target]) -> dict[str, Rewritten]:
    """Write all of these files on Spark's workers, the largest first; what became of each by its path."""
    if not targets:
        return {}
    ordered = sorted(targets, key=lambda target: -target.bytes)
    rows = spark.createDataFrame([(bytearray(encode_target(target)),) for target in ordered], BLOB_SCHEMA)
    spread = rows.repartition(min(len(targets), _MAX_PARTITIONS))
    found = [decode_rewritten(bytes(row["blob"])) for row in spread.mapInArrow(rewriter, BLOB_SCHEMA).collect()]
    return {item.path: item for item in found}


def _whole(manifests: list[Manifest]) -> list[Manifest]:
    """The manifests themselves, if they follow each other from hop 0."""
    position = 0
    for manifest in manifests:
        if manifest.first_seq != position:
            raise JournalDamaged(f"hops {position} to {manifest.first_seq - 1} of {manifest.server} are in no manifest")
        position = manifest.end
    return manifests


def _count(manifests: Sequence[Manifest]) -> tuple[int, int, int]:
    files = [file for manifest in manifests for file in manifest.files]
    kept = sum(file.kept.bytes for file in files if file.kept is not None)
    return len(manifests), len(files), sum(file.bytes for file in files) + kept


def _waves(groups: Sequence[Group]) -> Iterator[list[Group]]:
    wave: list[Group] = []
    for group in groups:
        wave.append(group)
        if sum(item.bytes for item in wave) >= WAVE_BYTES:
            yield wave
            wave = []
    if wave:
        yield wave


def parse_before(text: str, now: dt.datetime) -> dt.datetime:
    """The beginning of a UTC date that is not in the future."""
    try:
        day = dt.datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=dt.UTC)
    except ValueError:
        raise UsageError(f"--before takes a date such as 2026-11-01, got {text[:40]!r}") from None
    if day > now:
        raise UsageError(f"--before {text} lies in the future: what may not have expired is never removed")
    return day


def main(argv: Sequence[str] | None = None) -> int:
    """Compact a lake; for spark-submit."""
    parser = argparse.ArgumentParser(prog="dovetail.audit.jobs.compact", description="Compact a lake.")
    parser.add_argument("lake", type=Path)
    parser.add_argument("--before", required=True, metavar="DATE")
    parser.add_argument("--swarm", type=Path, action="append", default=[], metavar="FILE")
    parser.add_argument("--wait", type=float, default=30)
    parser.add_argument("--dry-run", action="store_true")
    arguments = parser.parse_args(argv)
    before = parse_before(arguments.before, dt.datetime.now(dt.UTC))
    compaction = Compaction(
        lake=check_lake(arguments.lake),
        spark=open_session(SessionOptions()),
        before=before,
        settings=load_settings(arguments.swarm),
        is_dry=arguments.dry_run,
        wait_s=arguments.wait,
    )
    summary = compaction.run()
    sys.stdout.write(summary.text())
    return 1 if summary.left_alone else 0


if __name__ == "__main__":
    sys.exit(main())
