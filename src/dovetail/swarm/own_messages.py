"""Own messages, pushed again until another peer is known to have them: it sent, referred to or listed them."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Final

from dovetail.model.address import Address

PUSH_AGAIN_US: Final = 500_000
MAX_PUSH_AGAIN_US: Final = 60_000_000


class OwnMessages:
    """Own messages that no other peer is known to have yet."""

    def __init__(self) -> None:
        self.unconfirmed: dict[Address, int] = {}
        """The delay before each is pushed again; read-only outside this class."""
        self._queue: list[tuple[int, Address]] = []

    def __len__(self) -> int:
        return len(self.unconfirmed)

    @property
    def next_due_us(self) -> int | None:
        """When the next message must be pushed again."""
        while self._queue and self._queue[0][1] not in self.unconfirmed:
            heappop(self._queue)
        return self._queue[0][0] if self._queue else None

    def add(self, address: Address, now: int) -> None:
        """Add a message that was just pushed."""
        self.unconfirmed[address] = PUSH_AGAIN_US
        heappush(self._queue, (now + PUSH_AGAIN_US, address))

    def confirm(self, address: Address) -> bool:
        """Record that another peer has it, or that it expired; True the first time."""
        return self.unconfirmed.pop(address, None) is not None

    def handle_clock_step(self, now: int) -> None:
        """The clock was set back: push all of them again soon."""
        self._queue = [(now + PUSH_AGAIN_US, address) for address in sorted(self.unconfirmed)]

    def collect(self, now: int) -> list[Address]:
        """The messages to push again now."""
        due = []
        while (at := self.next_due_us) is not None and at <= now:
            address = heappop(self._queue)[1]
            pause = self.unconfirmed[address] = min(MAX_PUSH_AGAIN_US, 2 * self.unconfirmed[address])
            heappush(self._queue, (now + pause, address))
            due.append(address)
        return due
