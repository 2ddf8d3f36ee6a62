"""ISO 8601 times as used in envelopes, which are stricter than those that people type."""

from __future__ import annotations

import re
from datetime import datetime

from dovetail.model.times import EPOCH, MICROSECOND

# Date and time with a designator, any number of fraction digits, `Z` or an offset; basic and extended format.
_FORM = re.compile(
    r"\d{4}-?\d\d-?\d\dT\d\d(?::?\d\d(?::?\d\d(?:[.,]\d+)?)?)?(?:Z|[+-]\d\d(?::?\d\d)?)",
    re.ASCII,
)
_from_iso = datetime.fromisoformat


def decode_timestamp(text: str) -> int:
    """Microseconds since 1970 UTC, finer digits truncated; ValueError says what is wrong."""
    try:
        # The common form, 2026-11-15T19:55:07.123456Z, needs no regular expression: the parser checks everything except
        # the `T` in its place and the `Z` at the end.
        if (text[-1] != "Z" or text[10] != "T" or text[-2] == "." or len(text) > 27) and _FORM.fullmatch(text) is None:
            raise ValueError
        return (_from_iso(text) - EPOCH) // MICROSECOND
    except (ValueError, IndexError, OverflowError, TypeError):
        raise ValueError(f"{text[:80]!r} is not an ISO 8601 time with Z or an offset") from None
