"""Finds the journals in a folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

SUFFIX = ".journal"
PEER_JOURNAL = "journal.db"
"""The name of the journal in the directory of a swarm peer or an atom's owner."""


def find_journals(path: Path) -> Iterator[Path]:
    """The journals below a folder, sorted by name; a file is returned as is."""
    if not path.is_dir():
        yield path
        return
    yield from sorted(file for pattern in (f"*{SUFFIX}", PEER_JOURNAL) for file in path.rglob(pattern))
