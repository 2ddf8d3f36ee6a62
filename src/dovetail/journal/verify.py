"""Checks everything a journal claims: every row, every hash, every signature; names the first row that is wrong.

What a single file can show: any hop below a checkpoint that was changed, removed, inserted or moved, bytes that are not
what was accepted, and tables that contradict each other. That it was put back to an earlier state, or its end was cut
off, its high-water mark shows; where that was put back too, only what others keep: a checkpoint (`since`), a lake or a
witness (`known`).
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from dovetail.fabrics import name_of
from dovetail.journal.addresses import AddressRun, encode_buckets, read_rows, read_runs
from dovetail.journal.continuity import Known, find_breaks
from dovetail.journal.database import BLOCK_LEAVES, BLOCK_LEVEL, CHECK_BYTES
from dovetail.journal.expiry import Lifetimes
from dovetail.journal.layout import unpack_names
from dovetail.journal.messages import MessageBlock, MessageRow
from dovetail.journal.reader import Commit, JournalReader
from dovetail.journal.stored_tree import GrowingTree, JournalTree
from dovetail.model.errors import CheckpointError, JournalDamaged, JournalError
from dovetail.model.fabric import Agreement
from dovetail.model.hop import Stage
from dovetail.tlog.checkpoint import SignedCheckpoint, verify_checkpoint
from dovetail.tlog.keys import Verifier
from dovetail.tlog.tree import HASH_BYTES

MAX_FINDINGS = 100


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong: with one hop, with one of the hops from `seq` to `last`, or with the file as a whole."""

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
    """The outcome for one journal."""

    server: str
    hops: int = 0
    messages: int = 0
    checkpoints: int = 0
    committed: int = 0
    findings: list[Finding] = field(default_factory=list)

    @property
    def is_intact(self) -> bool:
        """Whether nothing is wrong."""
        return not self.findings

    @property
    def first(self) -> Finding | None:
        """What is wrong first: a single hop rather than a range it lies in, hops rather than the file as a whole."""
        placed = [f for f in self.findings if f.seq is not None]
        return min(placed, key=lambda f: f.last or f.seq or 0) if placed else next(iter(self.findings), None)


Progress = Callable[[int, int], None]


def no_progress(done: int, total: int) -> None:
    """Tells nobody."""
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
    """Recompute everything in the journal at `path`; JournalError only where it cannot be opened at all.

    With `trusted` keys the journal's own key must be among them. With `since` its tree must begin with that checkpoint,
    and with `known` with what others know of it; that it is not behind its high-water mark is checked anyway.
    Where it takes an agreement to know when messages expire, that is checked only with it.
    """
    with JournalReader.open(path) as reader:
        verdict = Verdict(reader.identity.server)
        try:
            _Verification(reader, verdict, list(trusted), since, list(known), agreement, progress).run()
        except (JournalError, ValueError, TypeError, ArithmeticError, LookupError, MemoryError, struct.error) as error:
            # a damaged file may hold anything anywhere
            verdict.findings.append(Finding(verdict.hops, f"cannot be read: {error}"))
        return verdict


class _Verification:
    """One pass over one journal."""

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
        self._lifetimes = Lifetimes(reader, agreement)
        self._progress = progress
        self._tree = JournalTree(reader)
        self._growing = GrowingTree()
        self._last_at_us: int | None = None
        self._is_root_wrong = False
        self._indexed_seq = reader.progress("indexed_seq")
        self._indexed_message = reader.progress("indexed_message")
        self._runs = read_runs(reader)
        self._run_addresses: list[bytes] = []
        self._listed_rows = 0
        self._listed_hops = 0
        self._listed_expiries = 0
        self._last_id = 0
        self._purged = _Marks(reader.message_count)
        self._with_body = _Marks(reader.message_count)
        self._made_here = _Marks(reader.message_count)
        self._taken = _Marks(reader.message_count)
        self._names = _Marks(reader.one("SELECT coalesce(max(id), 0) FROM names")[0])

    def run(self) -> None:
        self._check_pages()
        self._check_key()
        self._check_continuity()
        pending = self._notes()
        total = self._reader.size
        try:
            for commit in self._reader.commits():
                self._check_commit(commit, pending)
                self._progress(self._verdict.hops, total)
        except JournalDamaged as error:
            self._find(self._verdict.hops, str(error))
            return
        self._check_open_block()
        for size, _ in pending:
            self._find(self._verdict.hops, f"a checkpoint commits to {size} hops, the journal has {self._verdict.hops}")
        self._check_messages()
        self._check_leftovers()

    def _find(self, seq: int | None, detail: str, last: int | None = None) -> None:
        if len(self._verdict.findings) < MAX_FINDINGS:
            self._verdict.findings.append(Finding(seq, detail, last))

    def _check_pages(self) -> None:
        for (text,) in self._reader.all("PRAGMA integrity_check(10)"):
            if text != "ok":
                self._find(None, f"SQLite: {text}")

    def _check_key(self) -> None:
        own = self._reader.identity.verifier
        if own.name != self._reader.identity.server:
            self._find(None, f"the key inside is named {own.name}, not {self._reader.identity.server}")
        if self._reader.identity.fabric != name_of(own.name):
            self._find(None, f"{own.name} is not a server of the fabric {self._reader.identity.fabric}")
        if self._trusted and own not in self._trusted:
            self._find(None, f"the key inside is not a trusted key of {own.name}")

    def _check_continuity(self) -> None:
        for detail in find_breaks(self._reader, self._known):
            self._find(None, f"the journal {detail}")

    def _notes(self) -> list[tuple[int, str]]:
        rows = self._reader.all("SELECT size, note FROM checkpoints ORDER BY size")
        made = self._reader.progress("checkpoints")
        if made != len(rows):
            self._find(None, f"{len(rows)} checkpoints are stored, {made} were made")
        self._verdict.checkpoints = len(rows)
        return rows if self._since is None else sorted([*rows, (self._since.size, self._since.note)])

    def _check_commit(self, commit: Commit, pending: list[tuple[int, str]]) -> None:
        if commit.first_seq != self._verdict.hops:
            raise JournalDamaged(f"hops {self._verdict.hops} to {commit.first_seq - 1} are missing")
        self._check_times(commit)
        messages = self._reader.messages_by_id({run.message_id for run in commit.runs})
        leaves = self._tree.hash_commit(commit, messages)
        if len(leaves) != commit.count * HASH_BYTES:
            raise JournalDamaged(f"the commit claims {commit.count} hops and holds {len(leaves) // HASH_BYTES}")
        size = sum(m.size or 0 for m in messages.values() if m.body_seq in range(commit.first_seq, commit.end))
        if size != commit.body_bytes:
            self._find(commit.first_seq, f"the commit claims {commit.body_bytes} bytes of messages and brings {size}")
        if commit.first_seq < self._indexed_seq < commit.end:
            self._find(commit.first_seq, f"lookup tables end inside the commit, at {self._indexed_seq}")
        self._check_new_messages(commit, set(messages))
        seq = commit.first_seq
        for run in commit.runs:
            if messages[run.message_id].body_seq == seq:
                self._with_body.add(run.message_id)
                if run.stage == Stage.CREATED.code:
                    self._made_here.add(run.message_id)
                elif run.stage == Stage.ACCEPTED.code:
                    self._taken.add(run.message_id)
            if run.stage == Stage.PURGED.code:
                self._purged.add(run.message_id)
            names = unpack_names(run.counterparts)
            for name_id in names:
                self._names.add(name_id)
            seq += len(names) or 1
        taken = 0
        while pending and pending[0][0] <= commit.end:
            size, note = pending.pop(0)
            end = max(taken, (size - commit.first_seq) * HASH_BYTES)
            self._grow(leaves[taken:end])
            taken = end
            self._check_checkpoint(size, note)
        self._grow(leaves[taken:])
        self._verdict.hops = commit.end

    def _check_new_messages(self, commit: Commit, message_ids: set[int]) -> None:
        """The commit brings the messages of its own row; hops of older ones can be found by their message."""
        new = {message_id for message_id in message_ids if message_id > self._last_id}
        if new:
            row = self._reader.one("SELECT count, first_seq FROM messages WHERE first_id = ?", (self._last_id + 1,))
            if row != (len(new), commit.first_seq) or max(new) != self._last_id + len(new):
                self._find(commit.first_seq, "the commit's messages are not those of its row")
            self._last_id = max(new)
        if commit.first_seq >= self._indexed_seq:
            return
        for message_id in message_ids - new:
            self._listed_hops += 1
            if not self._reader.one(
                "SELECT 1 FROM hop_index WHERE message_id = ? AND first_seq = ?", (message_id, commit.first_seq)
            ):
                self._find(commit.first_seq, "it cannot be found by its message")

    def _check_times(self, commit: Commit) -> None:
        if self._last_at_us is not None and commit.first_at_us < self._last_at_us:
            self._find(commit.first_seq, f"time goes back by {self._last_at_us - commit.first_at_us} microseconds")
        if any(run.after_us < 0 for run in commit.runs):
            self._find(commit.first_seq, "time goes back inside the commit")
        if commit.first_at_us + sum(run.after_us for run in commit.runs) != commit.last_at_us:
            self._find(commit.first_seq, "the commit's last time is not that of its last hop")
        self._last_at_us = commit.last_at_us

    def _grow(self, leaves: bytes) -> None:
        """Compare with the stored tree; the 8 bytes kept of each leaf tell the very row."""
        self._growing.extend(leaves)
        growth = self._growing.take_growth()
        for number, root, checks in growth.blocks:
            self._check_block(number, root, checks)
        for level, number, node in growth.nodes:
            row = self._reader.one("SELECT hash FROM nodes WHERE level = ? AND number = ?", (level, number))
            if row is not None and row[0] != node:
                self._find(number << level, f"the tree's node over {1 << level} hops is not that of its hops")
            elif row is None and self._committed_size() >= (number + 1) << level:
                self._find(number << level, f"the tree's node over {1 << level} hops is missing")

    def _check_block(self, number: int, root: bytes, checks: bytes) -> None:
        row = self._reader.one("SELECT root, checks FROM blocks WHERE number = ?", (number,))
        first = number << BLOCK_LEVEL
        if row is None:
            if self._committed_size() > first:
                self._find(first, "its block of the tree is missing")
            return
        stored_root, stored = row
        expected = min(self._committed_size() - first, BLOCK_LEAVES) * CHECK_BYTES
        if len(stored) != expected:
            self._find(first, f"its block of the tree has {len(stored)} bytes of checks, expected {expected}")
        for offset in range(0, min(len(stored), len(checks)), CHECK_BYTES):
            if stored[offset : offset + CHECK_BYTES] != checks[offset : offset + CHECK_BYTES]:
                self._find(first + offset // CHECK_BYTES, "it is not the hop that was hashed into the tree")
                return
        if stored_root != (root if expected == BLOCK_LEAVES * CHECK_BYTES else b""):
            self._find(first, "its block of the tree has another root than its hops")

    def _check_open_block(self) -> None:
        block = self._growing.open_block()
        if block is not None:
            self._check_block(*block)

    def _committed_size(self) -> int:
        """How many hops the journal says it has hashed."""
        row = self._reader.one("SELECT max(size) FROM checkpoints")
        return row[0] or 0

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
            # every later root is wrong as well: only the first tells something
            self._is_root_wrong = True
            self._find(intact, "not those that were signed", size - 1)

    def _check_messages(self) -> None:
        """Every message is used by a hop, and its bytes are those that were accepted."""
        for block in self._reader.message_blocks():
            if block.first_id != self._verdict.messages + 1:
                self._find(None, f"messages {self._verdict.messages + 1} to {block.first_id - 1} are missing")
            for message_id in range(block.first_id, block.end):
                self._check_message(block.row(message_id, with_raw=True))
            if block.end - 1 <= self._indexed_message:
                self._check_expiry(block)
            self._verdict.messages = block.end - 1
        if self._verdict.messages != self._last_id:
            self._find(None, f"{self._verdict.messages} messages are stored, hops name {self._last_id}")

    def _check_message(self, message: MessageRow) -> None:
        if message.id <= self._indexed_message:
            self._check_index(message)
        if message.raw is None and message.expires_us is not None:
            self._find(message.body_seq, f"message {message.address.hex()} has an expiry and no bytes")
        if message.body_seq is not None and message.id not in self._with_body:
            self._find(message.body_seq, f"it does not bring the bytes of message {message.address.hex()}")
        if message.body_seq is None:
            if message.raw is not None or message.size is not None or message.digest is not None:
                self._find(None, f"message {message.address.hex()} has bytes that no hop carries")
            return
        if message.raw is not None and hashlib.sha256(message.raw).digest() != message.digest_on(message.body_seq):
            self._find(message.body_seq, f"the bytes of message {message.address.hex()} were changed")
        self._check_lifetime(message)
        if message.raw is None and message.digest is not None and message.id not in self._purged:
            self._find(
                message.body_seq, f"the bytes of message {message.address.hex()} are missing and were not purged"
            )
        if message.raw is not None and message.id in self._purged:
            self._find(message.body_seq, f"the bytes of message {message.address.hex()} are there, though purged")

    def _check_lifetime(self, message: MessageRow) -> None:
        """The expiry that is stored is the one that the bytes state. Bytes with none are kept, which harms nobody."""
        if message.expires_us is None or message.raw is None or not self._lifetimes.are_known:
            return
        is_own = message.id in self._made_here
        stage = Stage.CREATED if is_own else Stage.ACCEPTED if message.id in self._taken else Stage.REJECTED
        end_us = self._lifetimes.end_us(message.raw, message.size, stage)
        # earlier versions stored one for a broker's own messages of version 2, which state none; purging ignores it
        if end_us != message.expires_us and not (is_own and end_us is None):
            self._find(
                message.body_seq, f"message {message.address.hex()} is stored with another expiry than it states"
            )

    def _check_index(self, message: MessageRow) -> None:
        self._run_addresses.append(message.address)
        if self._runs and message.id == self._runs[0].end - 1:
            self._check_run(self._runs.pop(0))

    def _check_expiry(self, block: MessageBlock) -> None:
        if block.expires_us is None:
            return
        self._listed_expiries += 1
        where = (block.expires_us, block.first_id)
        if not self._reader.one("SELECT 1 FROM expiry_index WHERE expires_us = ? AND first_id = ?", where):
            self._find(block.first_seq, f"messages {block.first_id} to {block.end - 1} are listed with another expiry")

    def _check_run(self, run: AddressRun) -> None:
        """A run of the address index holds its messages and no others."""
        addresses, self._run_addresses = self._run_addresses, []
        stored = dict(read_rows(self._reader, run.first_id, run.first_id))
        expected = encode_buckets(addresses, run.end - len(addresses))
        if stored != expected:
            self._find(None, f"messages {run.first_id} to {run.end - 1} cannot be found by their addresses")
        self._listed_rows += len(expected)

    def _check_leftovers(self) -> None:
        """Rows that nothing refers to, and lookup tables that say something else than the journal."""
        for (name_id,) in self._reader.all("SELECT id FROM names"):
            if name_id not in self._names:
                self._find(None, f"counterpart {name_id} belongs to no hop")
        if self._runs or self._run_addresses:
            self._find(None, f"the address index does not end at message {self._indexed_message}")
        if self._indexed_seq > self._verdict.hops or self._indexed_message > self._last_id:
            self._find(None, "lookup tables claim to go beyond the end of the journal")
        for table, expected in (
            ("hop_index", self._listed_hops),
            ("address_index", self._listed_rows),
            ("expiry_index", self._listed_expiries),
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


class _Marks:
    """A set of small numbers, one bit each."""

    __slots__ = ("_bits",)

    def __init__(self, highest: int) -> None:
        self._bits = bytearray(highest // 8 + 1)

    def add(self, number: int) -> None:
        if number >> 3 < len(self._bits):
            self._bits[number >> 3] |= 1 << (number & 7)

    def __contains__(self, number: int) -> bool:
        return bool(self._bits[number >> 3] >> (number & 7) & 1)
