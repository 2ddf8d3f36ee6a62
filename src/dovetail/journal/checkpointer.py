"""Checkpoints off the hot path: hashes committed hops through a connection of its own and has them signed.

The same thread watches the journal's file. One that was removed or replaced still takes writes, but nobody can ever
read them: the journal has failed then.
"""

from __future__ import annotations

import functools
import itertools
import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from dovetail.journal.reader import JournalReader
from dovetail.journal.stored_tree import GrowingTree, JournalTree, TreeGrowth
from dovetail.journal.writer import JournalWriter
from dovetail.model.errors import DovetailError, JournalDamaged, JournalError
from dovetail.tlog.checkpoint import SignedCheckpoint

log = logging.getLogger("dovetail.journal")

MAX_HOPS_A_CHECKPOINT = 1 << 18
HOPS_A_SLICE = 512
WATCH_S = 1.0
_BREATH_S = 0.0005


class SharedJournal(Protocol):
    """What a checkpointer needs of the journal it works for."""

    path: Path

    @property
    def failure(self) -> JournalError | None: ...

    def call(self, job: Callable[[JournalWriter], object]) -> None: ...


class Checkpointer:
    """Hashes committed hops in its own thread, through its own connection, and signs checkpoints."""

    def __init__(self, journal: SharedJournal) -> None:
        self._journal = journal
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._tree: tuple[JournalReader, JournalTree, GrowingTree] | None = None
        self._file = _identify(journal.path)
        self.signed_at_s = time.time()

    def start(self, interval_s: float) -> None:
        """Sign every `interval_s` seconds, while anything is new."""
        name = f"checkpoints {self._journal.path.name}"
        self._thread = threading.Thread(target=self._loop, args=(interval_s,), name=name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread and release the connection; idempotent."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()
        with self._lock:
            self._release()

    def checkpoint(self) -> SignedCheckpoint | None:
        """Sign what is committed now; None where the journal is empty."""
        with self._lock:
            reader, tree, growing = self._tree or self._attach()
            while growing.size < (end := reader.size):
                end = min(end, growing.size + MAX_HOPS_A_CHECKPOINT)
                try:
                    growth = self._grow(tree, growing, end)
                    self._journal.call(functools.partial(_store, growing, growth))
                except BaseException:
                    # what was hashed is not stored: begin again from what is
                    self._release()
                    raise
            self.signed_at_s = time.time()
            return reader.latest_checkpoint()

    def _grow(self, tree: JournalTree, growing: GrowingTree, end: int) -> TreeGrowth:
        growth = TreeGrowth()
        # one walk over the commits, so that each is read and decoded once, however large it is
        leaves = tree.leaf_hashes(growing.size, end)
        while growing.size < end:
            before = growing.size
            part = growing.extend(itertools.islice(leaves, HOPS_A_SLICE))
            if growing.size == before:
                raise JournalDamaged(f"{self._journal.path}: hops {before} to {end - 1} are missing")
            growth.blocks += part.blocks
            growth.nodes += part.nodes
            # hashing holds the interpreter: let the callers in between two slices
            time.sleep(_BREATH_S)
        return growth

    def _attach(self) -> tuple[JournalReader, JournalTree, GrowingTree]:
        reader = JournalReader.open(self._journal.path)
        tree = JournalTree(reader)
        growing = tree.stored()
        latest = reader.latest_checkpoint()
        if latest is not None and latest.size > growing.size:
            growing.extend(tree.leaf_hashes(growing.size, latest.size))
        self._tree = (reader, tree, growing)
        return self._tree

    def _release(self) -> None:
        if self._tree is not None:
            self._tree[0].close()
            self._tree = None

    def _loop(self, interval_s: float) -> None:
        due_s = time.monotonic() + interval_s
        while not self._stopped.wait(min(interval_s, WATCH_S)):
            try:
                if _identify(self._journal.path) != self._file:
                    reason = f"{self._journal.path} was removed or replaced while it was being written"
                    self._journal.call(functools.partial(_give_up, JournalError(reason)))
                elif time.monotonic() >= due_s:
                    self.checkpoint()
            except DovetailError as error:
                log.warning("journal %s: no checkpoint: %s", self._journal.path, error)
            if self._journal.failure is not None:
                return
            if time.monotonic() >= due_s:
                due_s = time.monotonic() + interval_s


def _store(growing: GrowingTree, growth: TreeGrowth, writer: JournalWriter) -> None:
    writer.store_checkpoint(growing, growth)


def _give_up(error: JournalError, writer: JournalWriter) -> None:
    writer.give_up(error)


def _identify(path: Path) -> tuple[int, int] | None:
    """Which file lies there; None if there is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino
