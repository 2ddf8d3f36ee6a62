"""Where a lake is: a directory, or a place in an object store that begins with `s3://`."""

from __future__ import annotations

import os
from pathlib import Path

from dovetail.lake.store import LocalStore, Store

Location = str | os.PathLike[str]
_SCHEMES = ("s3://", "s3a://")


def is_url(location: Location) -> bool:
    """Whether a location is in an object store."""
    return isinstance(location, str) and location.startswith(_SCHEMES)


def local_directory(location: Location) -> Path | None:
    """The directory that a location is; None for an object store."""
    return None if is_url(location) else Path(location)


def open_store(location: Location) -> Store:
    """The store at a location; what else is to be known of an object store is in the variables AWS_*."""
    if isinstance(location, str) and location.startswith(_SCHEMES):
        from dovetail.lake.object_store import parse_location  # obstore is loaded only where it is used

        return parse_location(location)
    return LocalStore(Path(location))
