"""Checks of journals: that none was truncated or rolled back, and that only their owner may read them."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path

from dovetail.journal.continuity import Known, find_breaks
from dovetail.journal.folder import find_journals
from dovetail.journal.high_water import mark_path
from dovetail.journal.reader import JournalReader
from dovetail.lake.known import known_to_lake
from dovetail.lake.store import Store
from dovetail.model.errors import ConnectFailed, JournalError
from dovetail.site.doctor.finding import Finding, fail, ok, warn


def check_journals(directory: Path, lake: Store) -> Iterator[Finding]:
    """Check every journal below a directory against its high-water mark and the lake."""
    if not directory.is_dir():
        return
    found = list(find_journals(directory))
    bad = [finding for path in found for finding in check_journal(path, lake)]
    yield from bad
    for path in (directory, *found):
        yield from check_mode(path)
    if found and not bad:
        yield ok("journals", f"{len(found)} in {directory} have all hops that they are known to have had")


def check_journal(path: Path, lake: Store) -> Iterator[Finding]:
    """Faults of one journal that show at its end or against others' records; `journal verify` reads all of it."""
    check, advice = (
        f"journal {path.name}",
        f"dovetail journal verify {path}; dovetail journal recover {path} --lake LAKE",
    )
    try:
        with JournalReader.open(path) as reader:
            for detail in find_breaks(reader, _known(reader, lake)):
                yield fail(check, f"it {detail}", advice)
            if reader.identity.has_mark and reader.size and not mark_path(path).exists():
                yield fail(check, f"its high-water mark is missing ({mark_path(path).name})", advice)
    except JournalError as error:
        yield fail(check, str(error), advice)
    except OSError as error:
        yield fail(check, f"{path}: {error.strerror or error}", "let this user read it")


def _known(reader: JournalReader, lake: Store) -> list[Known]:
    try:
        return known_to_lake(lake, reader.identity.verifier)
    except ConnectFailed:
        return []  # an unreachable lake is a separate finding


def check_mode(path: Path) -> Iterator[Finding]:
    """Warn if anyone but the owner may read a journal or its directory."""
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & 0o077:
        wanted = "700" if path.is_dir() else "600"
        yield warn("journals", f"{path} has mode {mode:04o}: others can read messages", f"chmod {wanted} {path}")
