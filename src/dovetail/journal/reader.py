"""Reading a journal: hops by position, address and time, message bytes, checkpoints and the stored tree.

A reader has its own connection and may run in any process, also while the journal is being written. It is for one
thread.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from dovetail.fabrics import check_name, fabric_named
from dovetail.journal.addresses import search_runs
from dovetail.journal.database import SQLITE_ERRORS, Connection, check_format, connect_reader, translate
from dovetail.journal.layout import (
    REASON_OF_CODE,
    STAGE_OF_CODE,
    Run,
    decode_runs,
    unpack_names,
)
from dovetail.journal.messages import MessageBlock, MessageRow, decode_block
from dovetail.model.address import Address
from dovetail.model.errors import JournalDamaged
from dovetail.model.hop import Hop
from dovetail.tlog.checkpoint import SignedCheckpoint, parse_checkpoint
from dovetail.tlog.keys import Verifier, parse_verifier

MAX_NAMES_CACHED = 200_000
MAX_MESSAGES_CACHED = 50_000
HAS_MARK, HAS_MARK_VALUE = "high_water", "beside"
"""What `identity` says where a high-water mark is kept."""
_SQL_VARIABLES = 500


@dataclass(frozen=True, slots=True)
class Identity:
    """Whose journal it is."""

    server: str
    fabric: str
    verifier: Verifier
    has_mark: bool = False
    """A high-water mark is kept beside it; journals of earlier versions had none."""

    @property
    def hashes_bytes(self) -> bool:
        """The address of a message is the SHA-256 of its bytes: hashing them again would tell nothing new."""
        return fabric_named(self.fabric).hashes_bytes


@dataclass(frozen=True, slots=True)
class Commit:
    """One group commit as it lies in the file."""

    first_seq: int
    count: int
    first_at_us: int
    last_at_us: int
    body_bytes: int
    runs: list[Run]

    @property
    def end(self) -> int:
        """The position after its last hop."""
        return self.first_seq + self.count

    def runs_between(self, first: int, end: int) -> tuple[int, int, list[Run]]:
        """The runs that hold hops from `first` up to and without `end`; before them, where and when they begin."""
        if first <= self.first_seq and end >= self.end:
            return self.first_seq, self.first_at_us, self.runs
        seq, at_us = begin = self.first_seq, self.first_at_us
        runs: list[Run] = []
        for run in self.runs:
            if seq >= end:
                break
            seq += run.count
            if seq > first:
                runs.append(run)
            else:
                at_us += run.after_us
                begin = seq, at_us
        return *begin, runs


class JournalReader:
    """A read-only view of one journal."""

    def __init__(self, connection: Connection, path: Path) -> None:
        self._connection = connection
        self.path = path
        self.names: dict[int, str] = {}
        """Counterparts that are known already, by their number; `names_of` has them all."""
        self._messages: dict[int, MessageRow] = {}
        self._unindexed: list[bytes] = []
        self._unindexed_from = 1
        self.identity = self._read_identity()

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open the journal at `path`; JournalError where there is none or it is not one."""
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def size(self) -> int:
        """How many hops are durable."""
        row = self.one("SELECT first_seq + count FROM commits ORDER BY first_seq DESC LIMIT 1")
        if row is not None:
            self.check_types(row, "commits", int)
        return row[0] if row else 0

    def hops(self, first: int = 0, end: int | None = None) -> Iterator[Hop]:
        """Hops from `first` up to and without `end`, in order, with bytes on the hop that carries them."""
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
        indexed = (commit for start in starts if start < indexed_seq for commit in self.commits(start, start + 1))
        found: list[Hop] = []
        for commit in (*indexed, *self.commits(indexed_seq)):
            found.extend(self.hops_of_commit(commit, {message.id: message}))
        return found

    def message(self, address: Address) -> MessageRow | None:
        """One message by its address."""
        matches = [row for row in self.find(address) if row.address == address]
        return matches[0] if matches else None

    def raw(self, address: Address) -> bytes | None:
        """The bytes of one message; None where it is unknown, was kept by address only, or is purged."""
        message = self.message(address)
        return message.raw if message else None

    def find(self, prefix: bytes, limit: int = 100) -> list[MessageRow]:
        """Messages whose address starts with `prefix`, at most `limit`."""
        ids: Iterable[int] = range(1, self.message_count + 1)
        if prefix:
            behind_index = self.progress("indexed_message") + 1
            # the index may grow meanwhile: what it gains is found behind it, once
            indexed = (number for number in search_runs(self, prefix) if number < behind_index)
            ids = itertools.chain(indexed, self._search_unindexed(prefix, behind_index))
        found = self.messages_by_id(itertools.islice(ids, limit), 0, self.size)
        return [row for row in found.values() if row.address.startswith(prefix)]

    def _search_unindexed(self, prefix: bytes, first_id: int) -> list[int]:
        """Numbers of messages from `first_id` on, where the index ends, whose address starts with `prefix`.

        Their addresses are remembered until the index has them, so that each row is read once.
        """
        del self._unindexed[: first_id - self._unindexed_from]
        self._unindexed_from = first_id
        next_id = first_id + len(self._unindexed)
        for block in self.message_blocks(next_id):
            self._unindexed += [message.address for message in block.messages[max(next_id - block.first_id, 0) :]]
        return [number for number, address in enumerate(self._unindexed, first_id) if address.startswith(prefix)]

    def seq_at(self, at_us: int) -> int:
        """The position of the first hop whose time is `at_us` or later."""
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
        return low

    def commits(self, first: int = 0, end: int | None = None) -> Iterator[Commit]:
        """Group commits that hold hops from `first` up to and without `end`."""
        row = self.one("SELECT max(first_seq) FROM commits WHERE first_seq <= ?", (first,))
        position = row[0] if row and row[0] is not None else first
        while end is None or position < end:
            # one short query each, so that a long read does not hold back the writer's log
            row = self.one(
                "SELECT first_seq, count, first_at_us, last_at_us, body_bytes, crc, runs FROM commits "
                "WHERE first_seq >= ? ORDER BY first_seq LIMIT 1",
                (position,),
            )
            if row is None:
                return
            self.check_types(row, "commits", int, int, int, int, int, int, bytes)
            first_seq, count, first_at_us, last_at_us, body_bytes, crc, blob = row
            if first_seq < position or (first_seq != position and position > first):
                raise JournalDamaged(f"{self.path}: hops {position} to {first_seq - 1} are missing")
            if count < 1:
                raise JournalDamaged(f"{self.path}: the commit at hop {first_seq} claims {count} hops")
            position = first_seq + count
            if position <= first:
                continue
            if end is not None and first_seq >= end:
                return
            runs = decode_runs(blob, crc, first_seq, count)
            if first_at_us + sum([run.after_us for run in runs]) != last_at_us:
                raise JournalDamaged(
                    f"{self.path}: hops {first_seq} to {position - 1}: their times contradict each other"
                )
            yield Commit(first_seq, count, first_at_us, last_at_us, body_bytes, runs)

    def checkpoints(self) -> list[SignedCheckpoint]:
        """All signed checkpoints, oldest first; their signatures are not checked here."""
        return [parse_checkpoint(note) for (note,) in self.all("SELECT note FROM checkpoints ORDER BY size")]

    def latest_checkpoint(self) -> SignedCheckpoint | None:
        """The checkpoint over the most hops."""
        row = self.one("SELECT note FROM checkpoints ORDER BY size DESC LIMIT 1")
        if row is not None:
            self.check_types(row, "checkpoints", str)
        return parse_checkpoint(row[0]) if row else None

    @property
    def message_count(self) -> int:
        """How many messages there are; their numbers begin at 1."""
        row = self.one("SELECT first_id + count - 1 FROM messages ORDER BY first_id DESC LIMIT 1")
        if row is not None:
            self.check_types(row, "messages", int)
        return row[0] if row else 0

    @property
    def name_count(self) -> int:
        """How many counterparts there are; their numbers begin at 1."""
        count: int = self.one("SELECT coalesce(max(id), 0) FROM names")[0]
        return count

    def message_blocks(self, first_id: int = 1) -> Iterator[MessageBlock]:
        """Rows of messages, from the one that holds number `first_id`."""
        row = self.one("SELECT max(first_id) FROM messages WHERE first_id <= ?", (first_id,))
        position = row[0] if row and row[0] is not None else first_id
        while True:
            row = self.one(
                "SELECT first_id, count, first_seq, crc, rows FROM messages WHERE first_id >= ? "
                "ORDER BY first_id LIMIT 1",
                (position,),
            )
            if row is None:
                return
            self.check_types(row, "messages", int, int, int, int, bytes)
            block = decode_block(*row)
            if block.first_id < position:
                raise JournalDamaged(f"{self.path}: message {block.first_id} lies where {position} should be")
            if block.end > first_id:
                yield block
            position = block.first_id + 1

    def block_start(self, message_id: int) -> int:
        """The number of the first message in the row that holds `message_id`."""
        first_id: int = self.one("SELECT max(first_id) FROM messages WHERE first_id <= ?", (message_id,))[0]
        return first_id

    def messages_by_id(self, ids: Iterable[int], raw_from: int = 0, raw_end: int = 0) -> dict[int, MessageRow]:
        """Messages by their number in this file, with bytes where the hop that carries them is in the given range."""
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
            body_seq = block.messages[message_id - block.first_id].body_seq
            row = block.row(message_id, with_raw=body_seq is not None and raw_from <= body_seq < raw_end)
            found[message_id] = row
            if body_seq is not None and row.raw is None:
                # bytes may still go, and come while there are none; nothing else of a message ever changes
                self._remember(row)
        return found

    def _block_of(self, message_id: int) -> MessageBlock | None:
        row = self.one(
            "SELECT first_id, count, first_seq, crc, rows FROM messages WHERE first_id <= ? "
            "ORDER BY first_id DESC LIMIT 1",
            (message_id,),
        )
        if row:
            self.check_types(row, "messages", int, int, int, int, bytes)
        block = decode_block(*row) if row else None
        return block if block is not None and message_id < block.end else None

    def _remember(self, row: MessageRow) -> None:
        if len(self._messages) >= MAX_MESSAGES_CACHED:
            self._messages.clear()
        self._messages[row.id] = row

    def names_of(self, ids: list[int]) -> list[str]:
        """Counterparts by their number in this file."""
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
        """One of the file's own counters."""
        row = self.one("SELECT value FROM progress WHERE name = ?", (name,))
        if row is None:
            raise JournalDamaged(f"{self.path}: counter {name} is missing")
        self.check_types(row, "progress", int)
        value: int = row[0]
        return value

    def data_version(self) -> int:
        """A number that changes when another connection has committed; for followers."""
        row = self.one("PRAGMA data_version")
        return int(row[0]) if row else 0

    def hops_of_commit(self, commit: Commit, messages: dict[int, MessageRow]) -> Iterator[Hop]:
        """Hops of one commit, of those messages that are given."""
        seq, at_us = commit.first_seq, commit.first_at_us
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
        for start in range(0, len(ids), _SQL_VARIABLES):
            part = ids[start : start + _SQL_VARIABLES]
            marks = ",".join("?" * len(part))
            # the text lies in the table and in its index: where the two differ, neither is believed
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
        try:
            check_name(values["fabric"])
            verifier = parse_verifier(values["key"])
            return Identity(
                values["server"], values["fabric"], verifier, has_mark=values.get(HAS_MARK) == HAS_MARK_VALUE
            )
        except (KeyError, ValueError) as error:
            raise JournalDamaged(f"{self.path}: identity is not readable: {error}") from None

    def check_types(self, row: Sequence[object], table: str, *types: type) -> None:
        """SQLite does not look at the types of what it reads: a page of another table may lie there."""
        if any(value.__class__ is not expected for value, expected in zip(row, types, strict=False)) or len(row) != len(
            types
        ):
            raise JournalDamaged(f"{self.path}: a row of the table {table} does not hold what it should")

    def one(self, sql: str, parameters: Iterable[Any] = ()) -> Any:
        """The first row of a query, or None; the journal's own errors."""
        try:
            return self._connection.execute(sql, tuple(parameters)).fetchone()
        except SQLITE_ERRORS as error:
            raise translate(error, self.path) from error

    def all(self, sql: str, parameters: Iterable[Any] = ()) -> list[Any]:
        """All rows of a query; the journal's own errors."""
        try:
            return list(self._connection.execute(sql, tuple(parameters)).fetchall())
        except SQLITE_ERRORS as error:
            raise translate(error, self.path) from error


def read_identity(path: Path) -> Identity:
    """Whose journal lies at `path`."""
    with JournalReader.open(path) as reader:
        return reader.identity
