"""A store that ends its process at one call, and code that runs until then."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dovetail.lake.store import Store


class Killed(BaseException):
    """The process ended here."""


class DyingStore:
    """Dies at one call: before it, or after its effect. From then on nothing works, not even clean-up."""

    def __init__(self, inner: Store, dies_at: int, *, is_after: bool) -> None:
        self._inner, self._dies_at, self._is_after = inner, dies_at, is_after
        self._calls = 0

    def __str__(self) -> str:
        return str(self._inner)

    def _count(self, act: Callable[[], Any]) -> Any:
        self._calls += 1
        if self._calls > self._dies_at or (self._calls == self._dies_at and not self._is_after):
            raise Killed
        result = act()
        if self._calls == self._dies_at:
            raise Killed
        return result

    @contextlib.contextmanager
    def scratch(self):
        with self._inner.scratch() as directory:
            inside = Path(tempfile.mkdtemp(dir=directory.parent))  # a killed process cleans nothing up
        yield inside

    def put_file(self, key, path):
        return self._count(lambda: self._inner.put_file(key, path))

    def create(self, key, data):
        return self._count(lambda: self._inner.create(key, data))

    def get(self, key, start=0, length=None):
        return self._count(lambda: self._inner.get(key, start, length))

    def entry(self, key):
        return self._count(lambda: self._inner.entry(key))

    def list(self, prefix="", after=""):
        return iter(self._count(lambda: list(self._inner.list(prefix, after))))

    def directories(self, prefix):
        return self._count(lambda: self._inner.directories(prefix))

    def delete(self, keys):
        return self._count(lambda: self._inner.delete(list(keys)))

    def open(self, key):
        return self._count(lambda: self._inner.open(key))

    def url(self, key):
        return self._inner.url(key)


def die(store: Store, act: Callable[[Store], object], call: int, *, is_after: bool) -> bool:
    """Run until this call to the store; False if it ended before."""
    try:
        act(DyingStore(store, call, is_after=is_after))
    except Killed:
        return True
    return False
