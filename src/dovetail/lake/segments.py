"""Plans which files a sealing writes: perfect subtrees of hops, of one UTC date each, near a target size."""

from __future__ import annotations

import bisect
import datetime as dt
from dataclasses import dataclass, field

from dovetail.journal.reader import JournalReader
from dovetail.model.errors import JournalDamaged
from dovetail.model.times import to_datetime, to_us
from dovetail.tlog.tree import aligned_ranges

MAX_SEGMENT_LEVEL = 22
_ROW_BYTES = 24
_TIME_US = range(to_us(dt.datetime.min.replace(tzinfo=dt.UTC)), to_us(dt.datetime.max.replace(tzinfo=dt.UTC)))


@dataclass(frozen=True, slots=True)
class Segment:
    """A perfect subtree of hops of one date, to be written as one file."""

    first_seq: int
    level: int
    date: dt.date

    @property
    def end(self) -> int:
        """The position after its last hop."""
        return self.first_seq + (1 << self.level)


def plan_segments(reader: JournalReader, first: int, end: int, target_bytes: int) -> list[Segment]:
    """Split `[first, end)` into perfect subtrees of one date each, as large as alignment and `target_bytes` allow."""
    outline = _Outline.of(reader, first, end)
    segments = []
    for start, stop, date in outline.days:
        pending = [(position, level) for position, level in reversed(aligned_ranges(start, stop, MAX_SEGMENT_LEVEL))]
        while pending:
            position, level = pending.pop()
            if level > 0 and outline.bytes_between(position, position + (1 << level)) > target_bytes:
                half = 1 << (level - 1)
                pending += [(position + half, level - 1), (position, level - 1)]
            else:
                segments.append(Segment(position, level, date))
    return segments


@dataclass(slots=True)
class _Outline:
    """Dates and sizes of a range of hops, from the commits' headers alone."""

    days: list[tuple[int, int, dt.date]] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    totals: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, reader: JournalReader, first: int, end: int) -> _Outline:
        outline = cls()
        total = 0
        rows = reader.all(
            "SELECT first_seq, count, first_at_us, last_at_us, body_bytes FROM commits "
            "WHERE first_seq + count > ? AND first_seq < ? ORDER BY first_seq",
            (first, end),
        )
        for row in rows:
            reader.check_types(row, "commits", int, int, int, int, int)
            if not all(at_us in _TIME_US for at_us in row[2:4]):
                raise JournalDamaged(f"{reader.path}: hop {row[0]} has an invalid time")
            first_seq, count, first_at_us, last_at_us, body_bytes = row
            outline.starts.append(first_seq)
            outline.totals.append(total)
            total += body_bytes + count * _ROW_BYTES
            start, stop = max(first, first_seq), min(end, first_seq + count)
            if to_datetime(first_at_us).date() == to_datetime(last_at_us).date():
                outline._add_day(start, stop, to_datetime(first_at_us).date())
            else:
                for hop in reader.hops(start, stop):
                    outline._add_day(hop.seq, hop.seq + 1, to_datetime(hop.at_us).date())
        outline.starts.append(end)
        outline.totals.append(total)
        return outline

    def bytes_between(self, first: int, end: int) -> int:
        """About how many bytes these hops take, at commit granularity."""
        return (
            self.totals[bisect.bisect_left(self.starts, end)] - self.totals[bisect.bisect_right(self.starts, first) - 1]
        )

    def _add_day(self, start: int, stop: int, date: dt.date) -> None:
        if self.days and self.days[-1][2] == date:
            self.days[-1] = (self.days[-1][0], stop, date)
        else:
            self.days.append((start, stop, date))
