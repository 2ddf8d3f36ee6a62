from __future__ import annotations

import pytest

from dovetail.audit.server_names import strip_uri
from dovetail.report.text import (
    brief_detail,
    name_address,
    name_briefly,
    shorten,
    show,
    write_duration,
    write_time,
)


def test_text_that_turns_or_hides_is_written_as_escapes() -> None:
    assert show("a\u202eb\u200bc\nd\x1b[0m\ufeff") == "a\\u202eb\\u200bc\\u000ad\\u001b[0m\\ufeff"
    assert show("שלום é 漢字 🙂") == "שלום é 漢字 🙂"


def test_long_text_is_cut_and_its_length_said() -> None:
    shown = show("x" * 10_240)
    assert shown == "x" * 300 + "… (10,240 characters)"
    assert show("x" * 300) == "x" * 300


def test_a_short_name_keeps_both_ends() -> None:
    assert shorten("pcp://agent-17.example.org/agent", 16) == "pcp://agen…agent"
    assert len(shorten("y" * 99, 10)) == 10
    assert shorten("short", 10) == "short"


def test_addresses_are_named_as_their_fabric_does() -> None:
    assert name_address(bytes(32), "pcp") == "00" * 32
    assert name_address(bytes(32), "won").startswith("wm:/Qm")
    assert name_address(b"\x01\x02", "won") == "0102"
    assert name_briefly(bytes(32), "won").startswith("Qm")
    assert len(name_briefly(bytes(32), "swarm")) == 12


def test_servers_are_named_by_what_is_particular() -> None:
    assert strip_uri("pcp://broker/server") == "broker"
    assert strip_uri("https://alder.example/won/resource/atom/a1") == "alder.example/atom/a1"
    assert strip_uri("swarm://meadow/00ff") == "meadow/00ff"
    assert strip_uri("no uri") == "no uri"
    assert strip_uri("pcp:///server") == "pcp:///server", "the broker that one is connected to has no other name"


@pytest.mark.parametrize(
    ("time_us", "written"),
    [
        (None, "–"),
        (0, "0 µs"),
        (999, "999 µs"),
        (1234, "1.23 ms"),
        (100_000, "100 ms"),
        (1500, "1.5 ms"),
        (15_000, "15 ms"),
        (-15_000, "−15 ms"),
        (2_000_000, "2 s"),
        (150_000_000, "2.5 min"),
        (7_200_000_000, "2 h"),
        (-86_400_000_000 * 3650, "−3,650 days"),
    ],
)
def test_durations(time_us: int | None, written: str) -> None:
    assert write_duration(time_us) == written


def test_times_are_utc_to_the_millisecond() -> None:
    assert write_time(1_780_000_000_099_300) == "2026-05-28 20:26:40.099"
    assert write_time(None) == ""


def test_a_detail_is_shown_without_the_name_of_the_sealed_file() -> None:
    assert brief_detail("fabric=pcp/date=2026-11-18/a.0-1.b3.parquet: 1 row is altered") == "1 row is altered"
    assert brief_detail("for pcp://a/agent") == "for pcp://a/agent"
