"""Small files beside journals and tables: durable replacement of whole ones, and careful opening of those kept open."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from dovetail.keys.files import PRIVATE_MODE
from dovetail.model.errors import JournalError


def open_beside(path: Path, flags: int) -> int:
    """Open a file that belongs to a journal, for its owner only; raises JournalError if it leads elsewhere.

    Otherwise whoever may create a name in the directory could have the server write into any of its files, or wait for
    ever.
    """
    try:
        descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, PRIVATE_MODE)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise JournalError(f"{path} is a symbolic link, expected a file") from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise JournalError(f"{path} is not a file")
    return descriptor


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
        temporary.unlink(missing_ok=True)
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
