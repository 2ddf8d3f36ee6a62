"""What a search asks for, and whether a hop and the bytes of its message match.

Text is compared case-insensitively, in the raw bytes and, if they contain escapes (JSON, N-Quads), also unescaped; both
sides in Unicode's composed form.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields

from dovetail.fabrics import fabric_named
from dovetail.model.address import URI_PREFIX, Address, parse_name
from dovetail.model.errors import UsageError
from dovetail.model.hop import Hop, Reason, Stage
from dovetail.model.times import parse_time

MAX_TERM_CHARS = 1_000
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.DOTALL)
_SHORT = {"n": "\n", "r": "\r", "t": "\t", "b": "\b", "f": "\f"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """All given fields must match; `any` is searched for everywhere."""

    any: str = ""
    address: str = ""
    id: str = ""
    uri: str = ""
    text: str = ""
    server: str = ""
    stage: str = ""
    reason: str = ""
    since_us: int | None = None
    until_us: int | None = None

    @property
    def is_empty(self) -> bool:
        """True if nothing is asked for: everything matches."""
        return self == Query()

    @property
    def asks_bytes(self) -> bool:
        """True if the bytes must be searched."""
        return bool(self.any or self.id or self.uri or self.text)

    @property
    def asks_bytes_of_every_hop(self) -> bool:
        """True if a hop without the bytes may match only together with them."""
        is_about_hops = self.stage or self.reason or self.since_us is not None or self.until_us is not None
        return bool(self.asks_bytes and (is_about_hops or (self.uri and (self.any or self.id or self.text))))


def parse_query(given: Mapping[str, str]) -> Query:
    """A query from the parameters of a request; UsageError names an invalid one."""
    known = {each.name.removesuffix("_us") for each in fields(Query)}
    terms = {name: given[name].strip() for name in known if given.get(name, "").strip()}
    for name, term in terms.items():
        if len(term) > MAX_TERM_CHARS:
            raise UsageError(f"{name} has {len(term)} characters, expected at most {MAX_TERM_CHARS}")
    if "address" in terms and is_id(terms["address"]):
        terms["id"] = terms.pop("address")
    since, until = (terms.pop(name, "") for name in ("since", "until"))
    for name, words in (("stage", Stage), ("reason", Reason)):
        if name in terms and terms[name] not in tuple(words):
            raise UsageError(f"{terms[name][:80]!r} is not a {name}")
    return Query(**terms, since_us=_parse_time("since", since), until_us=_parse_time("until", until))


def is_id(text: str) -> bool:
    """True if text is a message's own id, not an address."""
    try:
        return parse_name(text).address is None
    except ValueError:
        return False


def _parse_time(name: str, text: str) -> int | None:
    if not text:
        return None
    try:
        return parse_time(text)
    except ValueError:
        raise UsageError(f"{name} {text[:80]!r} is not a time such as 2026-11-15T20:00") from None


class Matcher:
    """Matches hops against one query; caches its results for bytes, so it is for one request."""

    def __init__(self, query: Query) -> None:
        self.query = query
        self._needles = {name: fold(getattr(query, name)) for name in ("any", "id", "uri", "text")}
        self._verdicts: dict[tuple[str, Address], bool] = {}
        self.without_bytes: set[Address] = set()

    def matches(self, hop: Hop, body: Callable[[], bytes | None]) -> bool:
        """True if the hop, with the bytes of its message, matches the query."""
        query = self.query
        if (
            (query.stage and hop.stage != query.stage)
            or (query.reason and hop.reason != query.reason)
            or (query.since_us is not None and hop.at_us < query.since_us)
            or (query.until_us is not None and hop.at_us >= query.until_us)
            or (query.address and not begins(hop.message, hop.fabric, query.address))
        ):
            return False
        return all(
            not getattr(query, name) or self._is_outside(name, hop) or self._in_bytes(name, hop, body)
            for name in self._needles
        )

    def _is_outside(self, name: str, hop: Hop) -> bool:
        """True if the hop itself has what is searched for."""
        is_address = begins(hop.message, hop.fabric, getattr(self.query, name))
        is_counterpart = hop.counterpart is not None and self._needles[name] in fold(hop.counterpart)
        match name:
            case "any":
                return is_address or is_counterpart
            case "uri":
                return is_counterpart
            case "id":
                # if messages are not named by their address, they have their own ids
                return is_address and fabric_named(hop.fabric).key_bytes is not None
            case _:
                return False

    def _in_bytes(self, name: str, hop: Hop, body: Callable[[], bytes | None]) -> bool:
        if hop.size is None and not self.query.asks_bytes_of_every_hop:
            return False  # decided on the hop that has the bytes
        key = (name, hop.message)
        if key not in self._verdicts:
            raw = body()
            if raw is None:
                self.without_bytes.add(hop.message)
            self._verdicts[key] = raw is not None and contains(raw, self._needles[name])
        return self._verdicts[key]


def begins(address: Address, fabric: str, text: str) -> bool:
    """True if an address, in any of its written forms, begins with this text; the URI prefix may be omitted."""
    if address.hex().startswith(text.lower()):
        return True
    shown = fabric_named(fabric).show_address(address)
    return shown.removeprefix(URI_PREFIX).startswith(text.removeprefix(URI_PREFIX))


def fold(text: str) -> str:
    """Text for comparison: composed, case-folded."""
    return text.casefold() if text.isascii() else unicodedata.normalize("NFC", text).casefold()


def contains(raw: bytes, needle: str) -> bool:
    """True if the bytes contain the folded text, raw or unescaped."""
    text = raw.decode(errors="replace")
    if needle in fold(text):
        return True
    return "\\" in text and needle in fold(_unescape(text))


def _unescape(text: str) -> str:
    plain = _ESCAPE.sub(_plain, text)
    # JSON writes characters beyond 16 bits as surrogate pairs
    return plain.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _plain(escape: re.Match[str]) -> str:
    short, long, letter = escape.groups()
    if letter is not None:
        return _SHORT.get(letter, letter)
    code = int(short or long, 16)
    return chr(code) if code <= 0x10FFFF else "\ufffd"
