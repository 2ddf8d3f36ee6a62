"""Where a receipt's facts come from: a journal (`journal_source`) or the lake (`lake_source`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from dovetail.model.address import Address
from dovetail.model.errors import ReceiptError
from dovetail.model.hop import Fabric, Hop
from dovetail.tlog.checkpoint import SignedCheckpoint
from dovetail.tlog.keys import Verifier

MAX_MATCHES = 100
"""Of more messages than this a source need not tell when it is asked for a beginning."""


@dataclass(frozen=True, slots=True)
class KeptHop:
    """A hop with the digest that its leaf commits to."""

    hop: Hop
    digest: bytes


class Source(Protocol):
    """The hops of one server, and the tree that commits to them."""

    @property
    def server(self) -> str:
        """The server's URI."""

    @property
    def fabric(self) -> Fabric:
        """The server's fabric."""

    @property
    def verifier(self) -> Verifier:
        """The key it signs with, as the source itself has it."""

    def latest_checkpoint(self) -> SignedCheckpoint | None:
        """The checkpoint over the most hops."""

    def find(self, prefix: bytes) -> set[Address]:
        """Addresses that begin with `prefix`: all of them, or at least MAX_MATCHES."""

    def hops_of(self, address: Address) -> list[KeptHop]:
        """All hops of one message, in order."""

    def raw(self, address: Address) -> bytes | None:
        """The bytes of one message, where they are kept."""

    def bodies_between(self, first: int, end: int) -> Iterator[tuple[Address, bytes]]:
        """Messages whose bytes lie on hops from `first` up to and without `end`."""

    def hops_between(self, first: int, end: int) -> Sequence[KeptHop]:
        """Hops from `first` up to and without `end`."""

    def seq_at(self, at_us: int) -> int:
        """The position of the first hop whose time is `at_us` or later."""

    def node(self, level: int, number: int) -> bytes:
        """The hash of a perfect subtree, as `merkle.NodeSource` has it."""


def check_covers(source: Source, signed: SignedCheckpoint) -> SignedCheckpoint:
    """That the source has all the hops of this checkpoint."""
    latest = source.latest_checkpoint()
    if latest is None or latest.size < signed.size:
        size = 0 if latest is None else latest.size
        raise ReceiptError(f"a checkpoint of {signed.size} hops of {source.server}, of which {size} are signed here")
    return signed
