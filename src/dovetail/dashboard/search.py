"""Full scan of the rows, newest first, a bounded part per request.

Each answer says how much was scanned and whether there is more; its token continues exactly where it stopped. Nothing
is left out for being old, unindexed or in a partly damaged journal: unreadable parts are named, and the scan continues
after them. A search sees the hops that existed when it began.
"""

from __future__ import annotations

import base64
import hashlib
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import msgspec

from dovetail.dashboard.query import Matcher, Query
from dovetail.dashboard.site_sources import Damage
from dovetail.fabrics import fabric_named
from dovetail.journal.hop_source import MAX_MATCHES, HopSource
from dovetail.model.address import Address, parse_name
from dovetail.model.errors import DovetailError, UsageError
from dovetail.model.fabric import MessageInfo
from dovetail.model.hop import Hop

SECONDS_PER_REQUEST = 0.4
MAX_RESULTS = 100
MAX_DAMAGES = 50
MAX_TOKEN_CHARS = 16_384
MIN_INDEXED_BYTES = 4


@dataclass(slots=True)
class Found:
    """A matching message, with its newest hop that matches."""

    hop: Hop
    type: str = ""
    hops: int = 1


@dataclass(slots=True)
class Answer:
    """One part of a search; `token` is empty when everything was scanned."""

    found: dict[tuple[str, Address], Found] = field(default_factory=dict)
    damages: list[Damage] = field(default_factory=list)
    hops_read: int = 0
    hops_left: int = 0
    without_bytes: int = 0
    reached_us: int | None = None
    token: str = ""


class Progress(msgspec.Struct, forbid_unknown_fields=True):
    """The content of a token: up to which hop each source is still to be read."""

    ends: dict[str, int]


def search(
    sources: Sequence[HopSource], query: Query, token: str = "", *, seconds: float = SECONDS_PER_REQUEST
) -> Answer:
    """One part of the results."""
    chosen = [source for source in sources if not query.server or source.server == query.server]
    answer = Answer()
    if not token:
        by_index = query.address or query.any
        if by_index and _look_up(chosen, query, by_index, answer) and query.address:
            return answer
        ends = {_key(source): _end_of(source, query, answer) for source in chosen}
    else:
        known = _decode_token(token).ends
        ends = {_key(source): max(0, min(known.get(_key(source), 0), _size_of(source))) for source in chosen}
    scan = _Scan(chosen, ends, Matcher(query), answer)
    deadline = time.monotonic() + seconds
    while scan.step() and time.monotonic() < deadline and len(answer.found) < MAX_RESULTS:
        pass
    scan.finish()
    return answer


class _Scan:
    """Reads all sources backwards together, always the one whose next range is the newest."""

    def __init__(self, sources: Sequence[HopSource], ends: dict[str, int], matcher: Matcher, answer: Answer) -> None:
        self._sources = {_key(source): source for source in sources}
        self._ends = ends
        self._matcher = matcher
        self._answer = answer
        self._heads: dict[str, tuple[int, int | None]] = {}

    def step(self) -> bool:
        """Read one range; False when there is none left."""
        for key, source in self._sources.items():
            if self._ends[key] > 0 and key not in self._heads:
                self._look_ahead(key, source)
        if not self._heads:
            return False
        key = max(self._heads, key=self._time_of)
        first, at_us = self._heads.pop(key)
        source, end = self._sources[key], self._ends[key]
        self._answer.reached_us = self._answer.reached_us if at_us is None else at_us
        try:
            found = source.read(first, end, with_bytes=self._matcher.query.asks_bytes)
        except (DovetailError, OSError) as error:
            self._note(source, f"hops {first} to {end - 1} cannot be read: {error}")
        else:
            for hop in reversed(found.hops):
                if len(self._answer.found) >= MAX_RESULTS:
                    first = hop.seq + 1
                    break
                self._judge(source, hop, found.bodies)
        self._answer.hops_read += end - first
        self._ends[key] = first
        return True

    def finish(self) -> None:
        """Write the token, if there is more."""
        self._answer.without_bytes = len(self._matcher.without_bytes)
        self._answer.hops_left = sum(self._ends.values())
        if self._answer.hops_left:
            self._answer.token = _encode_token(Progress(self._ends))

    def _time_of(self, key: str) -> float:
        """The time of the next range of a source; damaged ones, whose time is unknown, come first."""
        at_us = self._heads[key][1]
        return math.inf if at_us is None else at_us

    def _look_ahead(self, key: str, source: HopSource) -> None:
        since_us = self._matcher.query.since_us
        try:
            head = source.range_before(self._ends[key])
        except (DovetailError, OSError) as error:
            self._note(source, f"hops before {self._ends[key]} cannot be read: {error}")
            head = None
        # times never go backwards in a journal, so nothing older can match
        if head is None or (since_us is not None and head[1] is not None and head[1] < since_us):
            self._ends[key] = 0
        else:
            self._heads[key] = head

    def _judge(self, source: HopSource, hop: Hop, bodies: dict[Address, bytes | None]) -> None:
        def body() -> bytes | None:
            return bodies[hop.message] if hop.message in bodies else source.raw(hop.message)

        if self._matcher.matches(hop, body):
            _add(self._answer, hop, bodies.get(hop.message))

    def _note(self, source: HopSource, text: str) -> None:
        if len(self._answer.damages) < MAX_DAMAGES:
            self._answer.damages.append(Damage(source.server, text))


def _add(answer: Answer, hop: Hop, raw: bytes | None) -> None:
    known = answer.found.get((hop.server, hop.message))
    if known is not None:
        known.hops += 1
        return
    info = None if raw is None else fabric_named(hop.fabric).read(raw)
    answer.found[hop.server, hop.message] = Found(hop, info.type if isinstance(info, MessageInfo) else "")


def _look_up(sources: Sequence[HopSource], query: Query, text: str, answer: Answer) -> bool:
    """Look an address up in the indexes; True if they have it, and certainly all of it."""
    try:
        prefix = parse_name(text).address
    except ValueError:
        return False
    if prefix is None or len(prefix.coarse) < MIN_INDEXED_BYTES:
        return False
    matcher = Matcher(query)
    is_all = True
    for source in sources:
        try:
            addresses = source.find(prefix.coarse)
            is_all = is_all and len(addresses) < MAX_MATCHES
            for address in filter(prefix.matches, addresses):
                raw = source.raw(address)
                for committed in reversed(source.hops_of(address)):
                    if matcher.matches(committed.hop, partial(_same, raw)):
                        _add(answer, committed.hop, raw)
        except (DovetailError, OSError) as error:
            answer.damages.append(Damage(source.server, str(error)))
            is_all = False
    return is_all and bool(answer.found)


def _same(raw: bytes | None) -> bytes | None:
    return raw


def _end_of(source: HopSource, query: Query, answer: Answer) -> int:
    """Where to start reading backwards."""
    try:
        return source.size if query.until_us is None else source.seq_at(query.until_us)
    except (DovetailError, OSError, StopIteration) as error:
        answer.damages.append(Damage(source.server, str(error)))
    return _size_of(source)


def _size_of(source: HopSource) -> int:
    try:
        return source.size
    except (DovetailError, OSError):
        return 0


def _key(source: HopSource) -> str:
    return hashlib.sha256(source.server.encode()).hexdigest()[:16]


def _encode_token(progress: Progress) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(progress)).decode().rstrip("=")


def _decode_token(token: str) -> Progress:
    if len(token) > MAX_TOKEN_CHARS:
        raise UsageError(f"a token of {len(token)} characters, expected at most {MAX_TOKEN_CHARS}")
    try:
        return msgspec.json.decode(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)), type=Progress)
    except (ValueError, msgspec.MsgspecError):
        raise UsageError("the token is not one of this dashboard; begin the search again") from None
