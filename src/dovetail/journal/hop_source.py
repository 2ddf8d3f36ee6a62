"""How receipts and pages read one server's hops: from a journal (`journal.source`) or the lake (`lake.reader`).

Opens no database, so that a receipt can be verified without one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from dovetail.model.address import Address
from dovetail.model.hop import Hop
from dovetail.tlog.checkpoint import SignedCheckpoint
from dovetail.tlog.keys import Verifier

MAX_MATCHES = 100
"""`find` may stop once it has this many addresses."""


@dataclass(frozen=True, slots=True)
class CommittedHop:
    """A hop with the digest that its leaf commits to."""

    hop: Hop
    digest: bytes


@dataclass(frozen=True, slots=True)
class HopRange:
    """Consecutive hops. `bodies` has the bytes of their messages, if those were requested and are available; None means
    that they are not stored."""

    hops: Sequence[Hop]
    bodies: dict[Address, bytes | None]


class HopSource(Protocol):
    """The hops of one server, and the tree that commits to them."""

    @property
    def server(self) -> str:
        """The server's URI."""

    @property
    def fabric(self) -> str:
        """The name of the server's fabric."""

    @property
    def verifier(self) -> Verifier:
        """The key it signs with, as stated by the source itself."""

    @property
    def size(self) -> int:
        """The current number of hops."""

    def latest_checkpoint(self) -> SignedCheckpoint | None:
        """The checkpoint over the most hops."""

    def find(self, prefix: bytes) -> set[Address]:
        """Addresses that start with `prefix`: all of them, or at least MAX_MATCHES."""

    def hops_of(self, address: Address) -> list[CommittedHop]:
        """All hops of one message, in order."""

    def hops_between(self, first: int, end: int) -> Sequence[CommittedHop]:
        """Hops from `first` up to but excluding `end`."""

    def raw(self, address: Address) -> bytes | None:
        """The bytes of one message, if they are stored."""

    def bodies_between(self, first: int, end: int) -> Iterator[tuple[Address, bytes]]:
        """Messages whose bytes are stored with hops from `first` up to but excluding `end`."""

    def range_before(self, end: int) -> tuple[int, int | None] | None:
        """The range to read next when reading backwards from hop `end`: its first hop and the time of its last one.

        The time is None if the range is damaged, which `read` reports.
        """

    def read(self, first: int, end: int, *, with_bytes: bool) -> HopRange:
        """The range that starts at hop `first`, without hops from `end` on."""

    def seq_at(self, at_us: int) -> int:
        """The position of the first hop at or after time `at_us`."""

    def node(self, level: int, number: int) -> bytes:
        """The hash of a perfect subtree, as defined by `tlog.tree.NodeSource`."""
