from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.model.times import parse_time, time_text, to_datetime, to_us

AT_US = 1_794_772_800_000_005


@given(st.integers(min_value=-62_135_596_800_000_000, max_value=253_402_300_799_999_999))
def test_a_time_survives_each_of_its_forms(at_us):
    assert to_us(to_datetime(at_us)) == at_us
    assert parse_time(time_text(at_us)) == at_us


def test_text_always_has_six_digits_of_a_second():
    assert time_text(AT_US) == "2026-11-15T20:00:00.000005Z"
    assert time_text(AT_US - 5) == "2026-11-15T20:00:00.000000Z"


def test_a_time_without_a_zone_is_utc():
    assert parse_time("2026-11-15T20:00:00.000005") == parse_time("2026-11-15T21:00:00.000005+01:00") == AT_US
    assert parse_time("2026-11-15") == AT_US - 5 - 20 * 3_600_000_000
    assert to_us(datetime(2026, 11, 15, 20, 0, 0, 5)) == AT_US  # noqa: DTZ001 - the case under test
    assert to_us(datetime(2026, 11, 15, 21, 0, 0, 5, timezone(timedelta(hours=1)))) == AT_US
    assert to_datetime(AT_US).tzinfo is UTC


@pytest.mark.parametrize("text", ["", "now", "2026-13-01", "20:00"])
def test_what_is_no_time_is_refused(text):
    with pytest.raises(ValueError, match=r"."):
        parse_time(text)
