"""Key names in the lake, for every kind of object.

    fabric=pcp/date=2026-11-15/<server>.<first seq>-<last seq>.<token>.parquet         sealed hops
    _manifests/<server>/<number>.json                                                  active files: see `manifest`
    _index/<server>/<first seq>-<last seq>.<token>.index                               where messages are: see `index`
    _rollups/<server>/<level>/<first number>.jsonl                                     copies of manifests: see `rollup`
    _kept/fabric=pcp/date=2026-11-15/<server>.<first seq>-<last seq>.<token>.parquet   what is retained of removed bytes

`<server>` is readable text from the server's URI and 8 hex digits of its SHA-256. `<token>` has 8 hex digits: from the
SHA-256 of the file if a sealing wrote it, so that sealing again gives the same name; random for a compaction, so that
no two attempts share a name. Readers that list files skip names with a leading `_` or `.`.

Manifests of formats 1 and 2 are named after their hops, `<first seq>-<last seq>[.g<generation>].json`; the files they
list have no token, and `.g<generation>` if a compaction wrote them.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import re
from pathlib import PurePosixPath
from typing import NamedTuple

from dovetail.model.errors import JournalDamaged

MANIFESTS = "_manifests"
INDEXES = "_index"
RETAINED = "_kept"
ROLLUPS = "_rollups"
TOKEN_CHARS = 8
NUMBER_CHARS = 19
MAX_NUMBER = 10**18
"""Limit for manifest numbers: no higher one is ever assigned or accepted."""
_MAX_SLUG_CHARS = 80
_RANGE = r"(?P<first>[0-9]{19})-(?P<last>[0-9]{19})"
_MANIFEST_NAME = re.compile(rf"(?P<number>[0-9]{{19}})\.json|{_RANGE}(?:\.g(?P<generation>[0-9]{{6}}))?\.json")
_FILE_NAME = rf"{_RANGE}(?:\.(?:g[0-9]{{6}}|[0-9a-f]{{8}}))?"
_SLUG = r"(?P<slug>[A-Za-z0-9.-]+)"
_DATA_KEY = re.compile(
    rf"fabric=(?P<fabric>[a-z]+)/date=(?P<date>[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}})/{_SLUG}\.{_FILE_NAME}\.parquet"
)
_INDEX_KEY = re.compile(rf"{INDEXES}/{_SLUG}/{_FILE_NAME}\.index")


class ManifestName(NamedTuple):
    """What the key of a manifest says: its number, or in formats 1 and 2 its hops and generation."""

    directory: str
    number: int | None
    first_seq: int
    end: int
    generation: int

    @property
    def id(self) -> int | str:
        """How `replaces` names it: by its number, or in formats 1 and 2 by its name."""
        return range_manifest_name(self.first_seq, self.end, self.generation) if self.number is None else self.number


class DataName(NamedTuple):
    """What the key of a sealed file says."""

    fabric: str
    date: str
    slug: str
    first_seq: int
    end: int


def server_slug(server: str) -> str:
    """A server's URI as part of a key: readable, and unique by its hash."""
    text = re.sub(r"[^A-Za-z0-9.-]+", "-", server.partition("://")[2]).strip("-.") or "server"
    return f"{text[:_MAX_SLUG_CHARS]}-{hashlib.sha256(server.encode()).hexdigest()[:8]}"


def range_name(first_seq: int, end: int) -> str:
    """A range of hops as part of a key, both ends inclusive; sorts numerically."""
    return f"{first_seq:019d}-{end - 1:019d}"


def manifest_prefix(server: str) -> str:
    """The prefix of the keys of a server's manifests."""
    return f"{MANIFESTS}/{server_slug(server)}/"


def manifest_name(number: int) -> str:
    """The prefix of names of manifests with this number; lower numbers sort before it."""
    return f"{number:0{NUMBER_CHARS}d}"


def manifest_key(server: str, number: int) -> str:
    """The key of a server's manifest."""
    return f"{manifest_prefix(server)}{manifest_name(number)}.json"


def range_manifest_name(first_seq: int, end: int, generation: int = 0) -> str:
    """The name of a manifest of format 1 or 2, without `.json`."""
    return range_name(first_seq, end) + (f".g{generation:06d}" if generation else "")


def parse_manifest_key(key: str) -> ManifestName | None:
    """Parse the key of a manifest; None if it does not have that form."""
    path = PurePosixPath(key)
    match = _MANIFEST_NAME.fullmatch(path.name)
    if match is None:
        return None
    if match["number"] is not None:
        return ManifestName(path.parent.name, int(match["number"]), 0, 0, 0)
    return ManifestName(
        path.parent.name, None, int(match["first"]), int(match["last"]) + 1, int(match["generation"] or 0)
    )


def data_key(server: str, fabric: str, date: dt.date | str, first_seq: int, end: int, token: str) -> str:
    """The key of a sealed file."""
    name = f"{server_slug(server)}.{range_name(first_seq, end)}.{token}.parquet"
    return f"fabric={fabric}/date={date}/{name}"


def parse_data_key(key: str) -> DataName | None:
    """Parse the key of a sealed file; None if it does not have that form."""
    match = _DATA_KEY.fullmatch(key)
    if match is None:
        return None
    return DataName(match["fabric"], match["date"], match["slug"], int(match["first"]), int(match["last"]) + 1)


def check_data_key(key: str, server: str, fabric: str, first_seq: int, end: int) -> DataName:
    """Parse the key; JournalDamaged unless sealing these hops may produce it."""
    name = parse_data_key(key)
    if name is None or name[2:] != (server_slug(server), first_seq, end) or name.fabric != fabric:
        raise JournalDamaged(f"{key[:200]!r} is not a key for hops {first_seq} to {end - 1} of {server}")
    return name


def index_key(server: str, file: str) -> str:
    """The key of the index of a sealed file."""
    slug = server_slug(server)
    return f"{INDEXES}/{slug}/{PurePosixPath(file).stem.removeprefix(f'{slug}.')}.index"


def retained_key(file: str) -> str:
    """The key of the retained fields of a sealed file whose bytes were removed."""
    return f"{RETAINED}/{file}"


def hops_of_key(key: str) -> tuple[str, int] | None:
    """The server's slug and the first hop of a sealed file, its index or its retained fields."""
    match = _INDEX_KEY.fullmatch(key) or _DATA_KEY.fullmatch(key.removeprefix(f"{RETAINED}/"))
    return None if match is None else (match["slug"], int(match["first"]))
