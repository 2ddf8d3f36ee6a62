"""Retries a run when a file changes while it is read: anyone with write access to the lake must not stop the audit.

Every file is checked before Spark reads it. If it changes in between, or Spark cannot read it, the run starts over; the
check then sees the changed file and excludes it. Files that change again and again are left out: they count as
unreadable, and every later run tries to read them.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from dovetail.lake.layout import hops_of_key
from dovetail.model.errors import PipelineError

ATTEMPTS = 3
"""After this many, the files that changed are left out; after twice as many, all new files of their servers."""

_READING = re.compile(r"(?:FAILED_READ_FILE|reading file)[^\n]*?/?(fabric=[^/\s]+/date=[^/\s]+/[^/\s]+?\.parquet)")
Result = TypeVar("Result")


class FileChanged(PipelineError):
    """Files of the lake changed while they were read, or could not be read although they were readable before.

    `manifests` are those that the run knew.
    """

    def __init__(self, paths: Iterable[str], manifests: Iterable[str] = ()) -> None:
        self.paths, self.manifests = frozenset(paths), frozenset(manifests)
        super().__init__(f"{', '.join(sorted(self.paths))} changed while it was read")


@dataclass(frozen=True, slots=True)
class LeftOut:
    """What a run does not read: these files, those of servers with these slugs, and manifests not in `only`."""

    paths: frozenset[str] = frozenset()
    slugs: frozenset[str] = frozenset()
    only: frozenset[str] | None = None

    def __contains__(self, path: str) -> bool:
        return path in self.paths or (bool(self.slugs) and _slug_of(path) in self.slugs)


NOTHING = LeftOut()


def retried(work: Callable[[LeftOut], Result]) -> Result:
    """Do the work; again if files changed meanwhile, in the end without them.

    It ends, because less is read each time, and then nothing that is added to the lake meanwhile.
    """
    changed: frozenset[str] = frozenset()
    left_out = NOTHING
    for attempt in itertools.count(1):
        try:
            return work(left_out)
        except FileChanged as failure:
            if all(path in left_out for path in failure.paths):
                raise  # it was not read: leaving it out again changes nothing
            changed |= failure.paths
            only = failure.manifests if left_out.only is None else left_out.only
            if attempt >= ATTEMPTS:
                slugs = frozenset(map(_slug_of, changed)) if attempt >= 2 * ATTEMPTS else left_out.slugs
                left_out = LeftOut(changed, slugs, only)
    raise AssertionError


def unreadable(error: Exception) -> frozenset[str]:
    """The files of the lake that could not be read, if that caused the error."""
    if isinstance(error, FileChanged):
        return error.paths
    return frozenset(_READING.findall(str(error)))


def _slug_of(path: str) -> str:
    hops = hops_of_key(path)
    return path if hops is None else hops[0]
