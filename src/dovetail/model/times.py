"""Times are whole microseconds since 1970-01-01 UTC; to and from datetimes and ISO 8601 text."""

from __future__ import annotations

import functools
from datetime import UTC, datetime, timedelta

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
_MAX_SECONDS_CACHED = 1024


def to_datetime(at_us: int) -> datetime:
    """The moment in UTC; OverflowError beyond the year 9999."""
    return EPOCH + timedelta(microseconds=at_us)


def to_us(moment: datetime) -> int:
    """Microseconds of a moment; one that names no zone is UTC."""
    return ((moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - EPOCH) // MICROSECOND


def parse_time(text: str) -> int:
    """Microseconds of an ISO 8601 date or time, UTC where it names no zone; ValueError where it is none."""
    return to_us(datetime.fromisoformat(text))


def time_text(at_us: int) -> str:
    """ISO 8601 in UTC, always with six digits of a second: `2026-11-15T20:00:00.000000Z`."""
    second, fraction = divmod(at_us, 1_000_000)
    return f"{_second_text(second)}.{fraction:06d}Z"


@functools.lru_cache(maxsize=_MAX_SECONDS_CACHED)
def _second_text(at_s: int) -> str:
    """Times that are written together mostly lie in one second."""
    return (EPOCH + timedelta(seconds=at_s)).isoformat().removesuffix("+00:00")
