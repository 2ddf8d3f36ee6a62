"""A file system for SQLite that records every write and fsync, so that a power cut can be staged after any of them.

The real work is done by SQLite's own VFS. Every operation that changes a file is also logged; `disk_after` then builds
the disk as it may look after a power cut at the n-th operation: fsynced data is there, and any part of the rest.
"""

from __future__ import annotations

import contextlib
import random
import sqlite3
from pathlib import Path

import apsw

_NAME = "dovetail-faults"


class Disk:
    """The log of operations on all files of one directory, and the faults to inject."""

    def __init__(self) -> None:
        self.log: list[tuple[str, str, int, bytes]] = []
        self.fail_at: int | None = None
        self.failure = apsw.SQLITE_FULL

    def record(self, operation: str, path: str, offset: int = 0, data: bytes = b"") -> None:
        if self.fail_at is not None and len(self.log) == self.fail_at:
            self.fail_at = None
            raise apsw.exception_for(self.failure)
        self.log.append((operation, Path(path).name, offset, data))

    def disk_after(self, count: int, keep: str, rng: random.Random) -> dict[str, bytes]:
        """Files after the first `count` operations; of unsynced writes `keep` none, all or some, one of them torn."""
        durable: dict[str, bytearray] = {}
        unsynced: dict[str, list[tuple[str, int, bytes]]] = {}
        for operation, name, offset, data in self.log[:count]:
            if operation == "delete":
                durable.pop(name, None)
                unsynced.pop(name, None)
            elif operation == "sync":
                content = durable.setdefault(name, bytearray())
                for change in unsynced.pop(name, []):
                    _apply(content, *change)
            else:
                unsynced.setdefault(name, []).append((operation, offset, data))
        for name, changes in unsynced.items():
            content = durable.setdefault(name, bytearray())
            for change in _survivors(changes, keep, rng):
                _apply(content, *change)
        return {name: bytes(content) for name, content in durable.items()}

    def connect(self, path: Path) -> Adapter:
        """A connection whose file operations go through this disk."""
        vfs = _Vfs(self)
        return Adapter(apsw.Connection(str(path), vfs=_NAME), vfs)


def _survivors(changes, keep, rng):
    if keep == "all":
        return changes
    if keep == "none":
        return []
    chosen = [change for change in changes if rng.random() < 0.5]
    if chosen and chosen[-1][0] == "write":
        operation, offset, data = chosen[-1]
        chosen[-1] = (operation, offset, data[: rng.randrange(len(data) + 1)])
    return chosen


def _apply(content: bytearray, operation: str, offset: int, data: bytes) -> None:
    if operation == "truncate":
        del content[offset:]
        content.extend(bytes(offset - len(content)))
    else:
        if len(content) < offset:
            content.extend(bytes(offset - len(content)))
        content[offset : offset + len(data)] = data


class _File(apsw.VFSFile):
    def __init__(self, disk: Disk, name, flags) -> None:
        super().__init__("", name, flags)
        self._disk = disk
        self._name = name if isinstance(name, str) else name.filename()

    def xWrite(self, data, offset):
        self._disk.record("write", self._name, offset, bytes(data))
        super().xWrite(data, offset)

    def xTruncate(self, size):
        self._disk.record("truncate", self._name, size)
        super().xTruncate(size)

    def xSync(self, flags):
        self._disk.record("sync", self._name)
        super().xSync(flags)


class _Vfs(apsw.VFS):
    def __init__(self, disk: Disk) -> None:
        super().__init__(_NAME, "")
        self._disk = disk

    def xOpen(self, name, flags):
        return _File(self._disk, name, flags)

    def xDelete(self, filename, syncdir):
        self._disk.record("delete", filename)
        super().xDelete(filename, syncdir)


class Adapter:
    """An apsw connection that behaves and fails like the sqlite3 module's."""

    def __init__(self, connection: apsw.Connection, vfs: _Vfs) -> None:
        self._connection = connection
        self._vfs = vfs

    def execute(self, sql, parameters=()):
        return self._run(self._connection.execute, sql, tuple(parameters))

    def executemany(self, sql, parameters):
        return self._run(self._connection.executemany, sql, list(parameters))

    def executescript(self, sql):
        return self._run(self._connection.execute, sql)

    def close(self):
        # the module's close reports no error either
        with contextlib.suppress(apsw.Error):
            self._connection.close()
        self._vfs.unregister()

    @staticmethod
    def _run(call, *arguments):
        try:
            return call(*arguments)
        except apsw.Error as error:
            translated = sqlite3.OperationalError(str(error))
            translated.sqlite_errorcode = getattr(error, "extendedresult", None) or error.result
            raise translated from error
