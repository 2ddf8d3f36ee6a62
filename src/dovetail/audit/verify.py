"""`audit verify`: rereads everything that was audited, and reports what has changed.

Every run compares the listing of a file with the one from when it was read, but bit rot or a dishonest store does not
change the listing. This module reads the bytes themselves: of every active manifest, of every file that a run has read,
and of the fields that compactions retained for files. Their hashes are in `ingest`; rows with the same bytes have the
same signed root, so nothing has to be decoded. Roll-ups, which only copy manifests, are compared with the manifests.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import msgspec

from dovetail.audit.active_manifests import active_facts, expected_manifests
from dovetail.audit.ingest_log import FileFact, changed_manifests, facts_of
from dovetail.audit.tables import Tables
from dovetail.lake.manifest import MAX_FILE_BYTES, RetainedFile
from dovetail.lake.rollup import find_false
from dovetail.lake.store import Store
from dovetail.lake.writer import sha256_of
from dovetail.model.errors import JournalDamaged

_AT_ONCE = 256
Progress = Callable[[int, int], object]
"""Called with the number done and the total."""


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """One object that has changed."""

    server: str
    file: str
    problem: str


class Verified(msgspec.Struct, frozen=True, kw_only=True):
    """What was read, and what is wrong with it."""

    run: int
    lake: str
    manifests: int
    files: int
    bytes: int
    problems: list[Problem]

    def lines(self) -> list[str]:
        """For a terminal."""
        lines = [f"{each.server}: {each.file}: {each.problem}" for each in self.problems]
        read = f"{self.manifests:,} manifests and {self.files:,} files ({self.bytes:,} bytes) of {self.lake}"
        if not lines:
            return [f"{read} are unchanged since run {self.run} and earlier runs read them"]
        return [*lines, f"{len(lines):,} of {read} have changed since they were audited"]


def verify_lake(tables: Tables, lake: Store, progress: Progress = max) -> Verified:
    """Reread everything that the runs up to this one have read and that is still active."""
    known = facts_of(tables.read("ingest").sort_by("run"))
    active = [fact for fact in active_facts(known, ()).manifests if fact.manifest is not None]
    manifests = expected_manifests(lake, active, ())  # an unreadable one was never believed
    announced = {file.path: file for fact in manifests if fact.manifest for file in fact.manifest.files}
    files = [fact for fact in known.files if fact.part is not None and fact.sha256 and fact.path in announced]
    work: list[Callable[[], tuple[int, Problem | None]]] = [partial(_check_file, lake, fact) for fact in files]
    work += [
        partial(_check_retained, lake, fact.server, retained)
        for fact in files
        if fact.kept_error is None and (retained := announced[fact.path].retained) is not None
    ]
    servers = {fact.path.split("/")[1]: fact.manifest.server for fact in manifests if fact.manifest}
    problems = [
        Problem(server=servers[fact.path.split("/")[1]], file=fact.path, problem=f"the manifest {what}")
        for fact, what in changed_manifests(lake, manifests).changed
    ]
    problems += _check_rollups(lake, servers)
    size = 0
    with ThreadPoolExecutor(min(8, 2 * (os.cpu_count() or 1))) as threads:
        for start in range(0, len(work), _AT_ONCE):
            part = work[start : start + _AT_ONCE]
            for number, problem in threads.map(lambda check: check(), part):
                size += number
                problems += [] if problem is None else [problem]
            progress(start + len(part), len(work))
    problems.sort(key=lambda each: (each.server, each.file))
    return Verified(
        run=tables.run.number,
        lake=str(lake),
        manifests=len(manifests),
        files=len(work),
        bytes=size,
        problems=problems,
    )


def _check_file(lake: Store, fact: FileFact) -> tuple[int, Problem | None]:
    return _check_bytes(lake, fact.server, fact.path, fact.sha256, "its bytes have changed since it was read")


def _check_retained(lake: Store, server: str, file: RetainedFile) -> tuple[int, Problem | None]:
    return _check_bytes(lake, server, file.path, file.sha256, "its bytes differ from those that its manifest announces")


def _check_bytes(lake: Store, server: str, path: str, sha256: str, otherwise: str) -> tuple[int, Problem | None]:
    try:
        size = lake.entry(path).size
        if size <= MAX_FILE_BYTES and sha256_of(lake, path) == sha256:
            return size, None
        text = otherwise
    except FileNotFoundError:
        size, text = 0, "it is gone"
    except (OSError, JournalDamaged) as error:
        size, text = 0, f"it cannot be read: {error}"
    return size, Problem(server=server, file=path, problem=text)


def _check_rollups(lake: Store, servers: Mapping[str, str]) -> Iterator[Problem]:
    """Roll-ups that do not copy the manifests that exist; `servers` are the names by directory."""
    for key, problem in find_false(lake):
        directory = key.split("/")[1]
        yield Problem(server=servers.get(directory, directory), file=key, problem=problem)
