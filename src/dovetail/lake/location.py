"""The location of a lake: a directory, or a URL of an object store that starts with `s3://`."""

from __future__ import annotations

import os
from pathlib import Path

from dovetail.lake.store import LocalStore, Store

Location = str | os.PathLike[str]
_SCHEMES = ("s3://", "s3a://")


def is_url(location: Location) -> bool:
    """True if a location is in an object store."""
    return isinstance(location, str) and location.startswith(_SCHEMES)


def local_directory(location: Location) -> Path | None:
    """The directory of a location; None for an object store."""
    return None if is_url(location) else Path(location)


def open_store(location: Location) -> Store:
    """Open the store at a location; other settings of an object store are in the variables AWS_*."""
    if isinstance(location, str) and location.startswith(_SCHEMES):
        from dovetail.lake.object_store import parse_location  # obstore is loaded only if used

        return parse_location(location)
    return LocalStore(Path(location))
