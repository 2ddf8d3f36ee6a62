"""Which messages are missing, which peers to ask for them, and when to stop asking.

Each missing hash is wanted once, however many messages refer to it, so following references back terminates for any
shape of the graph (reading 8). A want is delayed a little, since a message that is only late needs no pull; then the
peer that named the hash is asked, then others, one at a time, at growing intervals, `MAX_ATTEMPTS` times. After that it
is given up and remembered for a while, so that references that can never be resolved cost a bounded number of
datagrams. Wants are bounded in total, and to a quarter of that for one source. When all room is taken, the source with
the most gives way to those with fewer, its newest want first, so peers that invent hashes displace only their own.
Where a source's own room is taken, its oldest want gives way once it was asked for in vain so often that it is probably
an invention: one that honest peers relay would otherwise keep out for minutes what does exist. All endpoints that have
not proved their address count as one source. What is not wanted for lack of room is found again by time-range pulls.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Final

from dovetail.model.address import Address
from dovetail.swarm.content import MsgHash, is_expired
from dovetail.swarm.peer_exchange import Endpoint
from dovetail.swarm.queries import MAX_HASHES_SENT

FIRST_DELAY_US: Final = 300_000
RETRY_US: Final = 500_000
QUICK_ATTEMPTS: Final = 12
"""Attempts at a constant interval before it grows: half of them fail at 30 % loss."""
GROWTH: Final = 1.5
MAX_RETRY_US: Final = 4_000_000
MAX_ATTEMPTS: Final = 24
SOURCES: Final = 4
"""One source may name this part of all wants."""
MAX_GIVEN_UP: Final = 4_096
GIVEN_UP_US: Final = 60_000_000
"""How long a given-up hash is not wanted again if the same peer names it."""
CROWDED_US: Final = 100_000
"""Delay of a hash that did not fit into the datagram for its peer."""


class Want:
    """One missing message."""

    __slots__ = (
        "asked",
        "attempts",
        "deadline_ms",
        "due_us",
        "is_announced",
        "is_history",
        "msg_hash",
        "named_by",
        "referrer",
        "share",
        "tried",
        "untried",
    )

    def __init__(
        self,
        msg_hash: MsgHash,
        source: Endpoint,
        share: Endpoint,
        referrer: Address | None,
        deadline_ms: int | None,
    ) -> None:
        self.msg_hash = msg_hash
        self.named_by = source
        self.share = share
        self.untried = [source]
        self.tried: set[Endpoint] = set()
        self.referrer = referrer
        self.deadline_ms = deadline_ms
        self.attempts = 0
        self.due_us = 0
        self.asked: Endpoint | None = None
        self.is_announced = False
        self.is_history = False


class Wants:
    """All missing messages."""

    def __init__(self, max_wanted: int) -> None:
        self._max_wanted = max_wanted
        self._max_per_source = max_wanted // SOURCES
        self._wants: dict[MsgHash, Want] = {}
        self._per_source: dict[Endpoint, dict[MsgHash, None]] = {}
        self._queue: list[tuple[int, MsgHash]] = []
        self._given_up: dict[MsgHash, tuple[Endpoint, int]] = {}
        self.crowded_out = 0
        """Hashes not wanted, or no longer wanted, because the table was full."""

    def __len__(self) -> int:
        return len(self._wants)

    def __contains__(self, msg_hash: MsgHash) -> bool:
        return msg_hash in self._wants

    @property
    def next_due_us(self) -> int | None:
        """When the next pull is due."""
        while self._queue:
            due, msg_hash = self._queue[0]
            want = self._wants.get(msg_hash)
            if want is not None and want.due_us == due:
                return due
            heappop(self._queue)
        return None

    def add(
        self,
        msg_hash: MsgHash,
        source: Endpoint,
        now: int,
        *,
        share: Endpoint | None = None,
        referrer: Address | None = None,
        deadline_ms: int | None = None,
        delay_us: int = FIRST_DELAY_US,
        is_history: bool = False,
    ) -> bool:
        """Want a message that `source` named; True if it was not wanted before. It counts for `share`, if given."""
        want = self._wants.get(msg_hash)
        if want is not None:
            if source not in want.tried and source not in want.untried and len(want.untried) < MAX_ATTEMPTS:
                want.untried.append(source)
                if want.due_us > now + RETRY_US:
                    self._schedule(want, now)
            return False
        given_up = self._given_up.get(msg_hash)
        if given_up is not None and given_up[0] == source and now < given_up[1]:
            return False
        share = source if share is None else share
        if not self._make_room(share):
            self.crowded_out += 1
            return False
        want = self._wants[msg_hash] = Want(msg_hash, source, share, referrer, deadline_ms)
        want.is_history = is_history
        self._per_source.setdefault(share, {})[msg_hash] = None
        self._schedule(want, now + delay_us)
        return True

    def has_room(self, source: Endpoint) -> bool:
        """Whether there is room for a full list of hashes from this source."""
        most = self._max_per_source
        return len(self._per_source.get(source, ())) + min(most, MAX_HASHES_SENT) <= most

    def _make_room(self, source: Endpoint) -> bool:
        """Make room for one more hash from this source, if need be by dropping one of it or of the largest source.

        False if there is no room.
        """
        named = self._per_source.get(source, {})
        held = len(named)
        if held >= self._max_per_source:
            oldest = next(iter(named), None)
            if oldest is None or self._wants[oldest].attempts < QUICK_ATTEMPTS:
                return False
            self.crowded_out += 1
            self._release_slot(self._wants.pop(oldest))
            return True
        if len(self._wants) >= self._max_wanted:
            most = max(self._per_source.values(), key=len)
            if len(most) <= held + 1:
                return False
            self.crowded_out += 1
            self._release_slot(self._wants.pop(next(reversed(most))))
        return True

    def handle_clock_step(self, now: int) -> None:
        """The clock was set back: pull all of them now."""
        self._queue = []
        self._given_up.clear()
        for want in self._wants.values():
            self._schedule(want, now)

    def resolve(self, msg_hash: MsgHash) -> Want | None:
        """Remove and return the want for a message that arrived, if any."""
        if self._given_up:
            self._given_up.pop(msg_hash, None)
        if not self._wants:
            return None
        want = self._wants.pop(msg_hash, None)
        if want is not None:
            self._release_slot(want)
        return want

    def collect(
        self, now: int, other_peer: Callable[[Want], Endpoint | None], jitter: Callable[[], float]
    ) -> tuple[dict[Endpoint, list[Want]], list[Want]]:
        """The pulls that are due, at most one datagram per peer, and the wants that are given up."""
        asks: dict[Endpoint, list[Want]] = {}
        given_up: list[Want] = []
        while (due := self.next_due_us) is not None and due <= now:
            want = self._wants[heappop(self._queue)[1]]
            if want.attempts >= MAX_ATTEMPTS or _is_over(want, now):
                self._give_up(want, now)
                given_up.append(want)
                continue
            peer = want.untried[0] if want.untried else other_peer(want)
            if peer is None:
                self._schedule(want, now + RETRY_US)
            elif len(asks.get(peer, ())) >= MAX_HASHES_SENT:
                self._schedule(want, now + CROWDED_US)
                continue
            else:
                asks.setdefault(peer, []).append(want)
                want.asked = peer
                want.tried.add(peer)
                del want.untried[:1]
                pause = min(MAX_RETRY_US, RETRY_US * GROWTH ** max(0, want.attempts + 1 - QUICK_ATTEMPTS))
                self._schedule(want, now + int(pause * (1 + jitter() / 4)))
            want.attempts += 1
        return asks, given_up

    def _schedule(self, want: Want, due_us: int) -> None:
        want.due_us = due_us
        heappush(self._queue, (due_us, want.msg_hash))

    def _give_up(self, want: Want, now: int) -> None:
        del self._wants[want.msg_hash]
        self._release_slot(want)
        if len(self._given_up) >= MAX_GIVEN_UP:
            del self._given_up[next(iter(self._given_up))]
        self._given_up[want.msg_hash] = (want.named_by, now + GIVEN_UP_US)

    def _release_slot(self, want: Want) -> None:
        named = self._per_source[want.share]
        del named[want.msg_hash]
        if not named:
            del self._per_source[want.share]


def _is_over(want: Want, now: int) -> bool:
    return want.deadline_ms is not None and is_expired(want.deadline_ms, now // 1000)
