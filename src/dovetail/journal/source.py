"""A journal as a source of hops and proofs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from dovetail.journal.database import BLOCK_LEAVES, BLOCK_LEVEL
from dovetail.journal.hop_source import MAX_MATCHES, CommittedHop, HopRange
from dovetail.journal.reader import JournalReader
from dovetail.journal.stored_tree import JournalTree
from dovetail.model.address import Address
from dovetail.model.errors import JournalDamaged
from dovetail.model.hop import Hop
from dovetail.tlog.checkpoint import SignedCheckpoint
from dovetail.tlog.keys import Verifier
from dovetail.tlog.tree import HASH_BYTES

_MAX_BLOCKS_CACHED = 256


class JournalSource:
    """A journal, live or closed; the ranges it is read in are its group commits."""

    def __init__(self, reader: JournalReader) -> None:
        self._reader = reader
        self._tree = JournalTree(reader)
        self._leaves: dict[int, bytes] = {}

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open the journal at `path`; JournalError if there is none."""
        return cls(JournalReader.open(path))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._reader.close()

    @property
    def server(self) -> str:
        """The server's URI."""
        return self._reader.identity.server

    @property
    def fabric(self) -> str:
        """The server's fabric."""
        return self._reader.identity.fabric

    @property
    def verifier(self) -> Verifier:
        """The key that the journal itself states."""
        return self._reader.identity.verifier

    @property
    def size(self) -> int:
        """How many hops are durable."""
        return self._reader.size

    def latest_checkpoint(self) -> SignedCheckpoint | None:
        """The checkpoint over the most hops."""
        return self._reader.latest_checkpoint()

    def find(self, prefix: bytes) -> set[Address]:
        """Addresses that start with `prefix`, at most MAX_MATCHES."""
        return {row.address for row in self._reader.find(prefix, MAX_MATCHES)}

    def hops_of(self, address: Address) -> list[CommittedHop]:
        """All hops of one message, in order."""
        message = self._reader.message(address)
        if message is None:
            return []
        return [CommittedHop(hop, message.digest_on(hop.seq)) for hop in self._reader.hops_of(address)]

    def hops_between(self, first: int, end: int) -> list[CommittedHop]:
        """Hops from `first` up to but excluding `end`."""
        hops: list[CommittedHop] = []
        for commit in self._reader.commits(first, end):
            messages = self._reader.messages_by_id({run.message_id for run in commit.runs})
            for run in commit.runs:
                self._reader.message_of(run, messages, commit.first_seq)
            by_address = {message.address: message for message in messages.values()}
            hops.extend(
                CommittedHop(hop, by_address[hop.message].digest_on(hop.seq))
                for hop in self._reader.hops_of_commit(commit, messages)
                if first <= hop.seq < end
            )
        return hops

    def raw(self, address: Address) -> bytes | None:
        """The bytes of one message, if they are stored."""
        return self._reader.raw(address)

    def bodies_between(self, first: int, end: int) -> Iterator[tuple[Address, bytes]]:
        """Messages whose bytes are stored with hops from `first` up to but excluding `end`."""
        for hop in self._reader.hops(first, end):
            if hop.raw is not None:
                yield hop.message, hop.raw

    def range_before(self, end: int) -> tuple[int, int | None] | None:
        """The last commit that starts before hop `end`: its first hop and the time of its last one, None if damaged."""
        row = self._reader.one(
            "SELECT first_seq, count, last_at_us FROM commits WHERE first_seq < ? ORDER BY first_seq DESC LIMIT 1",
            (end,),
        )
        expected = min(end, max(self._reader.size, self._reader.marked_size()))
        if row is None and expected <= 0:
            return None
        # a damaged index may return anything; faults inside the commit are reported when it is read
        if (
            row is not None
            and all(type(value) is int for value in row)
            and row[0] < end
            and row[0] + row[1] >= expected
        ):
            with contextlib.suppress(JournalDamaged):
                next(self._reader.commits(row[0], row[0] + 1))
                return row[0], row[2]
            return row[0], None
        raise JournalDamaged(f"{self._reader.path}: the hops before hop {end} are not there")

    def read(self, first: int, end: int, *, with_bytes: bool) -> HopRange:
        """The commit that starts at hop `first`, without hops from `end` on; with all bytes that the journal stores."""
        hops: list[Hop] = []
        bodies: dict[Address, bytes | None] = {}
        for commit in self._reader.commits(first, first + 1):
            ids = {run.message_id for run in commit.runs}
            messages = self._reader.messages_by_id(ids, 0, self._reader.size if with_bytes else 0)
            for run in commit.runs:
                self._reader.message_of(run, messages, commit.first_seq)
            hops += [hop for hop in self._reader.hops_of_commit(commit, messages) if hop.seq < end]
            bodies |= {message.address: message.raw for message in messages.values()}
        return HopRange(hops, bodies)

    def seq_at(self, at_us: int) -> int:
        """The position of the first hop at or after time `at_us`."""
        return self._reader.seq_at(at_us)

    def node(self, level: int, number: int) -> bytes:
        """The hash of a perfect subtree. Proofs need many inside one block of leaves, so blocks are cached."""
        if level >= BLOCK_LEVEL:
            return self._tree.node(level, number)
        block, place = divmod(number << level, BLOCK_LEAVES)
        if block not in self._leaves:
            if len(self._leaves) >= _MAX_BLOCKS_CACHED:
                self._leaves.clear()
            first = block * BLOCK_LEAVES
            self._leaves[block] = b"".join(self._tree.leaf_hashes(first, first + BLOCK_LEAVES))
        start = place * HASH_BYTES
        return self._tree.fold(self._leaves[block][start : start + (HASH_BYTES << level)], level, number)
