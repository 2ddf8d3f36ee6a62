"""Reads a journal: hops by position, address and time, message bytes, checkpoints and the stored tree.

A reader has its own connection and works in any process, also while the journal is being written. It is not
thread-safe.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from dovetail.fabrics import check_name, fabric_named, name_of
from dovetail.journal.addresses import search_runs
from dovetail.journal.database import SQLITE_ERRORS, Connection, check_format, connect_reader, translate
from dovetail.journal.high_water import read_mark
from dovetail.journal.layout import (
    REASON_OF_CODE,
    STAGE_OF_CODE,
    Run,
    crc32,
    decode_runs,
    unpack_names,
)
from dovetail.journal.messages import MessageBlock, MessageRow, MessagesRow, decode_block
from dovetail.model.address import Address
from dovetail.model.errors import CheckpointError, JournalDamaged
from dovetail.model.hop import Hop
from dovetail.tlog.checkpoint import SignedCheckpoint, parse_checkpoint
from dovetail.tlog.keys import Verifier, parse_verifier

MAX_NAMES_CACHED = 200_000
MAX_MESSAGES_CACHED = 50_000
HAS_MARK, HAS_MARK_VALUE = "high_water", "beside"
"""What `identity` says if there is a high-water mark."""
SQL_VARIABLES = 500


@dataclass(frozen=True, slots=True)
class Identity:
    """Whose journal it is."""

    server: str
    fabric: str
    verifier: Verifier
    has_mark: bool = False
    """There is a high-water mark beside it; journals of earlier versions have none."""

    @property
    def hashes_bytes(self) -> bool:
        """The address of a message is the SHA-256 of its bytes: hashing them again adds nothing."""
        return fabric_named(self.fabric).hashes_bytes


@dataclass(frozen=True, slots=True)
class CommitRow:
    """One group commit as stored: `rows` are its encoded runs."""

    first_seq: int
    count: int
    first_at_us: int
    last_at_us: int
    body_bytes: int
    rows: bytes

    @property
    def end(self) -> int:
        """The position after its last hop."""
        return self.first_seq + self.count


@dataclass(frozen=True, slots=True)
class Commit:
    """One group commit, decoded."""

    row: CommitRow
    runs: list[Run]

    @property
    def first_seq(self) -> int:
        """The position of its first hop."""
        return self.row.first_seq

    @property
    def end(self) -> int:
        """The position after its last hop."""
        return self.row.end


class JournalReader:
    """A read-only view of one journal."""

    def __init__(self, connection: Connection, path: Path) -> None:
        self._connection = connection
        self.path = path
        self.names: dict[int, str] = {}
        """Counterparts read so far, by number; `names_of` has them all."""
        self._messages: dict[int, MessageRow] = {}
        self._unindexed: list[bytes] = []
        self._unindexed_from = 1
        self.identity = self._read_identity()

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open the journal at `path`; JournalError if there is none or it is not a journal."""
        connection = connect_reader(path)
        try:
            check_format(connection, path)
            return cls(connection, path)
        except BaseException:
            connection.close()
            raise

    def close(self) -> None:
        """Release the file."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def size(self) -> int:
        """How many hops are durable."""
        row = self.one("SELECT first_seq + count FROM commits ORDER BY first_seq DESC LIMIT 1")
        if row is not None:
            self.check_types(row, "commits", int)
        return row[0] if row else 0

    def hops(self, first: int = 0, end: int | None = None) -> Iterator[Hop]:
        """Hops from `first` up to but excluding `end`, in order, with bytes on the hop that carries them."""
        for commit in self.commits(first, end):
            messages = self.messages_by_id({run.message_id for run in commit.runs}, commit.first_seq, commit.end)
            for run in commit.runs:
                self.message_of(run, messages, commit.first_seq)
            for hop in self.hops_of_commit(commit, messages):
                if hop.seq >= first and (end is None or hop.seq < end):
                    yield hop

    def hops_of(self, address: Address) -> list[Hop]:
        """All hops of one message, in order."""
        message = self.message(address)
        if message is None:
            return []
        indexed_seq = self.progress("indexed_seq")
        block = self._block_of(message.id)
        rows = self.all("SELECT first_seq FROM hop_index WHERE message_id = ? ORDER BY first_seq", (message.id,))
        starts = [*([block.first_seq] if block else []), *(first_seq for (first_seq,) in rows)]
        self.check_types(starts, "hop_index", *[int] * len(starts))
        messages = {message.id: message}
        found: list[Hop] = []
        for start in [start for start in starts if start < indexed_seq]:
            listed = [hop for each in self.commits(start, start + 1) for hop in self.hops_of_commit(each, messages)]
            if not listed:
                raise JournalDamaged(f"{self.path}: the commit of hop {start} lacks message {address.hex()}")
            found += listed
        for commit in self.commits(indexed_seq):
            found.extend(self.hops_of_commit(commit, messages))
        return found

    def message(self, address: Address) -> MessageRow | None:
        """Look up one message by address."""
        matches = [row for row in self.find(address) if row.address == address]
        return matches[0] if matches else None

    def raw(self, address: Address) -> bytes | None:
        """The bytes of one message; None if it is unknown, was stored by address only, or is purged."""
        message = self.message(address)
        return message.raw if message else None

    def find(self, prefix: bytes, limit: int = 100) -> list[MessageRow]:
        """Messages whose address starts with `prefix`, at most `limit`."""
        ids: Iterable[int] = range(1, self.message_count + 1)
        if prefix:
            behind_index = self.progress("indexed_message") + 1
            # the index may grow meanwhile: numbers from `behind_index` on are found once, by the unindexed search
            indexed = (number for number in search_runs(self, prefix) if number < behind_index)
            ids = itertools.chain(indexed, self._search_unindexed(prefix, behind_index))
        found = self.messages_by_id(itertools.islice(ids, limit), 0, self.size)
        return [row for row in found.values() if row.address.startswith(prefix)]

    def _search_unindexed(self, prefix: bytes, first_id: int) -> list[int]:
        """Numbers of messages from `first_id`, where the index ends, whose address starts with `prefix`.

        Their addresses are cached until they are indexed, so that each row is read once.
        """
        del self._unindexed[: first_id - self._unindexed_from]
        self._unindexed_from = first_id
        next_id = first_id + len(self._unindexed)
        for block in self.message_blocks(next_id):
            self._unindexed += [message.address for message in block.messages[max(next_id - block.first_id, 0) :]]
        return [number for number, address in enumerate(self._unindexed, first_id) if address.startswith(prefix)]

    def seq_at(self, at_us: int) -> int:
        """The position of the first hop at or after time `at_us`."""
        low, high = 0, self.size
        while low < high:
            row = self.one(
                "SELECT first_seq, count, first_at_us, last_at_us FROM commits WHERE first_seq <= ? "
                "ORDER BY first_seq DESC LIMIT 1",
                ((low + high) // 2,),
            )
            self.check_types(row or (), "commits", int, int, int, int)
            first_seq, count, first_at_us, last_at_us = row
            if not first_seq <= (low + high) // 2 < first_seq + count:
                raise JournalDamaged(f"{self.path}: hop {(low + high) // 2} is missing")
            if last_at_us < at_us:
                low = max(low, first_seq + count)
            elif first_at_us >= at_us:
                high = min(high, first_seq)
            else:
                return next(hop.seq for hop in self.hops(first_seq, first_seq + count) if hop.at_us >= at_us)
        for hop in self.hops(max(low - 1, 0), low + 1):  # a damaged page may have misled the search
            if (hop.at_us >= at_us) != (hop.seq >= low):
                raise JournalDamaged(f"{self.path}: the times around hop {low} contradict each other")
        return low

    def commits(self, first: int = 0, end: int | None = None) -> Iterator[Commit]:
        """Group commits with hops from `first` up to but excluding `end`."""
        for row in self.commit_rows(first, end):
            runs = decode_runs(row.rows, row.first_seq, row.count)
            if row.first_at_us + sum([run.after_us for run in runs]) != row.last_at_us:
                raise JournalDamaged(
                    f"{self.path}: hops {row.first_seq} to {row.end - 1}: their times contradict each other"
                )
            if (held := sum([run.count for run in runs])) != row.count:
                raise JournalDamaged(
                    f"{self.path}: the commit at hop {row.first_seq} claims {row.count} hops and holds {held}"
                )
            yield Commit(row, runs)

    def commit_rows(self, first: int = 0, end: int | None = None) -> Iterator[CommitRow]:
        """Group commits with hops from `first` up to but excluding `end`, checksums verified."""
        row = self.one("SELECT max(first_seq) FROM commits WHERE first_seq <= ?", (first,))
        position = row[0] if row and row[0] is not None else max(first, 0)
        if position > max(first, 0):
            raise JournalDamaged(f"{self.path}: hop {position} lies where {first} should be")
        while end is None or position < end:
            row = self._commit_from(position)
            if row is None:
                if position >= self.marked_size():
                    return
                row = self._commit_from(position)  # committed since the first query, or missing
                if row is None:
                    raise JournalDamaged(f"{self.path}: hops from {position} on are missing")
            self.check_types(row, "commits", int, int, int, int, int, int, bytes)
            first_seq, count, first_at_us, last_at_us, body_bytes, crc, rows = row
            if first_seq != position:
                raise JournalDamaged(f"{self.path}: hops {position} to {first_seq - 1} are missing")
            if count < 1:
                raise JournalDamaged(f"{self.path}: the commit at hop {first_seq} claims {count} hops")
            position = first_seq + count
            if position <= first:
                continue
            if end is not None and first_seq >= end:
                return
            if crc32(rows) != crc:
                raise JournalDamaged(f"hops {first_seq} to {position - 1}: checksum of the commit does not match")
            yield CommitRow(first_seq, count, first_at_us, last_at_us, body_bytes, rows)

    def _commit_from(self, position: int) -> Any:
        # one short query each, so that a long read does not block WAL checkpoints
        return self.one(
            "SELECT first_seq, count, first_at_us, last_at_us, body_bytes, crc, runs FROM commits "
            "WHERE first_seq >= ? ORDER BY first_seq LIMIT 1",
            (position,),
        )

    def marked_size(self) -> int:
        """How many hops the journal must have according to the high-water mark."""
        mark = read_mark(self.path, self.identity.verifier)
        if mark is None:
            return 0
        return mark.size if mark.is_of_this_boot else mark.synced

    def checkpoints(self) -> list[SignedCheckpoint]:
        """All signed checkpoints, oldest first; their signatures are not checked here."""
        return [self._parse(row) for row in self.all("SELECT note FROM checkpoints ORDER BY size")]

    def latest_checkpoint(self) -> SignedCheckpoint | None:
        """The checkpoint over the most hops."""
        row = self.one("SELECT note FROM checkpoints ORDER BY size DESC LIMIT 1")
        return None if row is None else self._parse(row)

    def _parse(self, row: tuple[str]) -> SignedCheckpoint:
        self.check_types(row, "checkpoints", str)
        try:
            return parse_checkpoint(row[0])
        except CheckpointError as error:
            raise JournalDamaged(f"{self.path}: checkpoint: {error}") from None

    @property
    def message_count(self) -> int:
        """The number of messages; they are numbered from 1."""
        row = self.one("SELECT first_id + count - 1 FROM messages ORDER BY first_id DESC LIMIT 1")
        if row is not None:
            self.check_types(row, "messages", int)
        return row[0] if row else 0

    @property
    def name_count(self) -> int:
        """The number of counterparts; they are numbered from 1."""
        count: int = self.one("SELECT coalesce(max(id), 0) FROM names")[0]
        return count

    def message_blocks(self, first_id: int = 1) -> Iterator[MessageBlock]:
        """Rows of messages, decoded, starting with the one that holds number `first_id`."""
        for row in self.message_rows(first_id):
            yield decode_block(row)

    def message_rows(self, first_id: int = 1) -> Iterator[MessagesRow]:
        """Rows of messages, starting with the one that holds number `first_id`, checksums verified."""
        row = self.one("SELECT max(first_id) FROM messages WHERE first_id <= ?", (first_id,))
        position = row[0] if row and row[0] is not None else first_id
        while True:
            found = self._messages_row("first_id >= ? ORDER BY first_id", position)
            if found is None:
                return
            if found.first_id < position:
                raise JournalDamaged(f"{self.path}: message {found.first_id} lies where {position} should be")
            if found.end > first_id:
                yield found
            position = found.first_id + 1

    def row_of_message(self, message_id: int) -> MessagesRow | None:
        """The row that holds a message, checksum verified."""
        row = self._messages_row("first_id <= ? ORDER BY first_id DESC", message_id)
        return row if row is not None and message_id < row.end else None

    def _messages_row(self, where: str, message_id: int) -> MessagesRow | None:
        row = self.one(
            f"SELECT first_id, count, first_seq, crc, rows FROM messages WHERE {where} LIMIT 1", (message_id,)
        )
        if row is None:
            return None
        self.check_types(row, "messages", int, int, int, int, bytes)
        first_id, count, first_seq, crc, rows = row
        if crc32(rows) != crc:
            raise JournalDamaged(f"messages {first_id} to {first_id + count - 1}: checksum does not match")
        return MessagesRow(first_id, count, first_seq, rows)

    def block_with(self, message_id: int) -> MessageBlock:
        """The row of messages that holds this number; JournalDamaged if there is none."""
        block = self._block_of(message_id)
        if block is None:
            raise JournalDamaged(f"{self.path}: message {message_id} is missing")
        return block

    def messages_by_id(self, ids: Iterable[int], raw_from: int = 0, raw_end: int = 0) -> dict[int, MessageRow]:
        """Messages by number in this file, with bytes if the hop that carries them is in the given range."""
        found: dict[int, MessageRow] = {}
        block: MessageBlock | None = None
        for message_id in sorted(ids):
            known = self._messages.get(message_id)
            if known is not None and not raw_from <= (known.body_seq or 0) < raw_end:
                found[message_id] = known
                continue
            if block is None or message_id >= block.end:
                block = self._block_of(message_id)
                if block is None:
                    continue
            if not 0 <= message_id - block.first_id < len(block.messages):
                raise JournalDamaged(f"{self.path}: message {message_id} does not lie where it should")
            body_seq = block.messages[message_id - block.first_id].body_seq
            row = block.row(message_id, with_raw=body_seq is not None and raw_from <= body_seq < raw_end)
            found[message_id] = row
            if body_seq is not None and row.raw is None:
                # bytes can still be purged, or added if there are none; nothing else of a message ever changes
                self._remember(row)
        return found

    def _block_of(self, message_id: int) -> MessageBlock | None:
        row = self.row_of_message(message_id)
        return decode_block(row) if row is not None else None

    def _remember(self, row: MessageRow) -> None:
        if len(self._messages) >= MAX_MESSAGES_CACHED:
            self._messages.clear()
        self._messages[row.id] = row

    def names_of(self, ids: list[int]) -> list[str]:
        """Counterparts by number in this file."""
        names = self.names
        try:
            return [names[i] for i in ids]
        except KeyError:
            self._load_names([i for i in set(ids) if i not in names])
        try:
            return [names[i] for i in ids]
        except KeyError as missing:
            raise JournalDamaged(f"{self.path}: counterpart {missing} is missing") from None

    def progress(self, name: str) -> int:
        """Read one of the file's own counters."""
        row = self.one("SELECT value FROM progress WHERE name = ?", (name,))
        if row is None:
            raise JournalDamaged(f"{self.path}: counter {name} is missing")
        self.check_types(row, "progress", int)
        value: int = row[0]
        return value

    def hops_of_commit(self, commit: Commit, messages: dict[int, MessageRow]) -> Iterator[Hop]:
        """Hops of one commit, for the given messages only."""
        seq, at_us = commit.row.first_seq, commit.row.first_at_us
        for run in commit.runs:
            at_us += run.after_us
            ids = unpack_names(run.counterparts)
            count = len(ids) or 1
            message = messages.get(run.message_id)
            if message is not None:
                names: list[str | None] = [*self.names_of(ids)] or [None]
                for offset, name in enumerate(names):
                    has_body = message.body_seq == seq + offset
                    yield Hop(
                        server=self.identity.server,
                        seq=seq + offset,
                        at_us=at_us,
                        fabric=self.identity.fabric,
                        stage=STAGE_OF_CODE[run.stage],
                        message=message.address,
                        counterpart=name,
                        reason=REASON_OF_CODE[run.reason] if run.reason else None,
                        raw=message.raw if has_body else None,
                        size=message.size if has_body else None,
                    )
            seq += count

    def message_of(self, run: Run, messages: dict[int, MessageRow], seq: int) -> MessageRow:
        """The message of a run, which must be among `messages`."""
        message = messages.get(run.message_id)
        if message is None or run.stage not in STAGE_OF_CODE or (run.reason and run.reason not in REASON_OF_CODE):
            raise JournalDamaged(
                f"{self.path}: hop {seq} names message {run.message_id}, which is missing or unreadable"
            )
        return message

    def _load_names(self, ids: list[int]) -> None:
        if len(self.names) + len(ids) > MAX_NAMES_CACHED:
            self.names.clear()
        for start in range(0, len(ids), SQL_VARIABLES):
            part = ids[start : start + SQL_VARIABLES]
            marks = ",".join("?" * len(part))
            # the text is in the table and in its index: if the two differ, neither is trusted
            self.names.update(
                self.all(
                    "SELECT stored.id, stored.name FROM names AS stored "
                    "JOIN names AS indexed INDEXED BY sqlite_autoindex_names_1 "
                    "ON indexed.name = stored.name AND indexed.id = stored.id "
                    f"WHERE stored.id IN ({marks})",
                    part,
                )
            )

    def _read_identity(self) -> Identity:
        values = dict(self.all("SELECT name, value FROM identity"))
        for row in values.items():
            self.check_types(row, "identity", str, str)
        try:
            server, fabric = values["server"], check_name(values["fabric"])
            verifier = parse_verifier(values["key"])
            # the key has a checksum over its name, the rest of this table has none
            if verifier.name != server or name_of(server) != fabric:
                raise ValueError(f"{fabric} server {server} with the key of {verifier.name}")
        except (KeyError, ValueError, CheckpointError) as error:
            raise JournalDamaged(f"{self.path}: identity is not readable: {error}") from None
        return Identity(server, fabric, verifier, has_mark=values.get(HAS_MARK) == HAS_MARK_VALUE)

    def check_types(self, row: Sequence[object], table: str, *types: type) -> None:
        """SQLite does not check the types it reads: a page of another table may be in this place."""
        if any(value.__class__ is not expected for value, expected in zip(row, types, strict=False)) or len(row) != len(
            types
        ):
            raise JournalDamaged(f"{self.path}: a row of the table {table} does not hold what it should")

    def one(self, sql: str, parameters: Iterable[Any] = ()) -> Any:
        """The first row of a query, or None; raises journal errors."""
        try:
            return self._connection.execute(sql, tuple(parameters)).fetchone()
        except SQLITE_ERRORS as error:
            raise translate(error, self.path) from error

    def all(self, sql: str, parameters: Iterable[Any] = ()) -> list[Any]:
        """All rows of a query; raises journal errors."""
        try:
            return list(self._connection.execute(sql, tuple(parameters)).fetchall())
        except SQLITE_ERRORS as error:
            raise translate(error, self.path) from error


def read_identity(path: Path) -> Identity:
    """Read whose journal is at `path`."""
    with JournalReader.open(path) as reader:
        return reader.identity
