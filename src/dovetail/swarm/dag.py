"""The directed acyclic graph of unexpired messages: which refer to which, what is missing, what to refer to next.

Messages are indexed by their full 32-byte address; the 8 bytes on the wire are only a hint, and two messages that
share them are both kept and reported (reading 6). An edge counts when the referrer is strictly newer than the referee
(reading 9); a message that breaks the rule is kept and the edge is not counted. Counted edges always lead back in
time, so every cycle has an edge that is not counted. While a message with such an edge is unexpired, each message that
arrives after it was referred to may close a cycle, and a bounded search looks for a path back to it; a cycle is
reported. Correct composers never create such an edge, so normally there is no search. References keep no expired
message alive; when a referrer expires, a message that nothing else refers to becomes a tip again, and the next
composer refers to it.

Messages of ttl 0 are known by address only, so that they are relayed once; they have no edges (reading 12).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from heapq import heappop, heappush, nsmallest
from itertools import islice
from typing import Final

import msgspec

from dovetail.model.address import Address
from dovetail.swarm.acceptance import Entry
from dovetail.swarm.content import MAX_REFERENCES, MsgHash, Reference, epoch_diff_of, is_expired
from dovetail.swarm.peer_exchange import Endpoint
from dovetail.swarm.room import Room
from dovetail.swarm.times import TimeIndex

MAX_AWAITED: Final = 16_384
"""Unresolved references whose referrers are remembered, so that the edge counts when the referee arrives."""
MAX_REFERRERS: Final = 8
"""Referrers remembered for each of them."""
MAX_CYCLE_SEARCH: Final = 512
MAX_UNCOUNTED: Final = 256
"""Unexpired messages remembered for having an edge that is not counted."""
RECENT: Final = 32
"""How many of the newest messages are candidates for references, besides the tips."""


class Added(msgspec.Struct, frozen=True, gc=False):
    """The result of adding a message."""

    missing: tuple[MsgHash, ...] = ()
    collides_with: tuple[Address, ...] = ()
    cycle: tuple[Address, ...] = ()


NO_FINDINGS: Final = Added()


class Dag:
    """All unexpired messages of one swarm, as one peer knows them."""

    def __init__(self, epoch_ms: int, room: Room | None = None) -> None:
        self._epoch_ms = epoch_ms
        self.room = room or Room()
        self.entries: dict[Address, Entry] = {}
        """All messages that others may pull; read-only outside this class."""
        self.push_only: dict[Address, Endpoint] = {}
        """Unexpired messages of ttl 0 and their sources; read-only outside this class."""
        self._by_hash: dict[MsgHash, Entry] = {}
        self._collided: dict[MsgHash, list[Entry]] = {}
        """Further messages with the wire hash of one in `_by_hash`."""
        self._times: TimeIndex[Entry] = TimeIndex()
        self._tips: dict[Address, Entry] = {}
        self._expiry: list[tuple[int, Address]] = []
        self._awaited: dict[MsgHash, list[Address]] = {}
        self._uncounted: dict[Address, int] = {}

    def __len__(self) -> int:
        return len(self.entries)

    def __contains__(self, address: Address) -> bool:
        return address in self.entries or address in self.push_only

    @property
    def tips(self) -> Sequence[Entry]:
        """Messages that no unexpired message refers to."""
        return list(self._tips.values())

    @property
    def next_expiry_ms(self) -> int | None:
        """When the next message expires."""
        return self._expiry[0][0] if self._expiry else None

    def get(self, address: Address) -> Entry | None:
        """A message that others may pull, by its address."""
        return self.entries.get(address)

    def by_hash(self, msg_hash: MsgHash) -> Sequence[Entry]:
        """All messages with this wire hash; more than one is a collision."""
        first = self._by_hash.get(msg_hash)
        return () if first is None else (first, *self._collided.get(msg_hash, ()))

    def between(self, start_ms: int, end_ms: int) -> Iterator[Entry]:
        """Messages that others may pull, from `start_ms` to `end_ms` inclusive, in order."""
        return self._times.between(start_ms, end_ms)

    def addresses(self) -> set[Address]:
        """All messages that others may pull."""
        return set(self.entries)

    def add(self, entry: Entry) -> Added:
        """Add a message that is not present yet."""
        address, msg_hash, timestamp_ms = entry.address, entry.msg_hash, entry.timestamp_ms
        heappush(self._expiry, (entry.expires_ms, address))
        if entry.ttl_epochs == 0:
            self.push_only[address] = entry.source
            self.room.take(entry.source, 0)
            return NO_FINDINGS
        self.room.take(entry.source, len(entry.raw))
        self.entries[address] = entry
        self._times.add(entry)
        by_hash, tips = self._by_hash, self._tips
        collides_with: tuple[Address, ...] = ()
        if by_hash.setdefault(msg_hash, entry) is not entry:
            collides_with = tuple([other.address for other in self.by_hash(msg_hash)])
            self._collided.setdefault(msg_hash, []).append(entry)
        tips[address] = entry
        referrers = self._awaited.pop(msg_hash, None) if self._awaited else None
        missing: tuple[MsgHash, ...] = ()
        for edge in entry.refers:
            referee = by_hash.get(edge)
            if referee is None:
                self._await(edge, address)
                missing += (edge,)
            elif referee.timestamp_ms < timestamp_ms:
                # the common case of `_link`, inlined
                if not referee.referred:
                    tips.pop(referee.address, None)
                referee.referred += 1
            else:
                self._link(entry, referee)
        cycle = self._resolve(entry, referrers) if referrers else ()
        if missing or collides_with or cycle:
            return Added(missing, collides_with, cycle)
        return NO_FINDINGS

    def expire(self, now_ms: int) -> list[Address]:
        """Remove everything expired; returns the addresses of what was removed (UEP-12, Message Life-Cycle)."""
        removed = []
        while self._expiry and is_expired(self._expiry[0][0], now_ms):
            address = heappop(self._expiry)[1]
            removed.append(address)
            entry = self.entries.pop(address, None)
            if entry is None:
                self.room.release(self.push_only.pop(address), 0)
            else:
                self.room.release(entry.source, len(entry.raw))
                self._remove(entry)
        return removed

    def choose_references(self, timestamp_ms: int, expires_ms: int) -> tuple[Reference, ...]:
        """Least referred to first, then those that expire no later than the new message, then the newest."""
        candidates = {entry.address: entry for entry in islice(self._times.before(timestamp_ms), RECENT)}
        candidates |= self._tips
        eligible = [entry for entry in candidates.values() if entry.timestamp_ms < timestamp_ms]
        chosen = nsmallest(
            MAX_REFERENCES,
            eligible,
            key=lambda entry: (entry.referred, entry.expires_ms > expires_ms, -entry.timestamp_ms, entry.address),
        )
        return tuple(
            [Reference(entry.msg_hash, epoch_diff_of(expires_ms, entry.expires_ms, self._epoch_ms)) for entry in chosen]
        )

    def _link(self, referrer: Entry, referee: Entry) -> None:
        """Count an edge, if the referrer is strictly newer."""
        if referrer.timestamp_ms <= referee.timestamp_ms:
            if len(self._uncounted) >= MAX_UNCOUNTED:
                del self._uncounted[next(iter(self._uncounted))]
            self._uncounted[referrer.address] = referrer.timestamp_ms
            return
        referee.referred += 1
        if referee.referred == 1:
            self._tips.pop(referee.address, None)

    def _await(self, msg_hash: MsgHash, referrer: Address) -> None:
        referrers = self._awaited.get(msg_hash)
        if referrers is None:
            if len(self._awaited) >= MAX_AWAITED:
                del self._awaited[next(iter(self._awaited))]
            self._awaited[msg_hash] = [referrer]
        elif len(referrers) < MAX_REFERRERS:
            referrers.append(referrer)

    def _resolve(self, entry: Entry, referrers: Sequence[Address]) -> tuple[Address, ...]:
        """Count the edges that awaited a message; only one that was referred to before it arrived can close a cycle."""
        for address in referrers:
            referrer = self.entries.get(address)
            if referrer is not None:
                self._link(referrer, entry)
        return self._find_cycle(entry) if self._uncounted else ()

    def _find_cycle(self, start: Entry) -> tuple[Address, ...]:
        """The shortest path along the references from a message back to itself, if there is one within the limit."""
        # from messages older than these, all paths lead further back
        oldest_ms = min(self._uncounted.values())
        came_from: dict[Address, Address] = {}
        waiting = deque([start])
        while waiting and len(came_from) < MAX_CYCLE_SEARCH:
            entry = waiting.popleft()
            for edge in entry.refers:
                for other in self.by_hash(edge):
                    if other.address not in came_from and other.timestamp_ms >= oldest_ms:
                        came_from[other.address] = entry.address
                        waiting.append(other)
            if start.address in came_from:
                path = [came_from[start.address]]
                while path[-1] != start.address:
                    path.append(came_from[path[-1]])
                return tuple(reversed(path))
        return ()

    def _remove(self, entry: Entry) -> None:
        entry.is_live = False
        self._uncounted.pop(entry.address, None)
        self._times.remove(entry)
        self._tips.pop(entry.address, None)
        self._forget_hash(entry)
        for edge in entry.refers:
            referee = self._by_hash.get(edge)
            if referee is not None and referee.timestamp_ms < entry.timestamp_ms and referee.referred:
                referee.referred -= 1
                if not referee.referred:
                    self._tips[referee.address] = referee

    def _forget_hash(self, entry: Entry) -> None:
        same = [other for other in self.by_hash(entry.msg_hash) if other is not entry]
        self._collided.pop(entry.msg_hash, None)
        if same:
            self._by_hash[entry.msg_hash] = same[0]
        else:
            del self._by_hash[entry.msg_hash]
        if len(same) > 1:
            self._collided[entry.msg_hash] = same[1:]
