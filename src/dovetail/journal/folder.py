"""Finds the journals in a folder."""

from __future__ import annotations

import os
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
    # `rglob` fails if a folder is removed while it looks, as sealing does with its scratch files
    files = (Path(folder, name) for folder, _, names in os.walk(path) for name in names)
    yield from sorted(file for file in files if file.suffix == SUFFIX or file.name == PEER_JOURNAL)
