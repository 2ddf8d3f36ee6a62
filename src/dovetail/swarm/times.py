"""An index of messages by time; ties within a millisecond are ordered by hash (reading 13).

Buckets of about a second hold sorted lists and, separately, what was added since they were last read: messages arrive
far more often than ranges are read. Removal is lazy: a bucket counts its removed items, is dropped when all are
removed, and is compacted when most are, and before new items are merged: a removed one may have come again.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import Final, Generic, Protocol, TypeVar

BUCKET_BITS: Final = 10
FEW: Final = 8
"""If fewer than one in `FEW` rows are new, each is inserted; otherwise all are sorted."""


class Timed(Protocol):
    """An item: a time and an address that never change, and whether it is still in the index."""

    @property
    def timestamp_ms(self) -> int: ...
    @property
    def address(self) -> bytes: ...
    @property
    def is_live(self) -> bool: ...


Item = TypeVar("Item", bound=Timed)


class _Bucket(Generic[Item]):
    __slots__ = ("fresh", "removed", "rows")

    def __init__(self) -> None:
        self.rows: list[tuple[int, bytes, Item]] = []
        self.fresh: list[Item] = []
        self.removed = 0

    def __len__(self) -> int:
        return len(self.rows) + len(self.fresh)

    def in_order(self) -> list[tuple[int, bytes, Item]]:
        """All rows, sorted; new ones are merged."""
        if self.fresh:
            if self.removed:
                self.compact()  # no two rows may have the same time and address: items cannot be compared
            rows = self.rows
            fresh = [(item.timestamp_ms, item.address, item) for item in self.fresh]
            self.fresh.clear()
            if len(fresh) * FEW > len(rows):
                rows += fresh
                rows.sort()
            else:
                for row in fresh:
                    insort(rows, row)
        return self.rows

    def compact(self) -> None:
        """Drop removed items."""
        self.rows = [row for row in self.rows if row[2].is_live]
        self.fresh = [item for item in self.fresh if item.is_live]
        self.removed = 0


class TimeIndex(Generic[Item]):
    """Items by time; ranges include both ends."""

    def __init__(self) -> None:
        self._buckets: dict[int, _Bucket[Item]] = {}
        self._numbers: list[int] = []

    def add(self, item: Item) -> None:
        """Add an item."""
        number = item.timestamp_ms >> BUCKET_BITS
        bucket = self._buckets.get(number)
        if bucket is None:
            bucket = self._buckets[number] = _Bucket()
            insort(self._numbers, number)
        bucket.fresh.append(item)

    def remove(self, item: Item) -> None:
        """Remove an item whose `is_live` was set to False."""
        number = item.timestamp_ms >> BUCKET_BITS
        bucket = self._buckets[number]
        bucket.removed += 1
        if bucket.removed == len(bucket):
            del self._buckets[number]
            del self._numbers[bisect_left(self._numbers, number)]
        elif bucket.removed > 64 and bucket.removed * 2 > len(bucket):
            bucket.compact()

    def between(self, start_ms: int, end_ms: int) -> Iterator[Item]:
        """Live items from `start_ms` to `end_ms`, in order."""
        first, last = start_ms >> BUCKET_BITS, end_ms >> BUCKET_BITS
        for at in range(bisect_left(self._numbers, first), len(self._numbers)):
            number = self._numbers[at]
            if number > last:
                return
            rows = self._buckets[number].in_order()
            for timestamp, _, item in rows[bisect_left(rows, (start_ms,)) :] if number == first else rows:
                if timestamp > end_ms:
                    return
                if item.is_live:
                    yield item

    def before(self, end_ms: int) -> Iterator[Item]:
        """Live items strictly before `end_ms`, the newest first."""
        for at in range(len(self._numbers) - 1, -1, -1):
            number = self._numbers[at]
            if number << BUCKET_BITS >= end_ms:
                continue
            for timestamp, _, item in reversed(self._buckets[number].in_order()):
                if timestamp < end_ms and item.is_live:
                    yield item
