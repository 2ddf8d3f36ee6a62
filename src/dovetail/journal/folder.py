"""Which files of a folder are journals."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

SUFFIX = ".journal"
PEER_JOURNAL = "journal.db"
"""What a peer of a swarm and an owner of an atom call the journal in their own directory."""


def find_journals(path: Path) -> Iterator[Path]:
    """The journals below a folder, in the order of their names; a file is given as it is."""
    if not path.is_dir():
        yield path
        return
    yield from sorted(file for pattern in (f"*{SUFFIX}", PEER_JOURNAL) for file in path.rglob(pattern))
