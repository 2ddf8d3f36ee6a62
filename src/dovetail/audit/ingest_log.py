"""What is known about each manifest and file after it was read once: the table `ingest`, to rows and back."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Generic, NamedTuple, TypeVar

import msgspec
import pyarrow as pa

from dovetail.audit.merkle_scan import Part
from dovetail.audit.schemas import INGEST
from dovetail.lake.manifest import MAX_FILE_BYTES, MAX_MANIFEST_BYTES, Manifest, SealedFile, parse_manifest
from dovetail.lake.store import Entry, Store
from dovetail.lake.writer import sha256_of
from dovetail.model.errors import JournalDamaged

MANIFEST, FILE = "manifest", "file"
Fact = TypeVar("Fact")

UNCOMMITTED = "no signed root commits to it"
"""Why a file was not read: a later manifest may still lead to it."""

CHANGING = "it kept changing while it was read, or could not be read"
"""Why a file was left out of a run: the next one tries again."""

MAX_AHEAD_US = 300_000_000
"""How far a server's clock may be ahead of the auditor's before that is a finding."""


class ManifestFact(msgspec.Struct, frozen=True, kw_only=True):
    """A manifest as it was when the audit first read it; `manifest` is None if it cannot be trusted."""

    path: str
    sha256: str
    error: str | None = None
    manifest: Manifest | None = None
    tag: str = ""
    """The tag of the object before it was read: see `lake.store.Entry`."""


class FileFact(msgspec.Struct, frozen=True, kw_only=True):
    """The result of reading one announced file. `part` is None if the file is missing or unreadable."""

    path: str
    server: str
    is_whole: bool
    error: str | None = None
    part: Part | None = None
    kept_error: str | None = None
    """What is wrong with the fields that a compaction retained for it."""
    is_kept_signed: bool = False
    """True if those fields were signed with a trusted key, and so may have been used."""
    sha256: str = ""
    tag: str = ""
    """`sha256` is of the bytes that were read, `tag` of their object: see `lake.store.Entry`."""

    @property
    def fabric(self) -> str:
        """The fabric, from its path in the lake."""
        return self.path.partition("/")[0].removeprefix("fabric=")

    @property
    def is_own(self) -> bool:
        """True if it is readable and all its rows are of the server that announces it: others are not taken."""
        return self.part is not None and self.part.servers == [self.server]

    def is_proven(self, announced: SealedFile, server: str) -> bool:
        """True if its rows are exactly those that the file's announced subtree commits to."""
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
    """The facts of one batch of manifests."""

    manifests: list[ManifestFact]
    files: list[FileFact]


def fact_rows(facts: BatchFacts, run: int) -> pa.Table:
    """The facts of a run, as rows of `ingest`."""
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
    """The facts in rows of `ingest`, in run order."""
    manifests, files = [], []
    for kind, fact in zip(rows["kind"].to_pylist(), rows["fact"].to_pylist(), strict=True):
        if kind == MANIFEST:
            manifests.append(msgspec.json.decode(fact, type=ManifestFact))
        else:
            files.append(msgspec.json.decode(fact, type=FileFact))
    return joined(BatchFacts(manifests=manifests, files=[]), BatchFacts(manifests=[], files=files))


def joined(before: BatchFacts, learnt: BatchFacts) -> BatchFacts:
    """All facts; later facts about an object replace earlier ones."""
    manifests = {fact.path: fact for fact in (*before.manifests, *learnt.manifests)}
    files = {file.path: file for file in (*before.files, *learnt.files)}
    return BatchFacts(manifests=list(manifests.values()), files=list(files.values()))


def learn_manifest(lake: Store, key: str, tag: str = "") -> ManifestFact:
    """Read one manifest; what is wrong with it becomes a fact, not an error. The tag is from a listing."""
    digest = ""
    try:
        data = lake.get(key, 0, MAX_MANIFEST_BYTES + 1)
        digest = hashlib.sha256(data).hexdigest()
        return ManifestFact(path=key, sha256=digest, manifest=parse_manifest(key, data), tag=tag)
    except JournalDamaged as error:
        return ManifestFact(path=key, sha256=digest, error=str(error), tag=tag)
    except OSError as error:
        return ManifestFact(path=key, sha256="", error=error.strerror or str(error))


class Again(NamedTuple, Generic[Fact]):
    """Objects that were read before and have changed, with what happened; and those whose tag alone differs now, for
    instance because the lake was copied.
    """

    changed: list[tuple[Fact, str]]
    retagged: list[Fact]


def changed_manifests(
    lake: Store, known: Iterable[ManifestFact], tags: Mapping[str, str] | None = None
) -> Again[ManifestFact]:
    """Manifests that are gone or have other content. Those with an unchanged tag are not read."""
    changed, retagged = [], []
    for fact in known:
        tag = "" if tags is None else tags.get(fact.path, "")
        if tag and tag == fact.tag:
            continue
        try:
            digest = hashlib.sha256(lake.get(fact.path, 0, MAX_MANIFEST_BYTES + 1)).hexdigest()
        except (OSError, JournalDamaged):
            changed.append((fact, "is gone"))
        else:
            if fact.sha256 and digest != fact.sha256:
                changed.append((fact, "has changed since it was first read"))
            elif tag and fact.sha256:
                retagged.append(msgspec.structs.replace(fact, tag=tag))
    return Again(changed, retagged)


def present_files(lake: Store) -> dict[str, Entry]:
    """The Parquet files in the lake, announced or not, from a listing."""
    return {entry.key: entry for entry in lake.list("fabric=") if entry.key.endswith(".parquet")}


def altered_files(lake: Store, present: Mapping[str, Entry], files: Iterable[FileFact]) -> Again[FileFact]:
    """Files whose bytes have changed since they were read. Only those whose tag has changed are read."""
    latest = {fact.path: fact for fact in files if fact.part is not None and fact.sha256}
    altered, retagged = [], []
    for path, fact in latest.items():
        entry = present.get(path)
        if entry is not None and entry.tag != fact.tag:
            try:
                is_same = entry.size <= MAX_FILE_BYTES and sha256_of(lake, path) == fact.sha256
            except (OSError, JournalDamaged):
                is_same = False
            if not is_same:
                altered.append((fact, "its bytes have changed since it was read"))
            elif entry.tag:
                retagged.append(msgspec.structs.replace(fact, tag=entry.tag))
    return Again(altered, retagged)


def newest_us(files: Iterable[FileFact], proven: Collection[str], now_us: int) -> int:
    """The time of the newest hop; times more than `MAX_AHEAD_US` ahead of our clock are ignored.

    Files that are not `proven` count only if none is: anybody can write rows into them.
    """
    times = {fact.path: fact.part.last_at_us for fact in files if fact.is_own and fact.part is not None}
    believable = {path: time_us for path, time_us in times.items() if time_us <= now_us + MAX_AHEAD_US}
    signed = [time_us for path, time_us in believable.items() if path in proven]
    return max(signed or believable.values(), default=0)


def unannounced_files(present: Mapping[str, Entry], manifests: Sequence[Manifest], min_age_s: float = 0) -> list[str]:
    """Parquet files that no manifest announces; sealing in progress creates some, so young ones may be skipped."""
    announced = {file.path for manifest in manifests for file in manifest.files}
    youngest = time.time() - min_age_s
    return sorted(
        key for key, entry in present.items() if key not in announced and (not min_age_s or entry.modified_s < youngest)
    )


def missing_files(present: Collection[str], manifests: Sequence[Manifest]) -> set[str]:
    """Announced files that do not exist."""
    return {file.path for manifest in manifests for file in manifest.files if file.path not in present}


def announced_rows(facts: Iterable[ManifestFact]) -> int:
    """Number of hops announced by those of these manifests that are readable."""
    return sum(file.rows for fact in facts if fact.manifest is not None for file in fact.manifest.files)
