"""Checks everything a journal claims: every row, every hash, every signature; names the first row that is wrong.

A single file shows: any hop below a checkpoint that was changed, removed, inserted or moved, bytes that are not what
was accepted, and tables that contradict each other. The high-water mark shows that the file was rolled back or
truncated; if the mark was rolled back too, only copies held by others show it: a checkpoint (`since`), a lake or a
witness (`known`).
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from dovetail.journal.continuity import Known, find_breaks
from dovetail.journal.database import BLOCK_LEAVES, BLOCK_LEVEL, CHECK_BYTES
from dovetail.journal.message_survey import MessageSurvey, find_faults
from dovetail.journal.reader import SQL_VARIABLES, CommitRow, JournalReader
from dovetail.journal.stored import HashedCommit
from dovetail.journal.stored_tree import GrowingTree, JournalTree
from dovetail.model.errors import CheckpointError, JournalDamaged, JournalError
from dovetail.model.fabric import Agreement
from dovetail.tlog.checkpoint import SignedCheckpoint, verify_checkpoint
from dovetail.tlog.keys import Verifier
from dovetail.tlog.tree import HASH_BYTES

MAX_FINDINGS = 100


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault: in one hop, in one of the hops from `seq` to `last`, or in the file as a whole."""

    seq: int | None
    detail: str
    last: int | None = None

    def __str__(self) -> str:
        if self.seq is None:
            return self.detail
        return (
            f"hop {self.seq}: {self.detail}" if self.last is None else f"hops {self.seq} to {self.last}: {self.detail}"
        )


@dataclass(slots=True)
class Verdict:
    """The result for one journal."""

    server: str
    hops: int = 0
    messages: int = 0
    checkpoints: int = 0
    committed: int = 0
    findings: list[Finding] = field(default_factory=list)

    @property
    def is_intact(self) -> bool:
        """True if nothing is wrong."""
        return not self.findings

    @property
    def first(self) -> Finding | None:
        """The first fault: a single hop before a range that contains it, hops before the file as a whole."""
        placed = [f for f in self.findings if f.seq is not None]
        return min(placed, key=lambda f: f.last or f.seq or 0) if placed else next(iter(self.findings), None)


Progress = Callable[[int, int], None]


def no_progress(done: int, total: int) -> None:
    """Report no progress."""
    del done, total


def verify_journal(
    path: Path,
    *,
    trusted: Iterable[Verifier] = (),
    since: SignedCheckpoint | None = None,
    known: Iterable[Known] = (),
    agreement: Agreement | None = None,
    progress: Progress = no_progress,
) -> Verdict:
    """Recompute everything in the journal at `path`; JournalError only if it cannot be opened at all.

    With `trusted`, the journal's own key must be among these keys. With `since`, its tree must extend that checkpoint,
    and with `known`, what others know of it; the high-water mark is always checked. Expiry that depends on an agreement
    is checked only with it.
    """
    with JournalReader.open(path) as reader:
        verdict = Verdict(reader.identity.server)
        try:
            _Verification(reader, verdict, list(trusted), since, list(known), agreement, progress).run()
        except (JournalError, ValueError, TypeError, ArithmeticError, LookupError, MemoryError, struct.error) as error:
            # a damaged file may contain anything anywhere
            verdict.findings.append(Finding(verdict.hops, f"cannot be read: {error}"))
        return verdict


class _Verification:
    """One pass over the hops of one journal, with a pass over its messages in another thread."""

    def __init__(
        self,
        reader: JournalReader,
        verdict: Verdict,
        trusted: list[Verifier],
        since: SignedCheckpoint | None,
        known: list[Known],
        agreement: Agreement | None,
        progress: Progress,
    ) -> None:
        self._reader = reader
        self._verdict = verdict
        self._trusted = trusted
        self._since = since
        self._known = known
        self._progress = progress
        self._tree = JournalTree(reader)
        self._growing = GrowingTree()
        self._last_at_us: int | None = None
        self._is_root_wrong = False
        self._committed_size = reader.one("SELECT coalesce(max(size), 0) FROM checkpoints")[0]
        self._indexed_seq = reader.progress("indexed_seq")
        self._indexed_message = reader.progress("indexed_message")
        # the journal may be written meanwhile: both passes end here
        self._size, self._last_message, self._last_name = reader.one(_ENDS)
        self._survey = MessageSurvey(reader.path, self._last_message, agreement)
        self._listed_hops = 0
        self._last_id = 0
        self._carried = bytearray()
        self._names: set[int] = set()

    def run(self) -> None:
        with ThreadPoolExecutor(1) as pool:
            surveyed = pool.submit(self._survey.run)
            try:
                is_whole = self._check_hops()
            except BaseException:
                self._survey.stop()
                raise
            if is_whole:
                self._survey.heads.close()
            else:
                self._survey.stop()
            surveyed.result()
        for seq, detail in self._survey.findings:
            self._find(seq, detail)
        if is_whole:
            self._judge_messages()
            self._check_leftovers()

    def _check_hops(self) -> bool:
        """Check everything but the messages; False if damage hides the rest."""
        self._check_key()
        self._check_continuity()
        pending = self._notes()
        try:
            for commit in self._reader.commit_rows(0, self._size):
                self._check_commit(commit, pending)
                self._progress(self._verdict.hops, self._size)
        except JournalDamaged as error:
            self._find(self._verdict.hops, str(error))
            return False
        self._check_open_block()
        for size, _ in pending:
            self._find(self._verdict.hops, f"a checkpoint commits to {size} hops, the journal has {self._verdict.hops}")
        return True

    def _find(self, seq: int | None, detail: str, last: int | None = None) -> None:
        if len(self._verdict.findings) < MAX_FINDINGS:
            self._verdict.findings.append(Finding(seq, detail, last))

    def _check_key(self) -> None:
        own = self._reader.identity.verifier
        if self._trusted and own not in self._trusted:
            self._find(None, f"the key inside is not a trusted key of {own.name}")

    def _check_continuity(self) -> None:
        for detail in find_breaks(self._reader, self._known):
            self._find(None, f"the journal {detail}")

    def _notes(self) -> list[tuple[int, str]]:
        rows = self._reader.all("SELECT size, note FROM checkpoints ORDER BY size")
        for row in rows:
            self._reader.check_types(row, "checkpoints", int, str)
        made = self._reader.progress("checkpoints")
        if made != len(rows):
            self._find(None, f"{len(rows)} checkpoints are stored, {made} were made")
        self._verdict.checkpoints = len(rows)
        return rows if self._since is None else sorted([*rows, (self._since.size, self._since.note)])

    def _check_commit(self, commit: CommitRow, pending: list[tuple[int, str]]) -> None:
        if commit.first_seq != self._verdict.hops:
            raise JournalDamaged(f"hops {self._verdict.hops} to {commit.first_seq - 1} are missing")
        row = self._survey.heads.take(commit.first_seq)
        if row is not None:
            self._tree.add_messages(row)
        hashed = self._tree.hash_commit(commit)
        leaves = hashed.leaves
        if len(leaves) != commit.count * HASH_BYTES:
            raise JournalDamaged(f"the commit claims {commit.count} hops and holds {len(leaves) // HASH_BYTES}")
        if self._last_at_us is not None and commit.first_at_us < self._last_at_us:
            self._find(commit.first_seq, f"time goes back by {self._last_at_us - commit.first_at_us} microseconds")
        if hashed.goes_back:
            self._find(commit.first_seq, "time goes back inside the commit")
        self._last_at_us = commit.last_at_us
        if hashed.body_bytes != commit.body_bytes:
            self._find(
                commit.first_seq,
                f"the commit claims {commit.body_bytes} bytes of messages and brings {hashed.body_bytes}",
            )
        if commit.first_seq < self._indexed_seq < commit.end:
            self._find(commit.first_seq, f"lookup tables end inside the commit, at {self._indexed_seq}")
        self._check_named_messages(commit, hashed)
        self._names.update(hashed.name_ids)
        taken = 0
        while pending and pending[0][0] <= commit.end:
            size, note = pending.pop(0)
            end = max(taken, (size - commit.first_seq) * HASH_BYTES)
            self._grow(leaves[taken:end])
            taken = end
            self._check_checkpoint(size, note)
        self._grow(leaves[taken:])
        self._verdict.hops = commit.end

    def _check_named_messages(self, commit: CommitRow, hashed: HashedCommit) -> None:
        """Check that the commit adds the messages of its row, and that hops of older ones can be found by message."""
        ids = hashed.message_ids
        place = bisect_right(ids, self._last_id)
        new = len(ids) - place
        if new:
            row = self._reader.one("SELECT count, first_seq FROM messages WHERE first_id = ?", (self._last_id + 1,))
            if row != (new, commit.first_seq) or ids[-1] != self._last_id + new:
                raise JournalDamaged("the commit's messages are not those of its row")
            self._last_id = ids[-1]
            self._carried += hashed.carried[place:]
        for number, state in zip(ids[:place], hashed.carried, strict=False):
            if state and number > 0:
                self._carried[number - 1] |= state
        if place and commit.first_seq < self._indexed_seq:
            self._listed_hops += place
            if self._count_listed(commit.first_seq, ids[:place]) != place:
                self._find(commit.first_seq, "it cannot be found by its message")

    def _count_listed(self, first_seq: int, ids: list[int]) -> int:
        """How many of these messages the index maps to this commit."""
        count = 0
        for start in range(0, len(ids), SQL_VARIABLES):
            part = ids[start : start + SQL_VARIABLES]
            marks = ",".join("?" * len(part))
            query = f"SELECT count(*) FROM hop_index WHERE first_seq = ? AND message_id IN ({marks})"
            count += self._reader.one(query, (first_seq, *part))[0]
        return count

    def _grow(self, leaves: bytes) -> None:
        """Compare with the stored tree; the 8 bytes stored per leaf identify the exact row."""
        self._growing.extend(leaves)
        growth = self._growing.take_growth()
        for number, root, checks in growth.blocks:
            self._check_block(number, root, checks)
        for level, number, node in growth.nodes:
            row = self._reader.one("SELECT hash FROM nodes WHERE level = ? AND number = ?", (level, number))
            if row is not None and row[0] != node:
                self._find(number << level, f"the tree's node over {1 << level} hops is not that of its hops")
            elif row is None and self._committed_size >= (number + 1) << level:
                self._find(number << level, f"the tree's node over {1 << level} hops is missing")

    def _check_block(self, number: int, root: bytes, checks: bytes) -> None:
        row = self._reader.one("SELECT root, checks FROM blocks WHERE number = ?", (number,))
        first = number << BLOCK_LEVEL
        if row is None:
            if self._committed_size > first:
                self._find(first, "its block of the tree is missing")
            return
        stored_root, stored = row
        expected = min(self._committed_size - first, BLOCK_LEAVES) * CHECK_BYTES
        if len(stored) != expected:
            self._find(first, f"its block of the tree has {len(stored)} bytes of checks, expected {expected}")
        for offset in range(0, 0 if stored == checks else min(len(stored), len(checks)), CHECK_BYTES):
            if stored[offset : offset + CHECK_BYTES] != checks[offset : offset + CHECK_BYTES]:
                self._find(first + offset // CHECK_BYTES, "it is not the hop that was hashed into the tree")
                return
        if stored_root != (root if expected == BLOCK_LEAVES * CHECK_BYTES else b""):
            self._find(first, "its block of the tree has another root than its hops")

    def _check_open_block(self) -> None:
        block = self._growing.open_block()
        if block is not None:
            self._check_block(*block)

    def _check_checkpoint(self, size: int, note: str) -> None:
        intact = self._verdict.committed
        try:
            signed = verify_checkpoint(note, [self._reader.identity.verifier])
        except CheckpointError as error:
            self._find(None, f"checkpoint over {size} hops: {error}")
            return
        if signed.size != size or signed.checkpoint.origin != self._reader.identity.server:
            self._find(None, f"checkpoint over {size} hops is of {signed.size} hops of {signed.checkpoint.origin}")
        elif self._growing.root() == signed.root:
            self._verdict.committed = max(intact, size)
        elif not self._is_root_wrong:
            # every later root is wrong as well: only the first is informative
            self._is_root_wrong = True
            self._find(intact, "not those that were signed", size - 1)

    def _judge_messages(self) -> None:
        """Check that every message is used by a hop, and that its bytes are those that were accepted."""
        self._verdict.messages = self._survey.messages
        if self._verdict.messages != self._last_id:
            self._find(None, f"{self._verdict.messages} messages are stored, hops name {self._last_id}")
        for first_id, states in self._survey.states:
            carried = self._carried[first_id - 1 : first_id - 1 + len(states)].ljust(len(states), b"\0")
            # there are few distinct (state, carried) pairs, so test each pair once before testing messages
            if any(map(_faults_of, set(zip(states, carried, strict=True)))):
                for number, pair in enumerate(zip(states, carried, strict=True), first_id):
                    self._report(number, _faults_of(pair))

    def _report(self, message_id: int, faults: list[str]) -> None:
        if faults and len(self._verdict.findings) < MAX_FINDINGS:
            message = self._reader.messages_by_id([message_id])[message_id]
            for fault in faults:
                self._find(message.body_seq, fault.format(message.address.hex()))

    def _check_leftovers(self) -> None:
        """Find rows that nothing refers to, and lookup tables that contradict the journal."""
        for (name_id,) in self._reader.all("SELECT id FROM names WHERE id <= ?", (self._last_name,)):
            if name_id not in self._names:
                self._find(None, f"counterpart {name_id} belongs to no hop")
        if self._indexed_seq > self._verdict.hops or self._indexed_message > self._last_id:
            self._find(None, "lookup tables claim to go beyond the end of the journal")
        for table, expected in (
            ("hop_index", self._listed_hops),
            ("address_index", self._survey.index_rows),
            ("expiry_index", self._survey.expiry_rows),
        ):
            (rows,) = self._reader.one(f"SELECT count(*) FROM {table}")
            if rows != expected:
                self._find(None, f"{table} has {rows} rows, expected {expected}")
        for what, query in _CONTRADICTIONS.items():
            (count,) = self._reader.one(query)
            if count:
                self._find(None, f"{abs(count)} {what}")


_CONTRADICTIONS = {
    "blocks of the tree lie beyond the last checkpoint": (
        f"SELECT count(*) FROM blocks WHERE number << {BLOCK_LEVEL} >= (SELECT coalesce(max(size), 0) FROM checkpoints)"
    ),
    "nodes of the tree lie beyond the last checkpoint": (
        "SELECT count(*) FROM nodes WHERE (number + 1) << level > (SELECT coalesce(max(size), 0) FROM checkpoints)"
    ),
}

_ENDS = """SELECT
    coalesce((SELECT first_seq + count FROM commits ORDER BY first_seq DESC LIMIT 1), 0),
    coalesce((SELECT first_id + count - 1 FROM messages ORDER BY first_id DESC LIMIT 1), 0),
    coalesce((SELECT max(id) FROM names), 0)"""


@cache
def _faults_of(pair: tuple[int, int]) -> list[str]:
    return find_faults(*pair)
