"""Times in envelopes."""

import pytest

from dovetail.model.times import time_text
from dovetail.pcp.timestamps import decode_timestamp

AT = 1_794_772_800_000_000


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-11-15T20:00:00Z", AT),
        ("2026-11-15T20:00:00.5Z", AT + 500_000),
        ("2026-11-15T20:00:00.123456Z", AT + 123_456),
        ("2026-11-15T20:00:00.1234569999999Z", AT + 123_456),
        ("2026-11-15T21:00:00.000001+01:00", AT + 1),
        ("2026-11-15T21:00:00+0100", AT),
        ("2026-11-15T15:00:00-05", AT),
        ("20261115T200000Z", AT),
        ("2026-11-15T20:00Z", AT),
    ],
)
def test_reads_iso_8601(text, expected):
    assert decode_timestamp(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Z",
        "now",
        "2026-11-15",
        "2026-11-15T20:00:00",
        "2026-11-15 20:00:00Z",
        "2026-13-15T20:00:00Z",
        "2026-11-15TZ",
        "2026-11-15T20:00:00Z\0",
        "2026-11-15T20:00:00.Z",
        "2026-11-15T20:00:00+01:00Z",
        "٢٠٢٦-11-15T20:00:00Z",
        "9" * 99,
    ],
)
def test_refuses_everything_else(text):
    with pytest.raises(ValueError, match="ISO 8601"):
        decode_timestamp(text)


def test_writes_six_fraction_digits():
    assert time_text(AT + 5) == "2026-11-15T20:00:00.000005Z"
    assert decode_timestamp(time_text(AT + 5)) == AT + 5
