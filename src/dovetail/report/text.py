"""Text that peers wrote, made harmless to look at: nothing invisible, nothing endless, nothing that turns the line.

Markup is escaped by whoever writes markup (the template, `svg`); here it is about characters.
"""

from __future__ import annotations

import re
import unicodedata
from pathlib import Path

from dovetail.fabrics import REGISTRY, address_text, fabric_of
from dovetail.model.address import ADDRESS_BYTES, Address
from dovetail.model.times import to_datetime

MAX_SHOWN_CHARS = 300
ADDRESS_CHARS = 12
_MICROSECONDS = 1_000_000
_LONG_HEX = re.compile(r"[0-9a-f]{16,}")
# C0, DEL, C1, zero-width and joining characters, line separators, bidirectional marks, surrogates, the byte order mark.
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ud800-\udfff\ufeff]")


def show(text: str, limit: int = MAX_SHOWN_CHARS) -> str:
    """The text with invisible and turning characters written as escapes, cut to `limit` characters."""
    cut = text[:limit]
    shown = _UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", cut)
    return shown if len(text) <= limit else f"{shown}… ({len(text):,} characters)"


def shorten(text: str, limit: int) -> str:
    """A name for a small place: its beginning and its end."""
    if len(text) <= limit:
        return text
    tail = max(limit // 3, 1)
    return f"{text[: limit - tail - 1]}…{text[-tail:]}"


def fit(text: str, columns: int) -> str:
    """A name for a box so many columns wide; characters of East Asian scripts and emoji take two."""
    text = show(text, MAX_SHOWN_CHARS)
    wide = sum(unicodedata.east_asian_width(character) in "WF" for character in text)
    return shorten(text, max(columns * len(text) // max(len(text) + wide, 1), 3))


def name_address(address: bytes, fabric: str) -> str:
    """The form people see; hex where it is only the beginning of an address."""
    if len(address) != ADDRESS_BYTES or fabric not in REGISTRY:
        return address.hex()
    return address_text(Address(address), fabric)


def name_briefly(address: bytes, fabric: str) -> str:
    """The first characters by which people tell messages apart."""
    return name_address(address, fabric).removeprefix("wm:/")[:ADDRESS_CHARS]


def community_of(server: str) -> tuple[str, str]:
    """The fabric of a server and the community that it belongs to; empty where they are unknown."""
    try:
        fabric = fabric_of(server)
    except ValueError:
        return "", ""
    return fabric.name, fabric.community(server)


def name_server(uri: str) -> str:
    """What is particular in a URI: without its scheme and what all servers of a kind have in common."""
    try:
        return fabric_of(uri).show_uri(uri) or uri
    except ValueError:
        return uri.partition("://")[2] or uri


def name_server_briefly(uri: str) -> str:
    """`name_server` with long keys shortened in the middle, for lists; the whole URI goes beside it as a title."""
    return _LONG_HEX.sub(lambda match: f"{match[0][:4]}…{match[0][-4:]}", name_server(uri))


def show_path(path: str) -> str:
    """A path as it may be handed on: from the current directory, or only its last part."""
    if "://" in path or not path:
        return path
    try:
        return str(Path(path).resolve().relative_to(Path.cwd()))
    except (ValueError, OSError):
        return Path(path).name or path


def write_time(at_us: int | None) -> str:
    """UTC, to the millisecond; a time that no calendar has, as the number that it is."""
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
    return f"{sign}{_three_digits(time_us / 3600 / _MICROSECONDS)} h"


def _three_digits(value: float) -> str:
    digits = f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f}"
    return digits.rstrip("0").rstrip(".") if "." in digits else digits
