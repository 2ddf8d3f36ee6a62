"""Durable replacement of whole small files: state beside journals and tables, receipts, contexts."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def replace_file(path: Path, data: bytes, mode: int = 0o666) -> None:
    """Write a file so that a crash leaves the old or the new one: to a temporary name, synced, then renamed.

    On failure no temporary file is left behind.
    """
    if path.exists() and not path.is_file():  # such as /dev/stdout
        path.write_bytes(data)
        return
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, mode), "wb") as file:  # noqa: PTH123
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException as error:
        with contextlib.suppress(OSError):  # it may be the reason itself: a directory that may not be written
            temporary.unlink()
        if isinstance(error, OSError):
            raise OSError(error.errno, error.strerror, str(path)) from None
        raise
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Make the entries of a directory durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
