"""Writes a journal, one commit at a time, in the calling thread.

One call of `append` is one SQLite transaction: new names, new messages with their bytes, and a single row with all hops
of the call. What is needed only for lookups (address and hop indexes) or for proofs (the tree) is written later, in
bulk, by `index` and `checkpoint`, so that the commit touches few pages. The tree grows in memory from the committed
data that is still at hand; nothing is read back for it. Counters in memory advance only after the transaction has
committed: a failed append leaves nothing behind and can be retried.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from dovetail.fabrics import name_of
from dovetail.journal.addresses import AddressIndex
from dovetail.journal.catalogue import Batch, Catalogue, Limits
from dovetail.journal.continuity import Known, advising, check_writable
from dovetail.journal.database import (
    SCHEMA,
    SQLITE_ERRORS,
    Connect,
    Connection,
    check_format,
    connect_writer,
    is_new,
    prepare_writer,
    translate,
)
from dovetail.journal.durable_file import sync_directory
from dovetail.journal.encoding import Entries, hash_entries
from dovetail.journal.high_water import MarkFile, mark_path, open_beside
from dovetail.journal.layout import crc32
from dovetail.journal.messages import MessageRow, StoredMessage, encode_messages
from dovetail.journal.reader import HAS_MARK, HAS_MARK_VALUE, JournalReader
from dovetail.journal.slewing import SLACK_US, Slewing
from dovetail.journal.stored_tree import GrowingTree, JournalTree
from dovetail.keys.files import PRIVATE_MODE, make_private_directory
from dovetail.model.errors import JournalDamaged, JournalError, JournalLocked
from dovetail.model.hop import Hop, Observation, Stage
from dovetail.tlog.checkpoint import Checkpoint, SignedCheckpoint, sign_checkpoint
from dovetail.tlog.keys import Signer

Durability = Literal["full", "relaxed"]

MAX_BLOCKS_UNSTORED = 1024
_SYNCHRONOUS = {"full": "FULL", "relaxed": "NORMAL"}
BEFORE_ALL_TIME_US = -(1 << 62)


class JournalWriter:
    """The only writer of one journal file. Not thread-safe; `Journal` shares it among many callers.

    `broken` is the disk failure that made it unusable, if any; reopening the file recovers.
    """

    def __init__(
        self,
        path: Path,
        lock: int,
        connection: Connection,
        mark: MarkFile,
        signer: Signer,
        durability: Durability,
        limits: Limits,
    ) -> None:
        self.path = path
        self._durability = durability
        self._limits = limits
        self._lock = lock
        self._connection = connection
        self._signer = signer
        self.broken: JournalError | None = None
        self.reader = JournalReader(connection, path)
        self._size: int
        self._last_at_us: int
        last = self.reader.one(
            "SELECT first_seq + count, last_at_us, first_seq, crc FROM commits ORDER BY first_seq DESC LIMIT 1"
        ) or (0, BEFORE_ALL_TIME_US, 0, 0)
        self.reader.check_types(last, "commits", int, int, int, int)
        self._size, self._last_at_us = last[:2]
        self._last_commit: tuple[int, int] = last[2:]
        self._indexed_seq = self.reader.progress("indexed_seq")
        self._addresses = AddressIndex(self.reader)
        self._catalogue = Catalogue(self.reader, self._addresses, limits)
        self._unindexed_expiries: dict[int, int] = {}
        self._unindexed_hops: list[tuple[int, int]] = []
        self._unhashed: Entries | None = None
        self._slewing = Slewing()
        self._restore_unindexed()
        self._tree: GrowingTree | None = None
        with contextlib.suppress(JournalDamaged):  # every requested checkpoint reports it
            self._tree = self._load_tree()
        self._mark = mark
        self._start_mark()

    @classmethod
    def open(
        cls,
        path: Path,
        *,
        server: str,
        signer: Signer,
        durability: Durability = "full",
        connect: Connect = connect_writer,
        limits: Limits | None = None,
        known: Iterable[Known] = (),
    ) -> Self:
        """Open or create the journal of `server` at `path`; recovers from a crash.

        Raises JournalLocked if another process writes it, JournalError if it belongs to another server or key,
        JournalRolledBack if it lacks hops that it had according to its high-water mark or to `known`.
        """
        if signer.name != server:
            raise JournalError(f"the signing key is named {signer.name}, expected {server}")
        make_private_directory(path.parent)
        with advising(path), contextlib.ExitStack() as opened:
            lock = take_lock(path)
            opened.callback(os.close, lock)
            # over a read-only connection: what was cut off may still be of use
            check_writable(path, signer.verifier, known)
            try:
                # SQLite would create it readable by others; its log gets the mode of the file
                os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE_MODE))
                connection = connect(path)
                opened.callback(connection.close)
                prepare_writer(connection)
                _create_or_check(connection, path, server, signer)
                connection.execute(f"PRAGMA synchronous = {_SYNCHRONOUS[durability]}")
                mark = MarkFile.open(path, signer.verifier)
                opened.callback(mark.close)
                writer = cls(path, lock, connection, mark, signer, durability, limits or Limits())
            except SQLITE_ERRORS as error:
                raise translate(error, path) from error
            except OSError as error:
                raise JournalError(f"cannot open {path}: {error.strerror or error}") from error
            opened.pop_all()
        return writer

    def close(self) -> None:
        """Close the file. What was appended is kept. Idempotent."""
        if self._lock >= 0:
            self._connection.close()
            self._mark.close()
            os.close(self._lock)
            self._lock = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def size(self) -> int:
        """How many hops have been appended."""
        return self._size

    def hops(self, first: int = 0, end: int | None = None) -> Iterator[Hop]:
        """Hops from `first` up to but excluding `end`."""
        return self.reader.hops(first, end)

    def append(self, observations: Sequence[Observation]) -> int:
        """Commit the hops of these observations; with full durability they are fsynced on return.

        Returns the journal's size. On JournalFull nothing was appended and the call can be retried. After any other
        disk failure it is unknown what is durable: the writer then refuses to continue until it is reopened.
        """
        size = self.commit(observations)
        self.grow()
        if self.is_index_due:
            self.index()
        return size

    def commit(self, observations: Sequence[Observation]) -> int:
        """`append` without hashing and indexing, for callers that call `grow` and `index` themselves."""
        if observations:
            self._commit(observations)
        return self._size

    def purge_bodies(self, messages: Sequence[MessageRow], now_us: int) -> int:
        """Delete the bytes of these messages and append a `purged` hop for each, in one transaction.

        The caller has checked that they are expired and below a checkpoint. Returns the journal's size.
        """
        if messages:
            self.index()
            self._commit(
                [Observation(at_us=now_us, stage=Stage.PURGED, message=row.address) for row in messages],
                purged=messages,
            )
        return self._size

    def _commit(self, observations: Sequence[Observation], purged: Sequence[MessageRow] = ()) -> None:
        self.grow()
        if observations[0].at_us < self._last_at_us - SLACK_US:
            observations = self._slewing.correct(observations, self._last_at_us)
        batch = self._catalogue.encode(observations, self._size, self._last_at_us)
        count, runs, rows = batch.end - self._size, batch.runs, batch.rows
        row = (self._size, count, batch.first_at_us, batch.last_at_us, batch.body_bytes, crc32(runs), runs)
        with _Transaction(self):
            if batch.names:
                self._connection.executemany("INSERT INTO names (name, id) VALUES (?, ?)", batch.names.items())
            if rows:
                self._connection.execute(
                    "INSERT INTO messages VALUES (?, ?, ?, ?, ?)",
                    (self._catalogue.next_message, len(batch.addresses), self._size, crc32(rows), rows),
                )
            if batch.bodies:
                self._replace({message_id: StoredMessage(*body) for message_id, body in batch.bodies.items()})
            if purged:
                self._replace({row.id: _without_bytes(row) for row in purged})
            self._connection.execute("INSERT INTO commits VALUES (?, ?, ?, ?, ?, ?, ?)", row)
        self._note_unindexed(batch)
        self._catalogue.accept(batch)
        self._unhashed = batch.entries
        self._last_commit = row[0], row[5]
        self._size = batch.end
        self._last_at_us = batch.last_at_us
        self._note_mark(is_synced=self._durability == "full", with_sync=False)

    def _replace(self, changes: dict[int, StoredMessage]) -> None:
        """Rewrite rows of messages with some messages changed."""
        pending = sorted(changes)
        while pending:
            block = self.reader.block_with(pending[0])
            inside = [message_id for message_id in pending if message_id < block.end]
            expired_us = block.expires_us
            for message_id in inside:
                block.messages[message_id - block.first_id] = changes[message_id]
            if block.end <= self._addresses.end:
                self._list_expiry(block.first_id, expired_us, block.expires_us)
            rows = encode_messages(block.messages)
            self._connection.execute(
                "UPDATE messages SET crc = ?, rows = ? WHERE first_id = ?", (crc32(rows), rows, block.first_id)
            )
            pending = pending[len(inside) :]

    def _list_expiry(self, first_id: int, before_us: int | None, now_us: int | None) -> None:
        """Change the earliest expiry by which a row of messages is listed."""
        if before_us == now_us:
            return
        if before_us is not None:
            self._connection.execute(
                "DELETE FROM expiry_index WHERE expires_us = ? AND first_id = ?", (before_us, first_id)
            )
        if now_us is not None:
            self._connection.execute("INSERT INTO expiry_index VALUES (?, ?)", (now_us, first_id))

    def _note_unindexed(self, batch: Batch) -> None:
        """Record what the lookup tables lack: messages, and hops of messages of earlier commits."""
        first_id = self._catalogue.next_message
        self._addresses.add(batch.addresses)
        if batch.expires_us is not None:
            self._unindexed_expiries[first_id] = batch.expires_us
        for message_id, body in batch.bodies.items():
            if message_id >= self._addresses.end and body[4] is not None:
                block_id = self.reader.block_with(message_id).first_id
                self._unindexed_expiries[block_id] = min(self._unindexed_expiries.get(block_id, body[4]), body[4])
        self._unindexed_hops.extend([(message_id, self._size) for message_id in batch.older])

    def _restore_unindexed(self) -> None:
        """Load what earlier runs left unindexed."""
        first_of: dict[int, int] = {}
        for block in self.reader.message_blocks(self._addresses.end):
            first_of.update(dict.fromkeys(range(block.first_id, block.end), block.first_seq))
            self._addresses.add([message.address for message in block.messages])
            if block.expires_us is not None:
                self._unindexed_expiries[block.first_id] = block.expires_us
        for commit in self.reader.commits(self._indexed_seq):
            for message_id in {run.message_id for run in commit.runs}:
                if first_of.get(message_id) != commit.first_seq:
                    self._unindexed_hops.append((message_id, commit.first_seq))

    @property
    def _last_message(self) -> int:
        return self._catalogue.next_message - 1

    @property
    def is_index_due(self) -> bool:
        """True if enough has been appended for `index` to be worth a transaction."""
        return (
            len(self._addresses.waiting) >= self._limits.index_after_messages
            or len(self._unindexed_hops) >= self._limits.index_after_runs
        )

    def index(self) -> None:
        """Bring the lookup tables up to date; idempotent."""
        if self._indexed_seq == self._size:
            return
        expiries = sorted((expires_us, first_id) for first_id, expires_us in self._unindexed_expiries.items())
        with _Transaction(self):
            runs = self._addresses.insert(self._connection)
            self._connection.executemany("INSERT INTO expiry_index VALUES (?, ?)", expiries)
            self._connection.executemany("INSERT INTO hop_index VALUES (?, ?)", sorted(self._unindexed_hops))
            self._set_progress("indexed_message", self._last_message)
            self._set_progress("indexed_seq", self._size)
        self._addresses.accept(runs)
        self._indexed_seq = self._size
        self._unindexed_expiries.clear()
        self._unindexed_hops.clear()
        self._catalogue.shrink()

    def grow(self) -> None:
        """Hash the last commits into the tree; idempotent. Signs and stores it after much growth."""
        unhashed, self._unhashed = self._unhashed, None
        if unhashed is None or self._tree is None:
            return
        self._tree.extend(hash_entries(unhashed))
        if len(self._tree.growth.blocks) >= MAX_BLOCKS_UNSTORED:
            self.checkpoint()

    def _load_tree(self) -> GrowingTree:
        """The tree over all hops, from its stored part and the hops after that."""
        stored = JournalTree(self.reader)
        tree = stored.stored()
        for leaves in stored.leaf_hashes(tree.size, self._size):
            tree.extend(leaves)
        if tree.size != self._size:
            raise JournalDamaged(f"{self.path}: hops {tree.size} to {self._size - 1} are missing")
        return tree

    def checkpoint(self) -> SignedCheckpoint | None:
        """Sign the tree over all hops and store it; None if the journal is empty. Idempotent."""
        self.grow()
        latest = self.reader.latest_checkpoint()
        if self._size == 0 or (latest is not None and latest.size == self._size):
            return latest
        if self._tree is None:
            self._tree = self._load_tree()
        tree = self._tree
        checkpoint = Checkpoint(self._signer.name, tree.size, tree.root())
        signed = sign_checkpoint(checkpoint, self._signer)
        open_block = tree.open_block()
        blocks = tree.growth.blocks if open_block is None else [*tree.growth.blocks, open_block]
        with self._synced(), _Transaction(self):
            self._connection.executemany("INSERT OR REPLACE INTO blocks VALUES (?, ?, ?)", blocks)
            self._connection.executemany("INSERT INTO nodes VALUES (?, ?, ?)", tree.growth.nodes)
            self._connection.execute("INSERT INTO checkpoints VALUES (?, ?)", (checkpoint.size, signed.note))
            self._connection.execute("UPDATE progress SET value = value + 1 WHERE name = 'checkpoints'")
        tree.take_growth()
        self._mark.note_signed(tree.size, checkpoint.root)
        self._note_mark(is_synced=True)
        return signed

    @contextlib.contextmanager
    def _synced(self) -> Iterator[None]:
        """Fsync the transaction inside, and all before it, regardless of durability.

        A checkpoint may be published once it is visible: a power cut must not lose it or the hops below it.
        """
        if self._durability == "full":
            yield
            return
        self._connection.execute("PRAGMA synchronous = FULL")
        try:
            yield
        finally:
            self._connection.execute("PRAGMA synchronous = NORMAL")

    def _start_mark(self) -> None:
        """Record where writing starts; from then on the journal's identity says that it has a mark."""
        if not self.reader.identity.has_mark:  # created by an earlier version
            self._mark.note(0, 0, 0, 0, 0, is_synced=False)
            self._mark.sync()
            sync_directory(self.path.parent)
            self._connection.execute("INSERT INTO identity VALUES (?, ?)", (HAS_MARK, HAS_MARK_VALUE))
        latest = self.reader.latest_checkpoint()
        if latest is not None:
            self._mark.note_signed(latest.size, latest.root)
        self._note_mark(is_synced=False)
        if self.broken is not None:
            raise self.broken

    def _note_mark(self, *, is_synced: bool, with_sync: bool = True) -> None:
        """Record how far the journal is written. If the disk refuses that, the journal has failed."""
        messages, names = self._catalogue.next_message - 1, self._catalogue.next_name - 1
        try:
            self._mark.note(self._size, *self._last_commit, messages, names, is_synced=is_synced)
            if with_sync:
                self._mark.sync()
        except OSError as error:
            self.give_up(JournalError(f"{mark_path(self.path)} cannot be written: {error.strerror or error}"))

    def sync(self) -> None:
        """Make everything appended so far durable, regardless of durability."""
        try:
            self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        except sqlite3.Error as error:
            raise self.fail(error) from error

    def begin(self) -> None:
        """Begin a transaction, unless an earlier failure made this writer unusable."""
        if self.broken is not None:
            raise self.broken
        self._connection.execute("BEGIN IMMEDIATE")

    def end(self) -> None:
        """Commit the transaction."""
        self._connection.execute("COMMIT")

    def fail(self, error: sqlite3.Error) -> JournalError:
        """Roll back; returns the error to raise. A full disk is retriable, other failures end this writer."""
        failure = translate(error, self.path)
        self.roll_back()
        if not failure.retriable and not isinstance(failure, JournalLocked):
            self.broken = failure
        return failure

    def give_up(self, error: JournalError) -> None:
        """Refuse all further writes with this error."""
        self.broken = self.broken or error

    def roll_back(self) -> None:
        """Roll back the transaction."""
        with contextlib.suppress(sqlite3.Error):
            self._connection.execute("ROLLBACK")

    def _set_progress(self, name: str, value: int) -> None:
        self._connection.execute("UPDATE progress SET value = ? WHERE name = ?", (value, name))


class _Transaction:
    """One transaction of a writer: all or nothing; raises journal errors."""

    __slots__ = ("_writer",)

    def __init__(self, writer: JournalWriter) -> None:
        self._writer = writer

    def __enter__(self) -> None:
        try:
            self._writer.begin()
        except sqlite3.Error as error:
            raise self._writer.fail(error) from error

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self._writer.end()
                return
        except sqlite3.Error as failure:
            error = failure
        if isinstance(error, sqlite3.Error):
            raise self._writer.fail(error) from error
        self._writer.roll_back()


def _without_bytes(row: MessageRow) -> StoredMessage:
    """What remains of a purged message."""
    return StoredMessage(row.address, row.body_seq, row.size, row.digest, None, None)


def take_lock(path: Path) -> int:
    """Take a lock that the system releases when the process ends, however it ends."""
    lock_path = path.with_name(path.name + ".lock")
    lock = open_beside(lock_path, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        holder = os.pread(lock, 32, 0).decode(errors="replace").strip()
        os.close(lock)
        raise JournalLocked(f"{path} is being written by process {holder or 'unknown'}") from None
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
    return lock


def _create_or_check(connection: Connection, path: Path, server: str, signer: Signer) -> None:
    expected = {"server": server, "fabric": name_of(server), "key": signer.verifier.text()}
    if is_new(connection, path):
        connection.execute("PRAGMA synchronous = FULL")
        connection.executescript(f"BEGIN IMMEDIATE; {SCHEMA}")
        connection.executemany(
            "INSERT INTO identity VALUES (?, ?)", sorted({**expected, HAS_MARK: HAS_MARK_VALUE}.items())
        )
        connection.execute("COMMIT")
        return
    check_format(connection, path)
    found = dict(connection.execute("SELECT name, value FROM identity").fetchall())
    for name, value in expected.items():
        if found.get(name) != value:
            raise JournalError(f"{path} is the journal of {name} {found.get(name)}, expected {value}")
