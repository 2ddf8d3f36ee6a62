"""Reads all messages of a journal once, and checks that their bytes are correct and that they can be found.

This is one half of `journal verify`; it runs in its own thread beside the other half, which reads the hops. What
depends on both is checked when both are done, from one byte per message (`survey_messages`).
"""

from __future__ import annotations

import threading
from collections import deque
from contextlib import closing
from pathlib import Path

from dovetail.journal.addresses import AddressRun, encode_buckets, read_rows, read_runs
from dovetail.journal.expiry import Lifetimes
from dovetail.journal.messages import MessagesRow
from dovetail.journal.reader import JournalReader
from dovetail.journal.stored import (
    HAS_BODY,
    HAS_BYTES,
    HAS_DIGEST,
    HAS_EXPIRY,
    HAS_SIZE,
    IS_CHANGED,
    IS_OTHER_EXPIRY,
    PURGES,
    STATES_NO_EXPIRY,
    survey_messages,
)
from dovetail.model.errors import JournalDamaged
from dovetail.model.fabric import Agreement, ExpiryTemplate
from dovetail.model.hop import Stage

MAX_TEMPLATES = 64
MAX_HANDOVER_BYTES = 4 << 20


def find_faults(state: int, carried: int) -> list[str]:
    """What is wrong with a message whose row has this state, and whose hops say `carried`."""
    faults: list[str] = []
    stage = carried & ~PURGES
    if state & HAS_EXPIRY and not state & HAS_BYTES:
        faults.append("message {} has an expiry and no bytes")
    if not state & HAS_BODY:
        if state & (HAS_BYTES | HAS_SIZE | HAS_DIGEST):
            faults.append("message {} has bytes that no hop carries")
        return faults
    if not stage:
        faults.append("it does not bring the bytes of message {}")
    if state & IS_CHANGED:
        faults.append("the bytes of message {} were changed")
    if state & HAS_EXPIRY and state & HAS_BYTES and not _is_expiry_right(state, stage):
        faults.append("message {} is stored with another expiry than it states")
    if state & HAS_DIGEST and not state & HAS_BYTES and not carried & PURGES:
        faults.append("the bytes of message {} are missing and were not purged")
    if state & HAS_BYTES and carried & PURGES:
        faults.append("the bytes of message {} are there, though purged")
    return faults


def _is_expiry_right(state: int, stage: int) -> bool:
    """True if the expiry stored with bytes that came on a hop of this stage is the one they state."""
    if stage == Stage.CREATED.code:
        # earlier versions stored one for a broker's own version 2 messages, which state none; purging ignores it
        return not state & IS_OTHER_EXPIRY
    return stage == Stage.ACCEPTED.code and not state & (IS_OTHER_EXPIRY | STATES_NO_EXPIRY)


class RowHandover:
    """Hands rows of messages to the thread that reads the commits, so that each row is read once.

    Both threads go through the file in order. `put` waits only while there are rows to take, and `take` only while
    there are none, so they cannot both wait.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._rows: deque[MessagesRow] = deque()
        self._bytes = 0
        self._last_seq = -1
        self._is_open = True

    def close(self) -> None:
        """From now on `put` does nothing, and `take` returns what is left."""
        with self._changed:
            self._is_open = False
            self._changed.notify_all()

    def put(self, row: MessagesRow) -> None:
        """Hand over the next row."""
        with self._changed:
            while self._bytes >= MAX_HANDOVER_BYTES and self._is_open:
                self._changed.wait()
            if self._is_open:
                self._rows.append(row)
                self._bytes += len(row.rows)
                self._last_seq = row.first_seq
                self._changed.notify_all()

    def take(self, first_seq: int) -> MessagesRow | None:
        """The row of the commit that starts at hop `first_seq`; discards the rows before it. None if there is none."""
        with self._changed:
            while True:
                while self._rows and self._rows[0].first_seq <= first_seq:
                    row = self._rows.popleft()
                    self._bytes -= len(row.rows)
                    self._changed.notify_all()
                    if row.first_seq == first_seq:
                        return row
                if self._rows or self._last_seq >= first_seq or not self._is_open:
                    return None
                self._changed.wait()


class MessageSurvey:
    """One pass over the messages up to number `last_id`, with its own connection."""

    def __init__(self, path: Path, last_id: int, agreement: Agreement | None) -> None:
        self._path = path
        self._last_id = last_id
        self._agreement = agreement
        self._templates: list[ExpiryTemplate] = []
        self._stopped = threading.Event()
        self._runs: list[AddressRun] = []
        self._run_addresses: list[bytes] = []
        self.heads = RowHandover()
        self.findings: list[tuple[int | None, str]] = []
        self.states: list[tuple[int, bytes]] = []
        """For each row, the number of its first message and the states of all its messages."""
        self.messages = 0
        self.index_rows = 0
        self.expiry_rows = 0

    def stop(self) -> None:
        """Make `run` return soon."""
        self._stopped.set()
        self.heads.close()

    def run(self) -> None:
        """Read everything; JournalError if that fails."""
        with JournalReader.open(self._path) as reader:
            try:
                with closing(self.heads):
                    self._read_rows(reader)
            finally:
                damage = [text for (text,) in reader.all("PRAGMA integrity_check(10)") if text != "ok"]
                self.findings[:0] = [(None, f"SQLite: {text}") for text in damage]

    def _read_rows(self, reader: JournalReader) -> None:
        indexed = reader.progress("indexed_message")
        self._runs = read_runs(reader)
        lifetimes = Lifetimes(reader, self._agreement)
        for row in reader.message_rows():
            if self._stopped.is_set() or row.first_id > self._last_id:
                break
            self._survey(reader, row, indexed, lifetimes)
        if not self._stopped.is_set() and (self._runs or self._run_addresses):
            self.findings.append((None, f"the address index does not end at message {indexed}"))

    def _survey(self, reader: JournalReader, row: MessagesRow, indexed: int, lifetimes: Lifetimes) -> None:
        if row.first_id != self.messages + 1:
            self.findings.append((None, f"messages {self.messages + 1} to {row.first_id - 1} are missing"))
        try:
            states, addresses, expires_us, unread, heads = survey_messages(row.rows, self._templates)
        except ValueError as error:
            raise JournalDamaged(f"messages {row.first_id} to {row.end - 1}: {error}") from None
        if len(states) != row.count:
            raise JournalDamaged(f"messages {row.first_id} to {row.end - 1}: the row holds {len(states)} messages")
        self.heads.put(MessagesRow(row.first_id, row.count, row.first_seq, heads))
        if unread and lifetimes.are_known:
            states = self._read_expiries(states, unread, lifetimes)
        self.states.append((row.first_id, states))
        first_id, addresses = row.first_id, addresses[: max(indexed - row.first_id + 1, 0)]
        while self._runs and first_id < self._runs[0].end <= first_id + len(addresses):
            run = self._runs.pop(0)
            self._run_addresses += addresses[: run.end - first_id]
            self._check_run(reader, run)
            first_id, addresses = run.end, addresses[run.end - first_id :]
        self._run_addresses += addresses
        if row.end - 1 <= indexed and expires_us is not None:
            self.expiry_rows += 1
            where = (expires_us, row.first_id)
            if not reader.one("SELECT 1 FROM expiry_index WHERE expires_us = ? AND first_id = ?", where):
                text = f"messages {row.first_id} to {row.end - 1} are listed with another expiry"
                self.findings.append((row.first_seq, text))
        self.messages = row.end - 1

    def _read_expiries(self, states: bytes, unread: list[tuple[int, bytes, int]], lifetimes: Lifetimes) -> bytes:
        """Read messages that match no template, and keep templates of them for later ones."""
        changed = bytearray(states)
        for place, raw, expires_us in unread:
            end_us = lifetimes.stated_us(raw)
            if end_us != expires_us:
                changed[place] |= STATES_NO_EXPIRY if end_us is None else IS_OTHER_EXPIRY
            elif len(self._templates) < MAX_TEMPLATES and (template := lifetimes.template(raw)) is not None:
                self._templates.append(template)
        return bytes(changed)

    def _check_run(self, reader: JournalReader, run: AddressRun) -> None:
        """Check that a run of the address index has exactly its messages."""
        addresses, self._run_addresses = self._run_addresses, []
        expected = encode_buckets(addresses, run.end - len(addresses))
        if dict(read_rows(reader, run.first_id, run.first_id)) != expected:
            text = f"messages {run.first_id} to {run.end - 1} cannot be found by their addresses"
            self.findings.append((None, text))
        self.index_rows += len(expected)
