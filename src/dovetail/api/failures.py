"""Errors of the operating system, such as a full disk, as errors of this API."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from dovetail.model.errors import DovetailError


@contextlib.contextmanager
def files_as(kind: type[DovetailError]) -> Iterator[None]:
    """Raise an OSError as an error of this kind, which names the file; the OSError is its cause."""
    try:
        yield
    except DovetailError:  # TimedOut is an OSError, too
        raise
    except OSError as error:
        why = error.strerror or str(error)
        raise kind(f"{error.filename}: {why}" if error.filename else why) from error
