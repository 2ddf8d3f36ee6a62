"""A journal in memory that keeps the contract of `hop.py`, fast enough for thousands of seeds.

Appending only records the observations; hops are built from them when they are read. An append is atomic, like the
group commit it stands for: a crash leaves all of it or nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from dovetail.fabrics import name_of
from dovetail.journal.writer import BEFORE_ALL_TIME_US
from dovetail.model.address import ADDRESS_BYTES, Address
from dovetail.model.errors import JournalError
from dovetail.model.hop import Hop, Observation


class MemoryJournal:
    """Hops: `seq` gapless from 0, `at` never backwards, a message's bytes on the first hop that has them."""

    def __init__(self, server: str) -> None:
        self.server = server
        self.fabric = name_of(server)
        self.size = 0
        self._last_at_us = BEFORE_ALL_TIME_US
        self._unread: list[tuple[int, Observation]] = []
        self._hops: list[Hop] = []
        self._kept: set[Address] = set()

    def append(self, observations: Sequence[Observation], /) -> int:
        """Append the observations, all or none; returns the new size."""
        for observation in observations:
            if len(observation.message) != ADDRESS_BYTES:
                raise JournalError(f"an address has {ADDRESS_BYTES} bytes, got {len(observation.message)}")
            if "" in observation.counterparts:
                raise JournalError("a counterpart without a name")
        for observation in observations:
            self._last_at_us = max(self._last_at_us, observation.at_us)
            self._unread.append((self._last_at_us, observation))
            self.size += len(observation.counterparts) or 1
        return self.size

    def hops(self) -> Iterator[Hop]:
        """All hops so far, by `seq`."""
        for at_us, observation in self._unread:
            self._make_hops(at_us, observation)
        self._unread.clear()
        return iter(self._hops)

    def close(self) -> None:
        """Nothing to release: the memory stands for the disk and outlives the process."""

    def _make_hops(self, at_us: int, seen: Observation) -> None:
        has_body = (seen.raw is not None or seen.size is not None) and seen.message not in self._kept
        if has_body:
            self._kept.add(seen.message)
        size = len(seen.raw) if seen.size is None and seen.raw is not None else seen.size
        for counterpart in seen.counterparts or (None,):
            self._hops.append(
                Hop(
                    server=self.server,
                    seq=len(self._hops),
                    at_us=at_us,
                    fabric=self.fabric,
                    stage=seen.stage,
                    message=seen.message,
                    counterpart=counterpart,
                    reason=seen.reason,
                    raw=seen.raw if has_body else None,
                    size=size if has_body else None,
                )
            )
            has_body = False


class MemoryDisks:
    """The default JournalFactory: one MemoryJournal per process, which survives a crash."""

    def __init__(self) -> None:
        self._journals: dict[str, MemoryJournal] = {}

    def __call__(self, place: str, server: str) -> MemoryJournal:
        if place not in self._journals:
            self._journals[place] = MemoryJournal(server)
        return self._journals[place]


def digest_hops(hops: Iterable[Hop]) -> str:
    """SHA-256 over all fields of all hops in order, as hex: equal digests mean equal journals."""
    encoder = msgspec.msgpack.Encoder()
    digest = hashlib.sha256()
    for hop in hops:
        digest.update(encoder.encode(hop))
    return digest.hexdigest()
