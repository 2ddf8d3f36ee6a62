"""A journal in memory that keeps the contract of `hop.py`, quick enough for thousands of seeds.

Appending only notes the observations; hops are made of them when somebody reads. An append is atomic, like the group
commit it stands for: a crash leaves all of it or nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from dovetail.hop import Address, Fabric, Hop, Observation


class MemoryJournal:
    """One server's hops: `seq` gapless from 0, `at` never backwards, each message's bytes on its first hop only."""

    def __init__(self, server: str, fabric: Fabric) -> None:
        self.server = server
        self.fabric = fabric
        self.size = 0
        self._last_at_us = 0
        self._unread: list[tuple[int, Observation]] = []
        self._hops: list[Hop] = []
        self._seen: set[Address] = set()

    def append(self, observations: Sequence[Observation], /) -> int:
        """Keep the observations; the size after them."""
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
        """Nothing to give back: the memory stands for the disk and outlives the place."""

    def _make_hops(self, at_us: int, seen: Observation) -> None:
        is_first = seen.message not in self._seen
        self._seen.add(seen.message)
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
                    raw=seen.raw if is_first else None,
                    size=size if is_first else None,
                )
            )
            is_first = False


class MemoryDisks:
    """The default JournalFactory: one MemoryJournal per place, found again after a crash."""

    def __init__(self) -> None:
        self._journals: dict[str, MemoryJournal] = {}

    def __call__(self, place: str, server: str, fabric: Fabric) -> MemoryJournal:
        if place not in self._journals:
            self._journals[place] = MemoryJournal(server, fabric)
        return self._journals[place]


def digest_hops(hops: Iterable[Hop]) -> str:
    """SHA-256 over all fields of all hops in order, as hex: equal digests mean equal journals."""
    encoder = msgspec.msgpack.Encoder()
    digest = hashlib.sha256()
    for hop in hops:
        digest.update(encoder.encode(hop))
    return digest.hexdigest()
