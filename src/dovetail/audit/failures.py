"""Retries a run when a file changes while it is read: anyone with write access to the lake must not stop the audit.

Every file is checked before Spark reads it. If it changes in between, the Spark job fails and the run starts over; the
check then sees the changed file and excludes it. If files keep changing, the error names the file and its server.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar

from dovetail.lake.layout import hops_of_key, server_slug
from dovetail.lake.snapshot import snapshot
from dovetail.lake.store import Store
from dovetail.model.errors import PipelineError

ATTEMPTS = 3
_READING = re.compile(r"(?:FAILED_READ_FILE|reading file)[^\n]*?/?(fabric=[^/\s]+/date=[^/\s]+/[^/\s]+?\.parquet)")
Result = TypeVar("Result")


class FileChanged(PipelineError):
    """A file of the lake that was readable before could not be read."""

    def __init__(self, path: str) -> None:
        super().__init__(f"{path} changed while it was read")
        self.path = path


def retried(work: Callable[[], Result], lake: Store) -> Result:
    """Do the work; retry if a file changed meanwhile. PipelineError names the file and server if it keeps changing."""
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return work()
        except Exception as error:
            path = changed_file(error)
            if path is None:
                raise
            if attempt == ATTEMPTS:
                text = f"{path} of {_owner(lake, path)} keeps changing while it is read"
                raise PipelineError(text) from None
    raise AssertionError


def changed_file(error: Exception) -> str | None:
    """The file of the lake that could not be read, if that caused the error."""
    if isinstance(error, FileChanged):
        return error.path
    found = _READING.search(str(error))
    return found[1] if found else None


def _owner(lake: Store, path: str) -> str:
    """The server that owns the file, or the server's slug in the file name if no such server is known."""
    hops = hops_of_key(path)
    slug = "an unknown server" if hops is None else hops[0]
    return next((server for server in snapshot(lake).servers if server_slug(server) == slug), slug)
