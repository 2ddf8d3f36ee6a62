"""Receipts from a journal, live or closed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from dovetail.journal.database import BLOCK_LEAVES, BLOCK_LEVEL
from dovetail.journal.reader import Identity, JournalReader
from dovetail.journal.stored_tree import JournalTree
from dovetail.model.address import Address
from dovetail.model.hop import Fabric
from dovetail.receipt.source import MAX_MATCHES, KeptHop
from dovetail.tlog.checkpoint import SignedCheckpoint
from dovetail.tlog.keys import Verifier
from dovetail.tlog.tree import fold_perfect

_MAX_BLOCKS_KEPT = 256


class JournalSource:
    """A journal, live or closed, read through a connection of its own."""

    def __init__(self, reader: JournalReader) -> None:
        self._reader = reader
        self._tree = JournalTree(reader)
        self._leaves: dict[int, list[bytes]] = {}

    @classmethod
    def open(cls, path: Path) -> Self:
        """The journal at `path`; JournalError where there is none."""
        return cls(JournalReader.open(path))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._reader.close()

    @property
    def identity(self) -> Identity:
        """Whose journal it is."""
        return self._reader.identity

    @property
    def server(self) -> str:
        """The server's URI."""
        return self.identity.server

    @property
    def fabric(self) -> Fabric:
        """The server's fabric."""
        return self.identity.fabric

    @property
    def verifier(self) -> Verifier:
        """The key that the journal itself carries."""
        return self.identity.verifier

    def latest_checkpoint(self) -> SignedCheckpoint | None:
        """The checkpoint over the most hops."""
        return self._reader.latest_checkpoint()

    def find(self, prefix: bytes) -> set[Address]:
        """Addresses that begin with `prefix`."""
        return {row.address for row in self._reader.find(prefix, MAX_MATCHES)}

    def hops_of(self, address: Address) -> list[KeptHop]:
        """All hops of one message, in order."""
        message = self._reader.message(address)
        if message is None:
            return []
        return [KeptHop(hop, message.digest_on(hop.seq)) for hop in self._reader.hops_of(address)]

    def raw(self, address: Address) -> bytes | None:
        """The bytes of one message, where they are kept."""
        return self._reader.raw(address)

    def bodies_between(self, first: int, end: int) -> Iterator[tuple[Address, bytes]]:
        """Messages whose bytes lie on hops from `first` up to and without `end`."""
        for hop in self._reader.hops(first, end):
            if hop.raw is not None:
                yield hop.message, hop.raw

    def hops_between(self, first: int, end: int) -> list[KeptHop]:
        """Hops from `first` up to and without `end`."""
        kept: list[KeptHop] = []
        for commit in self._reader.commits(first, end):
            messages = self._reader.messages_by_id({run.message_id for run in commit.runs})
            by_address = {message.address: message for message in messages.values()}
            kept.extend(
                KeptHop(hop, by_address[hop.message].digest_on(hop.seq))
                for hop in self._reader.hops_of_commit(commit, messages)
                if first <= hop.seq < end
            )
        return kept

    def seq_at(self, at_us: int) -> int:
        """The position of the first hop whose time is `at_us` or later."""
        return self._reader.seq_at(at_us)

    def node(self, level: int, number: int) -> bytes:
        """The hash of a perfect subtree. Proofs ask for many inside one block of leaves, so the last few are kept."""
        if level >= BLOCK_LEVEL:
            return self._tree.node(level, number)
        block, place = divmod(number << level, BLOCK_LEAVES)
        if block not in self._leaves:
            if len(self._leaves) >= _MAX_BLOCKS_KEPT:
                self._leaves.clear()
            first = block * BLOCK_LEAVES
            self._leaves[block] = list(self._tree.leaf_hashes(first, first + BLOCK_LEAVES))
        return fold_perfect(self._leaves[block][place : place + (1 << level)])
