"""What is known about each manifest and file after it was read once: the table `ingest`, from rows and back."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec
import pyarrow as pa

from dovetail.audit.merkle_scan import Part
from dovetail.audit.schemas import INGEST
from dovetail.lake.manifest import MAX_FILE_BYTES, MAX_MANIFEST_BYTES, Manifest, SealedFile, parse_manifest
from dovetail.lake.store import Entry, Store
from dovetail.lake.writer import sha256_of
from dovetail.model.errors import JournalDamaged

MANIFEST, FILE = "manifest", "file"

UNCOMMITTED = "no signed root commits to it"
"""Why a file was not read: a manifest that comes later may still lead to it."""

MAX_AHEAD_US = 300_000_000
"""How far a server's clock may be ahead of the auditor's before that is a finding."""


class ManifestFact(msgspec.Struct, frozen=True, kw_only=True):
    """A manifest as it was when the audit first met it; `manifest` is None where it cannot be believed."""

    path: str
    sha256: str
    error: str | None = None
    manifest: Manifest | None = None


class FileFact(msgspec.Struct, frozen=True, kw_only=True):
    """What reading one announced file gave. `part` is None where the file is missing or cannot be read."""

    path: str
    server: str
    is_whole: bool
    error: str | None = None
    part: Part | None = None
    kept_error: str | None = None
    """What is wrong with what a compaction kept beside it."""
    sha256: str = ""
    tag: str = ""
    """Of the bytes that were read, and of the object that had them: see `lake.store.Entry`."""

    @property
    def fabric(self) -> str:
        """The fabric, as its place in the lake says."""
        return self.path.partition("/")[0].removeprefix("fabric=")

    @property
    def is_own(self) -> bool:
        """Whether it could be read, and all of its rows are of the server that announces it: others are not taken."""
        return self.part is not None and self.part.servers == [self.server]

    def is_proven(self, announced: SealedFile, server: str) -> bool:
        """Whether its rows are exactly those that the file's announced subtree commits to."""
        part = self.part
        return (
            part is not None
            and part.servers == [server]
            and part.breaks == 0
            and len(part.nodes) == 1
            and part.nodes[0].level == announced.level
            and part.nodes[0].index == announced.first_seq >> announced.level
            and part.nodes[0].hash.hex() == announced.root
        )


class BatchFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What one batch of manifests brought."""

    manifests: list[ManifestFact]
    files: list[FileFact]


def fact_rows(facts: BatchFacts, run: int) -> pa.Table:
    """The facts that a run brought, as rows of `ingest`."""
    rows: list[dict[str, object]] = [
        {
            "kind": MANIFEST,
            "path": fact.path,
            "fabric": None if fact.manifest is None else fact.manifest.fabric,
            "server": None if fact.manifest is None else fact.manifest.server,
            "hops": None,
            "error": fact.error,
            "fact": msgspec.json.encode(fact),
        }
        for fact in facts.manifests
    ]
    rows += [
        {
            "kind": FILE,
            "path": fact.path,
            "fabric": fact.fabric,
            "server": fact.server,
            "hops": None if fact.part is None else fact.part.rows,
            "error": fact.error,
            "fact": msgspec.json.encode(fact),
        }
        for fact in facts.files
    ]
    return pa.Table.from_pylist([{"run": run, **row} for row in rows], schema=INGEST.arrow)


def facts_of(rows: pa.Table) -> BatchFacts:
    """The facts in rows of `ingest`, in the order of their runs."""
    manifests, files = [], []
    for kind, fact in zip(rows["kind"].to_pylist(), rows["fact"].to_pylist(), strict=True):
        if kind == MANIFEST:
            manifests.append(msgspec.json.decode(fact, type=ManifestFact))
        else:
            files.append(msgspec.json.decode(fact, type=FileFact))
    return joined(BatchFacts(manifests=manifests, files=[]), BatchFacts(manifests=[], files=files))


def joined(before: BatchFacts, learnt: BatchFacts) -> BatchFacts:
    """All facts; what was learnt of a file later stands for what was known before."""
    files = {file.path: file for file in (*before.files, *learnt.files)}
    return BatchFacts(manifests=[*before.manifests, *learnt.manifests], files=list(files.values()))


def learn_manifest(lake: Store, key: str) -> ManifestFact:
    """Read one manifest; what is wrong with it becomes a fact, not an error."""
    digest = ""
    try:
        data = lake.get(key, 0, MAX_MANIFEST_BYTES + 1)
        digest = hashlib.sha256(data).hexdigest()
        return ManifestFact(path=key, sha256=digest, manifest=parse_manifest(key, data))
    except JournalDamaged as error:
        return ManifestFact(path=key, sha256=digest, error=str(error))
    except OSError as error:
        return ManifestFact(path=key, sha256="", error=error.strerror or str(error))


def changed_manifests(lake: Store, known: Iterable[ManifestFact]) -> list[tuple[ManifestFact, str]]:
    """Manifests that are gone or no longer say what they said, with what happened."""
    changed = []
    for fact in known:
        try:
            digest = hashlib.sha256(lake.get(fact.path, 0, MAX_MANIFEST_BYTES + 1)).hexdigest()
        except (OSError, JournalDamaged):
            changed.append((fact, "is gone"))
        else:
            if fact.sha256 and digest != fact.sha256:
                changed.append((fact, "no longer says what it said before"))
    return changed


def present_files(lake: Store) -> dict[str, Entry]:
    """The Parquet files that are in the lake, whoever announces them, as a listing shows them."""
    return {entry.key: entry for entry in lake.list("fabric=") if entry.key.endswith(".parquet")}


def altered_files(lake: Store, present: Mapping[str, Entry], files: Iterable[FileFact]) -> list[tuple[str, str]]:
    """Files that have other bytes than when they were read. Only those are read whose tag is another one."""
    latest = {fact.path: fact for fact in files if fact.part is not None and fact.sha256}
    altered = []
    for path, fact in latest.items():
        entry = present.get(path)
        if entry is not None and entry.tag != fact.tag:
            try:
                is_same = entry.size <= MAX_FILE_BYTES and sha256_of(lake, path) == fact.sha256
            except (OSError, JournalDamaged):
                is_same = False
            if not is_same:
                altered.append((path, "it has other bytes than when it was read"))
    return altered


def newest_us(files: Iterable[FileFact], now_us: int) -> int:
    """The time of the newest hop; a server whose clock is ahead of ours does not move it beyond what ours can be."""
    times = (fact.part.last_at_us for fact in files if fact.is_own and fact.part is not None)
    return max((time_us for time_us in times if time_us <= now_us + MAX_AHEAD_US), default=0)


def unannounced_files(present: Mapping[str, Entry], manifests: Sequence[Manifest], min_age_s: float = 0) -> list[str]:
    """Parquet files that no manifest announces; a sealing under way makes some, so young ones may be passed over."""
    announced = {file.path for manifest in manifests for file in manifest.files}
    youngest = time.time() - min_age_s
    return sorted(
        key for key, entry in present.items() if key not in announced and (not min_age_s or entry.modified_s < youngest)
    )


def missing_files(present: Collection[str], manifests: Sequence[Manifest]) -> set[str]:
    """Announced files that are not there."""
    return {file.path for manifest in manifests for file in manifest.files if file.path not in present}


def announced_rows(facts: Iterable[ManifestFact]) -> int:
    """How many hops these manifests announce, as far as they can be read."""
    return sum(file.rows for fact in facts if fact.manifest is not None for file in fact.manifest.files)
