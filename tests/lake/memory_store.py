"""A store in memory that counts requests like an object store: a listing is one per thousand objects."""

from __future__ import annotations

import bisect
import contextlib
import functools
import hashlib
import tempfile
from collections import Counter
from pathlib import Path

import pyarrow as pa

from dovetail.lake.store import Entry, check_key

PAGE = 1000


@functools.cache
def _tag_of(data: bytes) -> str:
    return f'"{hashlib.md5(data).hexdigest()}"'


class MemoryStore:
    """Objects in a dictionary."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.requests: Counter[str] = Counter()
        self._sorted: list[str] = []

    def put_file(self, key: str, path: Path) -> None:
        self.create(key, path.read_bytes())

    def create(self, key: str, data: bytes) -> bool:
        self.requests["put"] += 1
        if check_key(key) in self.objects:
            return False
        self.objects[key] = data
        bisect.insort(self._sorted, key)
        return True

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        self.requests["get"] += 1
        if key not in self.objects:
            raise FileNotFoundError(key)
        return self.objects[key][start : None if length is None else start + length]

    def entry(self, key: str) -> Entry:
        self.requests["head"] += 1
        return self._entry(key)

    def list(self, prefix: str = "", after: str = ""):
        position = max(bisect.bisect_right(self._sorted, after), bisect.bisect_left(self._sorted, prefix))
        self.requests["list"] += 1
        given = 0
        while position < len(self._sorted) and self._sorted[position].startswith(prefix):
            key = self._sorted[position]
            if given and given % PAGE == 0:
                self.requests["list"] += 1
            given += 1
            yield self._entry(key)
            position += 1

    def _entry(self, key: str) -> Entry:
        return Entry(key, len(self.objects[key]), 0.0, _tag_of(self.objects[key]))

    def directories(self, prefix: str):
        self.requests["list"] += 1
        rest = (key.removeprefix(prefix) for key in self._sorted if key.startswith(prefix))
        return sorted({name.partition("/")[0] for name in rest if "/" in name})

    def delete(self, keys) -> None:
        self.requests["delete"] += 1
        for key in keys:
            if self.objects.pop(key, None) is not None:
                self._sorted.remove(key)

    def open(self, key: str) -> pa.NativeFile:
        return pa.BufferReader(self.get(key))

    def url(self, key: str) -> str:
        return key

    @contextlib.contextmanager
    def scratch(self):
        with tempfile.TemporaryDirectory() as directory:
            yield Path(directory)
