"""Times are whole microseconds since 1970-01-01 UTC; conversion to and from datetimes and ISO 8601 text."""

from __future__ import annotations

import functools
from datetime import MAXYEAR, MINYEAR, UTC, datetime, timedelta

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
SECOND_US = 1_000_000
MINUTE_US = 60 * SECOND_US
_MAX_SECONDS_CACHED = 1024


def to_datetime(at_us: int) -> datetime:
    """Convert to a UTC datetime; OverflowError beyond the year 9999."""
    return EPOCH + timedelta(microseconds=at_us)


def to_us(moment: datetime) -> int:
    """Convert to microseconds; a naive datetime is UTC."""
    return ((moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - EPOCH) // MICROSECOND


FIRST_US = to_us(datetime(MINYEAR, 1, 1, tzinfo=UTC))
LAST_US = to_us(datetime(MAXYEAR, 12, 31, tzinfo=UTC))
"""Times beyond these have no date."""


def with_date(at_us: int) -> int:
    """The time, or the nearest one that has a date."""
    return min(max(at_us, FIRST_US), LAST_US)


def parse_time(text: str) -> int:
    """Parse an ISO 8601 date or time to microseconds, UTC if it has no zone; ValueError if it is neither."""
    return to_us(datetime.fromisoformat(text))


def time_text(at_us: int) -> str:
    """ISO 8601 in UTC, always with six fractional digits: `2026-11-15T20:00:00.000000Z`."""
    second, fraction = divmod(at_us, 1_000_000)
    return f"{_second_text(second)}.{fraction:06d}Z"


@functools.lru_cache(maxsize=_MAX_SECONDS_CACHED)
def _second_text(at_s: int) -> str:
    """Cached: times formatted together mostly fall into the same second."""
    return (EPOCH + timedelta(seconds=at_s)).isoformat().removesuffix("+00:00")
