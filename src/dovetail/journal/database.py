"""The SQLite file of a journal: its tables, how it is opened, and how its errors are translated."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote

from dovetail.model.errors import JournalDamaged, JournalError, JournalFull, JournalLocked

FORMAT = 3
APPLICATION_ID = 0x44565441  # "DVTA"
BLOCK_LEVEL = 8
BLOCK_LEAVES = 1 << BLOCK_LEVEL
CHECK_BYTES = 8
_BUSY_TIMEOUT_S = 5.0
_PAGE_BYTES = 8192
_WAL_BYTES = 16 << 20
_WAL_LIMIT_BYTES = 64 << 20

SCHEMA = f"""
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {FORMAT};
-- server, fabric, key (the C2SP verifier key)
CREATE TABLE identity (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT, WITHOUT ROWID;
-- counterparts, each text once
CREATE TABLE names (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE) STRICT;
-- messages, bytes once: one row for all that a commit brought (see messages.py)
CREATE TABLE messages (
    first_id INTEGER PRIMARY KEY, count INTEGER NOT NULL, first_seq INTEGER NOT NULL, crc INTEGER NOT NULL,
    rows BLOB NOT NULL) STRICT;
-- one row for each group commit; body_bytes are the sizes of the messages whose bytes it brought
CREATE TABLE commits (
    first_seq INTEGER PRIMARY KEY, count INTEGER NOT NULL, first_at_us INTEGER NOT NULL, last_at_us INTEGER NOT NULL,
    body_bytes INTEGER NOT NULL, crc INTEGER NOT NULL, runs BLOB NOT NULL) STRICT;
-- the tree: each block of {BLOCK_LEAVES} leaves, with the first {CHECK_BYTES} bytes of every leaf hash; the last block
-- has an empty root while it is not full
CREATE TABLE blocks (number INTEGER PRIMARY KEY, root BLOB NOT NULL, checks BLOB NOT NULL) STRICT;
-- the tree above the blocks: perfect subtrees of {BLOCK_LEAVES}^2, {BLOCK_LEAVES}^3, ... leaves
CREATE TABLE nodes (
    level INTEGER NOT NULL, number INTEGER NOT NULL, hash BLOB NOT NULL,
    PRIMARY KEY (level, number)) STRICT, WITHOUT ROWID;
-- signed notes
CREATE TABLE checkpoints (size INTEGER PRIMARY KEY, note TEXT NOT NULL) STRICT;
-- derived, written in bulk behind the commits: address -> message (see addresses.py), message -> commits but its first,
-- earliest expiry -> row of messages
CREATE TABLE address_runs (first_id INTEGER PRIMARY KEY, count INTEGER NOT NULL) STRICT;
CREATE TABLE address_index (id INTEGER PRIMARY KEY, entries BLOB NOT NULL) STRICT;
CREATE TABLE hop_index (
    message_id INTEGER NOT NULL, first_seq INTEGER NOT NULL,
    PRIMARY KEY (message_id, first_seq)) STRICT, WITHOUT ROWID;
CREATE TABLE expiry_index (
    expires_us INTEGER NOT NULL, first_id INTEGER NOT NULL,
    PRIMARY KEY (expires_us, first_id)) STRICT, WITHOUT ROWID;
-- indexed_seq, indexed_message: how far the derived tables go; checkpoints: how many there are
CREATE TABLE progress (name TEXT PRIMARY KEY, value INTEGER NOT NULL) STRICT, WITHOUT ROWID;
INSERT INTO progress VALUES ('checkpoints', 0), ('indexed_message', 0), ('indexed_seq', 0);
"""


class Connection(Protocol):
    """What the journal needs of a database connection; `sqlite3.Connection` implements it."""

    def execute(self, sql: str, parameters: Any = ..., /) -> Any: ...

    def executemany(self, sql: str, parameters: Iterable[Any], /) -> Any: ...

    def executescript(self, sql: str, /) -> Any: ...

    def close(self) -> None: ...


Connect = Callable[[Path], Connection]

SQLITE_ERRORS = (sqlite3.Error, UnicodeDecodeError, OverflowError)
"""What reading a file may raise: the second if SQLite's message quotes a damaged schema that is not text, the third if
a damaged number is larger than any that can be looked up."""


def connect_writer(path: Path) -> Connection:
    """Open a read-write connection; transactions are begun and ended explicitly."""
    return sqlite3.connect(path, timeout=_BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)


def connect_reader(path: Path) -> Connection:
    """Open a read-only connection; works while another process writes."""
    if not path.is_file():
        raise JournalError(f"no journal at {path}")
    try:
        return sqlite3.connect(
            f"file:{quote(str(path.absolute()))}?mode=ro",
            uri=True,
            timeout=_BUSY_TIMEOUT_S,
            isolation_level=None,
            check_same_thread=False,
        )
    except sqlite3.Error as error:
        raise translate(error, path) from error


def prepare_writer(connection: Connection) -> None:
    """Configure a writing connection. The writer sets `synchronous` according to its durability."""
    # only a new file takes the page size; larger pages suit rows that hold whole commits
    connection.execute(f"PRAGMA page_size = {_PAGE_BYTES}")
    connection.execute("PRAGMA journal_mode = WAL").fetchone()
    (page_bytes,) = connection.execute("PRAGMA page_size").fetchone()
    connection.execute(f"PRAGMA wal_autocheckpoint = {_WAL_BYTES // page_bytes}").fetchone()
    connection.execute(f"PRAGMA journal_size_limit = {_WAL_LIMIT_BYTES}").fetchone()
    # purged bytes are overwritten with zeros, not only unlinked
    connection.execute("PRAGMA secure_delete = ON").fetchone()


def is_new(connection: Connection, path: Path) -> bool:
    """True if nothing was ever committed to the file."""
    try:
        (tables,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    except SQLITE_ERRORS as error:
        raise translate(error, path) from error
    return not tables


def check_format(connection: Connection, path: Path) -> None:
    """Raise JournalError if the file is not a journal of a supported format."""
    try:
        (application_id,) = connection.execute("PRAGMA application_id").fetchone()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
    except SQLITE_ERRORS as error:
        raise translate(error, path) from error
    if application_id != APPLICATION_ID:
        raise JournalError(f"{path} is not a journal")
    if version != FORMAT:
        raise JournalError(
            f"{path} has journal format {version}, expected {FORMAT}: read and seal it with the version that wrote "
            "it, and begin a new file under a new name of the server"
        )


def translate(error: sqlite3.Error | UnicodeDecodeError | OverflowError, path: Path) -> JournalError:
    """Translate an SQLite error to a journal error."""
    if not isinstance(error, sqlite3.Error):
        return JournalDamaged(f"{path}: database disk image is malformed: {error}")
    code = (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF
    if code == sqlite3.SQLITE_FULL:
        return JournalFull(f"no room left for {path}: free some space")
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return JournalLocked(f"{path} is locked by another process")
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return JournalDamaged(f"{path}: {error}")
    if code == sqlite3.SQLITE_CANTOPEN:
        return JournalError(f"cannot open {path}: {error}")
    return JournalError(f"{path}: {error}")
