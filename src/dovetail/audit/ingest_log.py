"""What is known about each announced file after it was read once: kept, so that no file is ever read again for it."""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from dovetail.audit.merkle_scan import Part
from dovetail.lake.manifest import MAX_MANIFEST_BYTES, Manifest, SealedFile, read_manifest
from dovetail.model.errors import JournalDamaged


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

    @property
    def fabric(self) -> str:
        """The fabric, as its place in the lake says."""
        return self.path.partition("/")[0].removeprefix("fabric=")

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


def encode_facts(facts: BatchFacts) -> bytes:
    """The facts of a batch as JSON."""
    return msgspec.json.encode(facts)


def decode_facts(data: bytes) -> BatchFacts:
    """The facts of a batch from JSON."""
    return msgspec.json.decode(data, type=BatchFacts)


def learn_manifest(lake: Path, path: Path) -> ManifestFact:
    """Read one manifest; what is wrong with it becomes a fact, not an error."""
    name = str(path.relative_to(lake))
    try:
        if path.stat().st_size > MAX_MANIFEST_BYTES:
            return ManifestFact(
                path=name, sha256="", error=f"{path.stat().st_size} bytes, expected at most {MAX_MANIFEST_BYTES}"
            )
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        return ManifestFact(path=name, sha256=digest, manifest=read_manifest(path))
    except JournalDamaged as error:
        return ManifestFact(path=name, sha256=digest, error=str(error).replace(str(path), name))
    except OSError as error:
        return ManifestFact(path=name, sha256="", error=error.strerror or str(error))


def changed_manifests(lake: Path, known: Iterable[ManifestFact]) -> list[tuple[ManifestFact, str]]:
    """Manifests that are gone or no longer say what they said, with what happened."""
    changed = []
    for fact in known:
        path = lake / fact.path
        if not path.is_file():
            changed.append((fact, "is gone"))
        elif fact.sha256 and hashlib.sha256(path.read_bytes()).hexdigest() != fact.sha256:
            changed.append((fact, "no longer says what it said before"))
    return changed


def unannounced_files(lake: Path, manifests: Sequence[Manifest], min_age_s: float = 0) -> list[str]:
    """Parquet files that no manifest announces; a sealing under way makes some, so young ones may be passed over."""
    announced = {file.path for manifest in manifests for file in manifest.files}
    youngest = time.time() - min_age_s
    found = []
    for path in lake.glob("fabric=*/date=*/[!._]*.parquet"):
        name = str(path.relative_to(lake))
        # one that is gone by now was being replaced
        with contextlib.suppress(FileNotFoundError):
            if name not in announced and (not min_age_s or path.stat().st_mtime < youngest):
                found.append(name)
    return sorted(found)


def missing_files(lake: Path, manifests: Sequence[Manifest]) -> set[str]:
    """Announced files that are not there."""
    return {file.path for manifest in manifests for file in manifest.files if not (lake / file.path).is_file()}


def announced_rows(paths: Iterable[Path]) -> int:
    """How many hops these manifests announce, as far as they can be read."""
    rows = 0
    for path in paths:
        try:
            rows += sum(file.rows for file in read_manifest(path).files)
        except (JournalDamaged, OSError):
            continue
    return rows
