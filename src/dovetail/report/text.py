"""Makes text from peers safe to display: no invisible characters, bounded length, no bidirectional marks.

Markup is escaped where it is written (the template, `svg`); this module is about characters.
"""

from __future__ import annotations

import re
import unicodedata
from pathlib import Path

from dovetail.audit.server_names import name_servers_in
from dovetail.fabrics import REGISTRY, address_text, fabric_of
from dovetail.model.address import ADDRESS_BYTES, Address
from dovetail.model.times import to_datetime

MAX_SHOWN_CHARS = 300
ADDRESS_CHARS = 12
ONE_TURN = "one turn"
_MICROSECONDS = 1_000_000
# C0, DEL, C1, zero-width and joining characters, line separators, bidirectional marks, surrogates, the byte order mark.
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ud800-\udfff\ufeff]")
_SEALED_FILE = re.compile(r"^fabric=\S+\.parquet: ")


def show(text: str, limit: int = MAX_SHOWN_CHARS) -> str:
    """The text with invisible and bidirectional characters written as escapes, truncated to `limit` characters."""
    cut = text[:limit]
    shown = _UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", cut)
    return shown if len(text) <= limit else f"{shown}… ({len(text):,} characters)"


def shorten(text: str, limit: int) -> str:
    """A name shortened to its beginning and end."""
    if len(text) <= limit:
        return text
    tail = max(limit // 3, 1)
    return f"{text[: limit - tail - 1]}…{text[-tail:]}"


def fit(text: str, columns: int) -> str:
    """A name for a box this many columns wide; East Asian characters and emoji take two."""
    text = show(text, MAX_SHOWN_CHARS)
    wide = sum(unicodedata.east_asian_width(character) in "WF" for character in text)
    return shorten(text, max(columns * len(text) // max(len(text) + wide, 1), 3))


def name_address(address: bytes, fabric: str) -> str:
    """The display form; hex if it is only an address prefix."""
    if len(address) != ADDRESS_BYTES or fabric not in REGISTRY:
        return address.hex()
    return address_text(Address(address), fabric)


def name_briefly(address: bytes, fabric: str) -> str:
    """The first characters, enough to tell messages apart."""
    return name_address(address, fabric).rpartition("/")[2][:ADDRESS_CHARS]


def community_of(server: str) -> tuple[str, str]:
    """The fabric and the community of a server; empty if unknown."""
    try:
        fabric = fabric_of(server)
    except ValueError:
        return "", ""
    return fabric.name, fabric.community(server)


def brief_detail(detail: str) -> str:
    """The detail of a finding with the names of servers, without that of the sealed file: `audit show` has both."""
    return name_servers_in(_SEALED_FILE.sub("", detail))


def show_path(path: str) -> str:
    """A path safe to share: relative to the current directory, or only its last part."""
    if "://" in path or not path:
        return path
    try:
        return str(Path(path).resolve().relative_to(Path.cwd()))
    except (ValueError, OSError):
        return Path(path).name or path


def write_time(at_us: int | None) -> str:
    """UTC, to the millisecond; a time outside the calendar as a plain number."""
    if at_us is None:
        return ""
    try:
        moment = to_datetime(at_us)
    except OverflowError:
        return f"{at_us:,} µs since 1970"
    return moment.isoformat(sep=" ", timespec="milliseconds").removesuffix("+00:00")


def write_duration(time_us: float | None) -> str:
    """A duration with three digits at most and a unit."""
    if time_us is None:
        return "–"
    sign, time_us = ("−" if time_us < 0 else ""), abs(time_us)
    if time_us < 1000:
        return f"{sign}{time_us:.0f} µs"
    if time_us < _MICROSECONDS:
        return f"{sign}{_three_digits(time_us / 1000)} ms"
    if time_us < 120 * _MICROSECONDS:
        return f"{sign}{_three_digits(time_us / _MICROSECONDS)} s"
    if time_us < 7200 * _MICROSECONDS:
        return f"{sign}{_three_digits(time_us / 60 / _MICROSECONDS)} min"
    if time_us < 48 * 3600 * _MICROSECONDS:
        return f"{sign}{_three_digits(time_us / 3600 / _MICROSECONDS)} h"
    return f"{sign}{time_us / 86_400 / _MICROSECONDS:,.0f} days"


def write_latency(time_us: int) -> str:
    """A duration; a server gives all hops of one turn the same time, so 0 is not a measurement."""
    return write_duration(time_us) if time_us else ONE_TURN


def _three_digits(value: float) -> str:
    digits = f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f}"
    return digits.rstrip("0").rstrip(".") if "." in digits else digits
