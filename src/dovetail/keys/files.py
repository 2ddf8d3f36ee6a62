"""Key files: written atomically; private ones are never readable by others, not even briefly."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Callable, Mapping
from pathlib import Path

from dovetail.model.errors import KeyFileError

PRIVATE_MODE = 0o600
PUBLIC_MODE = 0o644
DIRECTORY_MODE = 0o700
MAX_FILE_BYTES = 1024 * 1024


def make_private_directory(path: Path) -> None:
    """Create a directory and its missing parents, accessible only to the owner."""
    if path.is_dir():
        return
    if path.parent != path:
        make_private_directory(path.parent)
    path.mkdir(mode=DIRECTORY_MODE, exist_ok=True)


def write_private(path: Path, data: bytes, *, force: bool = False) -> None:
    """Write a file that only its owner can read."""
    _write(path, data, PRIVATE_MODE, force=force)


def write_public(path: Path, data: bytes, *, force: bool = False) -> None:
    """Write a file that anyone can read."""
    _write(path, data, PUBLIC_MODE, force=force)


def write_pair(private: tuple[Path, bytes], public: tuple[Path, bytes], *, force: bool = False) -> None:
    """Write a private file and its public half; fails before writing anything if either exists."""
    refuse_existing({private[0]: "private key", public[0]: "public half"}, force=force)
    write_private(*private, force=force)
    write_public(*public, force=force)


def refuse_existing(paths: Mapping[Path, str], *, force: bool) -> None:
    """Raise KeyFileError if one of `paths` exists, unless `force` is set."""
    if force:
        return
    for path in paths:
        if os.path.lexists(path):
            raise KeyFileError(f"{path} exists; --force overwrites it")


def read_file(path: Path) -> bytes:
    """Read a key file of at most MAX_FILE_BYTES."""
    return read_bounded(path, MAX_FILE_BYTES, KeyFileError)


def read_bounded(path: Path, max_bytes: int, error: Callable[[str], Exception]) -> bytes:
    """The bytes of a file; raises `error` with one line if it is too large, unreadable, or a pipe without a writer."""
    try:
        with open(path, "rb", opener=_open_at_once) as file:
            data = file.read(max_bytes + 1)
            if not data and stat.S_ISFIFO(os.fstat(file.fileno()).st_mode):
                raise error(f"{path} is a pipe that nobody writes to")
    except OSError as problem:
        raise error(f"{path} cannot be read: {problem.strerror or problem}") from None
    if len(data) > max_bytes:
        raise error(f"{path} has over {max_bytes} bytes, expected at most {max_bytes}")
    return data


def _open_at_once(path: str, flags: int) -> int:
    """Open a file; a pipe without waiting for somebody to write to it."""
    descriptor = os.open(path, flags | os.O_NONBLOCK)
    os.set_blocking(descriptor, True)
    return descriptor


def _write(path: Path, data: bytes, mode: int, *, force: bool) -> None:
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.new")
    try:
        make_private_directory(path.parent)
        # The mode is set at creation, so others can never open the file.
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            if force:
                temporary.replace(path)
            else:
                # Unlike rename, link fails if the name exists, even if it was created just now.
                path.hardlink_to(temporary)
        finally:
            with contextlib.suppress(FileNotFoundError):
                temporary.unlink()
        _sync_directory(path.parent)
    except FileExistsError:
        raise KeyFileError(f"{path} exists; --force overwrites it") from None
    except OSError as error:
        raise KeyFileError(f"{path} cannot be written: {error.strerror or error}") from None


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
