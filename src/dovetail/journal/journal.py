"""One journal shared by many callers: group commit, checkpoints off the hot path, two durability levels.

Theory of operation. Callers put observations on a bounded queue and wait. A single writer thread takes everything that
is queued, up to a limit, commits it as one transaction with one fsync, and wakes all callers whose hops were in it; the
next group gathers while it waits for the disk. So a slow disk costs each caller one or two fsyncs, however many callers
there are. A commit is the unit in which a journal is read and proven: the limit keeps both fast after a burst.

The writer hashes what it committed after waking its waiters. A second thread requests a signed checkpoint every few
seconds.

    durability  `commit` calls back        killed process loses   power cut loses
    full        after the fsync            nothing acknowledged   nothing acknowledged
    relaxed     at once                    at most the last `relaxed_flush_ms`
                                                                  at most the last `relaxed_sync_s`

`commit` is for servers: it never blocks, and calls back. `append` is for tools: it blocks. While the disk is full, or
another process holds the file, the writer retries until it can write; `stalled` says why it waits. After any other disk
failure, or if the file is removed or replaced, this journal has failed: every call is refused until it is reopened, and
`on_failure` is called, since with relaxed durability nobody may be waiting. The queue is bounded by bytes.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Self

import msgspec

from dovetail.journal.checkpointer import Checkpointer
from dovetail.journal.continuity import Known, advising
from dovetail.journal.reader import JournalReader
from dovetail.journal.writer import Durability, JournalWriter
from dovetail.model.address import Address
from dovetail.model.durations import Durations
from dovetail.model.errors import DovetailError, JournalError, JournalFull, JournalLocked
from dovetail.model.hop import Hop, Observation
from dovetail.tlog.checkpoint import SignedCheckpoint
from dovetail.tlog.keys import Signer

log = logging.getLogger("dovetail.journal")

MAX_GROUP_BYTES = 1 << 20
_HOP_COST_BYTES = 64
_RETRY_S = 0.5
_COMMIT_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)


class JournalOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of one journal; set by the `[journal]` section of the configuration."""

    durability: Durability = "full"
    checkpoint_interval_s: float = 5.0
    max_queue_bytes: int = 64 << 20
    relaxed_flush_ms: int = 20
    relaxed_sync_s: float = 1.0
    max_clock_jump_s: float = 60.0


class _Waiter:
    """A thread that waits until hops are durable, and wants to be told if the disk is full."""

    __slots__ = ("_done", "_error", "_size")

    def __init__(self) -> None:
        self._done = threading.Event()
        self._size = 0
        self._error: DovetailError | None = None

    def finish(self, size: int, error: DovetailError | None) -> None:
        self._size, self._error = size, error
        self._done.set()

    def wait(self) -> int:
        self._done.wait()
        if self._error is not None:
            raise self._error
        return self._size


Done = Callable[[JournalError | None], None]
_Item = tuple[Sequence[Observation], "_Waiter | Done | None", int, float]
"""Observations, who waits for them, their cost in the queue, and when they were queued."""
_Job = Callable[[JournalWriter], None]


class Journal:
    """A journal open for writing. Thread-safe."""

    def __init__(self, writer: JournalWriter, options: JournalOptions) -> None:
        self.path = writer.path
        self.identity = writer.reader.identity
        self.commit_times = Durations(_COMMIT_BOUNDS_S)
        self.wait_times = Durations(_COMMIT_BOUNDS_S)
        """Per group, how long its first observation waited in the queue and for the commit."""
        self._writer = writer
        self._options = options
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._room = threading.Condition(self._lock)
        self._items: list[_Item] = []
        self._waiting = 0
        self._queue_bytes = 0
        self._queued = 0
        self._stalled: JournalError | None = None
        self._is_failure_told = False
        self._jobs: list[tuple[int, _Job]] = []
        self._is_closing = False
        self._closing = threading.Event()
        self.on_failure: Callable[[JournalError], None] | None = None
        """Called once, from one of the journal's threads, with the error that made it fail permanently."""
        self._reader_of_thread = threading.local()
        self._readers: list[JournalReader] = []
        self._checkpointer = Checkpointer(self)
        self._writing = threading.Thread(target=self._write_loop, name=f"journal {self.path.name}", daemon=True)
        self._writing.start()
        self._checkpointer.start(options.checkpoint_interval_s)

    @classmethod
    def open(
        cls,
        path: Path,
        *,
        server: str,
        signer: Signer,
        options: JournalOptions | None = None,
        known: Iterable[Known] = (),
    ) -> Self:
        """Open or create the journal of `server` and start its threads; the caller must `close` it.

        Raises like `JournalWriter.open`; `known` is what others know of it.
        """
        options = options or JournalOptions()
        writer = JournalWriter.open(path, server=server, signer=signer, durability=options.durability, known=known)
        return cls(writer, options)

    def commit(self, observations: Sequence[Observation], done: Done) -> None:
        """Append; `done` is called once they are durable, or with the error that made this journal fail.

        With relaxed durability it is called before this returns, unless the disk accepts no writes now or the queue is
        full. Otherwise one of the journal's threads calls it; it must not raise.
        """
        cost = _cost_of(observations)
        with self._lock:
            refusal = self._refusal()
            is_waiting = self._options.durability == "full" or self._is_full(cost) or self._stalled is not None
            if refusal is None:
                self._enqueue(observations, done if is_waiting else None, cost)
        if refusal is not None or not is_waiting:
            done(refusal)

    def append(self, observations: Sequence[Observation]) -> int:
        """Append and wait until it is durable; returns the journal's size. Not for use inside an event loop.

        Raises JournalFull if the disk is full: nothing was appended, and the call can be retried.
        """
        waiter, cost = _Waiter(), _cost_of(observations)
        with self._lock:
            self._room.wait_for(lambda: self._is_closing or not self._is_full(cost))
            refusal = self._refusal()
            if refusal is not None:
                raise refusal
            self._enqueue(observations, waiter, cost)
        return waiter.wait()

    def flush(self) -> int:
        """Wait until everything queued so far is durable; returns the journal's size.

        Raises JournalFull if the disk is full: the data stays in the queue.
        """
        self.call(JournalWriter.sync)
        if self._stalled is not None:
            raise JournalFull(f"no room left for {self.path}: {self._queue_bytes} bytes wait for it")
        return self.size

    def checkpoint(self) -> SignedCheckpoint | None:
        """Sign a checkpoint over everything committed so far; None if the journal is empty."""
        return self._checkpointer.checkpoint()

    def call(self, job: Callable[[JournalWriter], object]) -> None:
        """Run `job` between two commits with exclusive use of the writer; blocks. For checkpoints and purging."""
        waiter = _Waiter()

        def run(writer: JournalWriter) -> None:
            try:
                job(writer)
                waiter.finish(writer.size, None)
            except Exception as error:
                waiter.finish(0, self._named(error))

        with self._lock:
            if self._is_closing:
                raise JournalError(f"{self.path} is closed")
            self._jobs.append((self._queued, run))
            self._work.notify()
        waiter.wait()

    @property
    def size(self) -> int:
        """How many hops have been committed."""
        return self._writer.size

    @property
    def max_clock_jump_s(self) -> float:
        """How far a single reading of the server's clock may jump ahead."""
        return self._options.max_clock_jump_s

    @property
    def queue_bytes(self) -> int:
        """How many bytes are waiting to be committed."""
        return self._queue_bytes

    @property
    def stalled(self) -> JournalError | None:
        """Why nothing can be written now, if so: the disk is full, or another process holds the file."""
        return self._stalled

    @property
    def failure(self) -> JournalError | None:
        """The disk failure that ended this journal, if any."""
        return self._writer.broken

    @property
    def checkpoint_age_s(self) -> float:
        """Seconds since a checkpoint last covered every committed hop; initially, since the journal was opened."""
        return self._checkpointer.age_s

    def hops(self, first: int = 0, end: int | None = None) -> Iterator[Hop]:
        """Committed hops from `first` up to but excluding `end`."""
        with advising(self.path):
            yield from self.reader.hops(first, end)

    def hops_of(self, address: Address) -> list[Hop]:
        """All committed hops of one message."""
        return self.reader.hops_of(address)

    def raw(self, address: Address) -> bytes | None:
        """The bytes of one message, if they are stored."""
        return self.reader.raw(address)

    @property
    def reader(self) -> JournalReader:
        """A reader for the calling thread."""
        reader: JournalReader | None = getattr(self._reader_of_thread, "reader", None)
        if reader is None:
            reader = self._reader_of_thread.reader = JournalReader.open(self.path)
            with self._lock:
                self._readers.append(reader)
        return reader

    def close(self) -> None:
        """Commit what is queued, sign a last checkpoint, stop the threads. Idempotent."""
        self._checkpointer.stop()
        with self._lock:
            if self._is_closing:
                return
            self._is_closing = True
            self._closing.set()
            self._work.notify()
            self._room.notify_all()
        self._writing.join()
        if self.failure is None:
            self._finish_file()
        for reader in self._readers:
            reader.close()
        self._writer.close()

    def wait_closing(self, timeout_s: float) -> bool:
        """Wait at most `timeout_s` until `close` is called; True if it was. For threads that work beside the writer."""
        return self._closing.wait(timeout_s)

    def _finish_file(self) -> None:
        try:
            self._writer.index()
            self._writer.checkpoint()
            self._writer.sync()
        except DovetailError as error:
            log.warning("journal %s: closed before everything was written: %s", self.path, error)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _is_full(self, cost: int) -> bool:
        """True if the queue has no room for this; a single append above the limit is still accepted, alone."""
        return bool(self._queue_bytes) and self._queue_bytes + cost > self._options.max_queue_bytes

    def _refusal(self) -> JournalError | None:
        return JournalError(f"{self.path} is closed") if self._is_closing else self.failure

    def _enqueue(self, observations: Sequence[Observation], waiter: _Waiter | Done | None, cost: int) -> None:
        is_first = not self._items
        self._items.append((observations, waiter, cost, time.perf_counter()))
        self._queued += 1
        self._queue_bytes += cost
        if waiter is not None:
            self._waiting += 1
        if is_first or waiter is not None:
            self._work.notify()

    def _write_loop(self) -> None:
        synced_at = time.monotonic()
        is_relaxed = self._options.durability == "relaxed"
        while True:
            items, jobs, is_closing = self._take()
            unwritten = self._commit(items) if items else []
            if is_closing and unwritten:
                log.error("journal %s: %d appends could not be written at closing", self.path, len(unwritten))
                _finish(unwritten, 0, self._stalled)
                unwritten = []
            with self._lock:
                self._items[:0] = unwritten
                self._waiting += sum(waiter is not None for _, waiter, _, _ in unwritten)
                self._queue_bytes -= sum(cost for _, _, cost, _ in items) - sum(cost for _, _, cost, _ in unwritten)
                is_last = is_closing and not self._items
                self._room.notify_all()
            self._catch_up(JournalWriter.grow)
            for job in jobs:
                job(self._writer)
            if self._writer.is_index_due:
                self._catch_up(JournalWriter.index)
            if is_relaxed and time.monotonic() - synced_at >= self._options.relaxed_sync_s:
                self._sync()
                synced_at = time.monotonic()
            self._report_failure()
            if is_last:
                return
            if unwritten:
                self._closing.wait(_RETRY_S)

    def _take(self) -> tuple[list[_Item], list[_Job], bool]:
        """Wait for work and take a group. If nobody waits for the disk, let the group gather first."""
        is_relaxed = self._options.durability == "relaxed"

        def is_urgent() -> bool:
            return bool(self._waiting or self._jobs or self._is_closing or self._queue_bytes >= MAX_GROUP_BYTES)

        with self._lock:
            if not (self._items or is_urgent()):
                self._work.wait(self._options.relaxed_sync_s if is_relaxed else None)
            if is_relaxed and self._items and not is_urgent():
                self._work.wait_for(is_urgent, self._options.relaxed_flush_ms / 1000)
            return self._take_group(), self._take_jobs(), self._is_closing

    def _take_group(self) -> list[_Item]:
        """The first items of the queue, as many as fit into one commit; a larger one goes alone."""
        taken, size = 0, 0
        for _, waiter, cost, _ in self._items:
            if taken and size + cost > MAX_GROUP_BYTES:
                break
            taken, size = taken + 1, size + cost
            if waiter is not None:
                self._waiting -= 1
        items = self._items[:taken]
        del self._items[:taken]
        return items

    def _take_rest(self) -> list[_Item]:
        """Take everything in the queue after the disk has failed permanently; nothing is queued after that."""
        rest: list[_Item] = []
        with self._lock:
            while self._items:
                rest += self._take_group()
            self._queue_bytes -= sum(cost for _, _, cost, _ in rest)
        return rest

    def _take_jobs(self) -> list[_Job]:
        """Take the jobs with nothing queued before them; all of them while the disk is stalled, so that none hangs."""
        passed = self._queued - len(self._items)
        ready = [job for queued, job in self._jobs if queued <= passed or self._stalled is not None]
        del self._jobs[: len(ready)]
        return ready

    def _commit(self, items: list[_Item]) -> list[_Item]:
        """Commit a group and notify the waiters; returns what could not be written now and must be retried."""
        error: JournalError | None = None
        began = time.perf_counter()
        try:
            self._writer.commit([o for observations, _, _, _ in items for o in observations])
            ended = time.perf_counter()
            self.commit_times.observe(ended - began)
            self.wait_times.observe(ended - items[0][3])
        except Exception as failure:
            error = failure if isinstance(failure, JournalError) else JournalError(str(self._named(failure)))
            if error.retriable or isinstance(error, JournalLocked):
                return self._stall(items, error)
            if len(items) > 1 and self.failure is None:
                # one of them is invalid: the others must not fail with it
                return [item for single in items for item in self._commit([single])]
        if self._stalled is not None and error is None:
            log.warning("journal %s: writing again", self.path)
            self._stalled = None
        if error is not None and self.failure is not None:
            items = [*items, *self._take_rest()]  # report everything that is lost at once
        _finish(items, self._writer.size, error)
        unwaited = sum(waiter is None for _, waiter, _, _ in items)
        if error is not None and unwaited:
            log.error("journal %s: %d appends not written: %s", self.path, unwaited, error)
        return []

    def _stall(self, items: list[_Item], error: JournalError) -> list[_Item]:
        """Nothing can be written now: notify those who asked for it, keep the rest."""
        _finish([item for item in items if isinstance(item[1], _Waiter)], 0, error)
        kept = [item for item in items if not isinstance(item[1], _Waiter)]
        if kept and self._stalled is None:
            log.warning("journal %s: waiting and retrying: %s", self.path, error)
            self._stalled = error
        return kept

    def _report_failure(self) -> None:
        if self.failure is not None and not self._is_failure_told:
            self._is_failure_told = True
            if self.on_failure is not None:
                self.on_failure(self.failure)

    def _catch_up(self, work: Callable[[JournalWriter], None]) -> None:
        """Do the work that commits have deferred."""
        try:
            work(self._writer)
        except Exception as error:
            if self.failure is None:
                why = self._named(error)
                log.warning("journal %s: its index or its checkpoints are behind: %s", self.path, why)

    def _named(self, error: Exception) -> DovetailError:
        """The error to report: the writing thread must survive whatever a damaged file makes its work raise."""
        if isinstance(error, DovetailError):
            return error
        log.exception("journal %s: unexpected error", self.path)
        return JournalError(f"{self.path}: {type(error).__name__}: {error}")

    def _sync(self) -> None:
        try:
            self._writer.sync()
        except JournalError as error:
            if self.failure is None:
                log.error("journal %s: cannot be synced: %s", self.path, error)


def _cost_of(observations: Sequence[Observation]) -> int:
    return sum([_HOP_COST_BYTES + 4 * len(o.counterparts) + (len(o.raw) if o.raw else 0) for o in observations])


def _finish(items: list[_Item], size: int, error: JournalError | None) -> None:
    """Notify all waiters."""
    for _, waiter, _, _ in items:
        if isinstance(waiter, _Waiter):
            waiter.finish(size, error)
        elif waiter is not None:
            waiter(error)
