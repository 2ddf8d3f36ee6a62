"""Storage for the lake's objects: a few operations that a local directory and an object store both support.

An object is written whole and never changes. `create` is the commit point of everything: it creates an object only if
there is none (`link` in a directory, `If-None-Match: *` in an object store), so that of two writers one succeeds.

Keys are relative, plain text, never a `Path`. A `LocalStore` opens every directory on the path without following
symbolic links, so that no key, from any source, leads out of its directory. `object_store` has the other kind;
`location` tells which one a lake uses.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import shutil
import stat
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from dovetail.keys.files import DIRECTORY_MODE, make_private_directory
from dovetail.model.errors import JournalDamaged, JournalError

if TYPE_CHECKING:
    import pyarrow as pa

SCRATCH = "_scratch"
SCRATCH_AGE_S = 86_400
"""A scratch directory older than this was left by a killed process."""

MAX_KEY_CHARS = 1024
MAX_DEPTH = 8
"""Directories are listed down to this depth; the layout needs three. Anyone can nest them deeper than a stack."""
_PART = r"[A-Za-z0-9_][A-Za-z0-9_=.-]{0,254}"
_KEY = re.compile(rf"{_PART}(/{_PART})*")
_NAME = re.compile(_PART)
_COMPARE_BYTES = 1 << 20
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # a planted pipe must not block its reader


class Entry(NamedTuple):
    """An object as listed. Its `tag` changes with its bytes: an ETag, or metadata from the file system."""

    key: str
    size: int
    modified_s: float
    tag: str = ""


class Store(Protocol):
    """Whole objects under keys. A write is durable and complete when it returns. Missing objects are FileNotFoundError.

    ConnectFailed means that the store did not answer, or denied access: nothing is known then about any object.
    """

    def put_file(self, key: str, path: Path) -> None:
        """Store a file from `scratch`. An equal object may already exist; a different one is JournalDamaged."""

    def create(self, key: str, data: bytes) -> bool:
        """Store bytes only if there is no such object; False if somebody else created one, whatever its bytes."""

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        """At most `length` bytes from `start`."""

    def entry(self, key: str) -> Entry:
        """The listing entry of one object."""

    def list(self, prefix: str = "", after: str = "") -> Iterator[Entry]:
        """Objects whose keys start with `prefix` and sort after `after`, sorted by key, listed lazily."""

    def directories(self, prefix: str) -> Sequence[str]:
        """The next part of each key that starts with `prefix`, which ends in a slash, if another slash follows."""

    def delete(self, keys: Iterable[str]) -> None:
        """Delete objects; missing ones are ignored."""

    def open(self, key: str) -> pa.NativeFile:
        """Open an object for random access."""

    def url(self, key: str) -> str:
        """The URL of the object for Spark. Spark follows links, so pass only keys that `open` accepts."""

    def scratch(self) -> AbstractContextManager[Path]:
        """A local directory for files being written, removed at the end."""


def check_key(key: str) -> str:
    """Return the key; JournalDamaged if it is not relative and plain."""
    if len(key) > MAX_KEY_CHARS or _KEY.fullmatch(key) is None:
        raise JournalDamaged(f"{key[:200]!r} is not a key of the lake")
    return key


@dataclass(frozen=True, slots=True)
class LocalStore:
    """A directory. Files and directory entries are fsynced before a write returns.

    What cannot be read for lack of permission is treated like any other damage: it concerns that object alone.
    """

    root: Path

    def __str__(self) -> str:
        return str(self.root)

    def put_file(self, key: str, path: Path) -> None:
        """Link a `scratch` file to its key. An equal object may exist already; a different one is JournalDamaged."""
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
            if not self._link(path, key) and not self._is_equal(key, descriptor):
                raise JournalDamaged(f"{self.root / key} exists with different bytes")
        finally:
            os.close(descriptor)

    def create(self, key: str, data: bytes) -> bool:
        """Store bytes only if there is no such object; False if there is one, whatever its bytes."""
        with self.scratch() as directory:
            path = directory / "object"
            with path.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            return self._link(path, key)

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        """At most `length` bytes from `start`."""
        with self._opened(key) as descriptor:
            rest = max(0, os.fstat(descriptor).st_size - start)
            wanted = rest if length is None else min(length, rest)
            parts = []
            while wanted and (part := os.pread(descriptor, wanted, start)):
                parts.append(part)
                start, wanted = start + len(part), wanted - len(part)
            return b"".join(parts)

    def entry(self, key: str) -> Entry:
        """The listing entry of one object."""
        with self._opened(key) as descriptor:
            return _entry(key, os.fstat(descriptor))

    def list(self, prefix: str = "", after: str = "") -> Iterator[Entry]:
        """Objects whose keys start with `prefix` and sort after `after`, in order. Only plain files are objects."""
        directory, slash, beginning = prefix.rpartition("/")
        try:
            with self._directory(directory) as descriptor:
                for entry in _walk(descriptor, directory + slash, beginning):
                    if entry.key > after and not entry.key.startswith(f"{SCRATCH}/"):
                        yield entry
        except (FileNotFoundError, JournalDamaged):
            return

    def directories(self, prefix: str) -> Sequence[str]:
        """The directories in a directory that have plain names, and what is in the place of one: a link or a pipe."""
        try:
            with self._directory(prefix.removesuffix("/")) as descriptor, os.scandir(descriptor) as found:
                names = [entry.name for entry in found if not entry.is_file(follow_symlinks=False)]
        except (FileNotFoundError, JournalDamaged):
            return []
        return sorted(name for name in names if _NAME.fullmatch(name) and prefix + name != SCRATCH)

    def delete(self, keys: Iterable[str]) -> None:
        """Delete objects; missing ones are ignored."""
        names: dict[str, list[str]] = {}
        for key in keys:
            directory, _, name = check_key(key).rpartition("/")
            names.setdefault(directory, []).append(name)
        for directory, inside in names.items():
            with contextlib.suppress(FileNotFoundError), self._directory(directory) as descriptor:
                for name in inside:
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(name, dir_fd=descriptor)
                os.fsync(descriptor)

    def open(self, key: str) -> pa.NativeFile:
        """Open an object for random access."""
        import pyarrow as pa  # loaded only if files are read: servers need only manifests

        with self._opened(key) as descriptor:
            return pa.OSFile(f"/dev/fd/{descriptor}")

    def url(self, key: str) -> str:
        """The path of the object."""
        return str(self.root / check_key(key))

    @contextlib.contextmanager
    def scratch(self) -> Iterator[Path]:
        """A directory on the lake's file system. Those left by killed processes are removed after SCRATCH_AGE_S."""
        name = f"{os.getpid()}-{secrets.token_hex(6)}"
        with self._directory(SCRATCH, is_made=True) as descriptor:
            _remove_abandoned(descriptor)
            os.mkdir(name, DIRECTORY_MODE, dir_fd=descriptor)
            try:
                yield self.root / SCRATCH / name
            finally:
                shutil.rmtree(name, dir_fd=descriptor)

    def _link(self, path: Path, key: str) -> bool:
        """Durably give a synced file a second name; False if the name exists."""
        directory, _, name = check_key(key).rpartition("/")
        with self._directory(directory, is_made=True) as descriptor:
            try:
                os.link(path, name, dst_dir_fd=descriptor, follow_symlinks=False)
            except FileExistsError:
                return False
            except OSError as error:
                if error.errno in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS):
                    raise JournalError(f"{self.root}: its file system has no hard links, which a lake needs") from None
                raise
            os.fsync(descriptor)
            return True

    def _is_equal(self, key: str, descriptor: int) -> bool:
        with self._opened(key) as other:
            size = os.fstat(descriptor).st_size
            return size == os.fstat(other).st_size and all(
                os.pread(descriptor, _COMPARE_BYTES, start) == os.pread(other, _COMPARE_BYTES, start)
                for start in range(0, size, _COMPARE_BYTES)
            )

    @contextlib.contextmanager
    def _opened(self, key: str) -> Iterator[int]:
        directory, _, name = check_key(key).rpartition("/")
        with self._directory(directory) as parent:
            descriptor = self._open_at(parent, name, _FILE, key)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise JournalDamaged(f"{self.root / key} is not a plain file")
            yield descriptor
        finally:
            os.close(descriptor)

    @contextlib.contextmanager
    def _directory(self, key: str, *, is_made: bool = False) -> Iterator[int]:
        """Open the directory of this key component by component from the root; the root itself may be a link."""
        if is_made:
            make_private_directory(self.root)
        descriptor = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for part in check_key(key).split("/") if key else ():
                if is_made:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(part, dir_fd=descriptor)
                        os.fsync(descriptor)
                child = self._open_at(descriptor, part, _DIRECTORY, key)
                os.close(descriptor)
                descriptor = child
            yield descriptor
        finally:
            os.close(descriptor)

    def _open_at(self, directory: int, name: str, flags: int, key: str) -> int:
        try:
            return os.open(name, flags, dir_fd=directory)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.ENXIO):
                raise JournalDamaged(f"{self.root / key}: {name} is a link or not of the expected kind") from None
            if error.errno == errno.EACCES:
                raise JournalDamaged(f"{self.root / key}: {name} cannot be opened: {error.strerror}") from None
            raise


def _walk(descriptor: int, prefix: str, beginning: str) -> Iterator[Entry]:
    """Plain files below a directory, in key order; `beginning` limits the names in this one."""
    with os.scandir(descriptor) as found:
        entries = [entry for entry in found if entry.name.startswith(beginning) and _NAME.fullmatch(entry.name)]
    names = {entry.name + ("/" if entry.is_dir(follow_symlinks=False) else ""): entry for entry in entries}
    for name, entry in sorted(names.items()):
        # deleted or replaced since it was listed, or not for us to read
        with contextlib.suppress(FileNotFoundError, NotADirectoryError, PermissionError):
            if name.endswith("/"):
                if prefix.count("/") == MAX_DEPTH:
                    continue
                child = os.open(entry.name, _DIRECTORY, dir_fd=descriptor)
                try:
                    yield from _walk(child, prefix + name, "")
                finally:
                    os.close(child)
            elif entry.is_file(follow_symlinks=False):
                yield _entry(prefix + name, entry.stat(follow_symlinks=False))


def _entry(key: str, status: os.stat_result) -> Entry:
    # the inode change time: unlike the modification time, no program can set it back
    return Entry(key, status.st_size, status.st_mtime, f"{status.st_ino}-{status.st_size}-{status.st_ctime_ns}")


def _remove_abandoned(scratch: int) -> None:
    oldest_s = time.time() - SCRATCH_AGE_S
    with os.scandir(scratch) as found:
        for entry in found:
            with contextlib.suppress(FileNotFoundError):
                if entry.is_dir(follow_symlinks=False) and entry.stat(follow_symlinks=False).st_mtime < oldest_s:
                    with contextlib.suppress(RecursionError):  # what was nested deeper than a stack stays
                        shutil.rmtree(entry.name, ignore_errors=True, dir_fd=scratch)
