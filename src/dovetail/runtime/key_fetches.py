"""Fetches the documents that contain signers' keys: over TLS, from the host in the signer's URI, bounded.

One at a time per host, so that nobody can be made to send a thousand requests to a third party at once; a few hosts in
parallel. Whoever sends a message chooses the host, and may choose many slow ones: so addresses whose messages need
keys take turns, and each has only a share of the fetches in progress. How many wait, for one address and for all, and
for how long, is bounded: nobody needs a key any more after that. A redirect is not a document. `http.fetch` bounds time
and size.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from urllib.parse import urlsplit

from dovetail.runtime.addresses import AddressGuard, AddressRefused
from dovetail.runtime.http import FETCH_S, fetch
from dovetail.runtime.limited_log import LimitedLog

MAX_AT_ONCE = 32
MAX_AT_ONCE_PER_SOURCE = 8
MAX_WAITING = 4_096
MAX_WAITING_PER_SOURCE = 512
WAIT_S = 10.0
log = logging.getLogger("dovetail.won")

_Host = tuple[str | None, int | None]


class _Wanted:
    """A document that is waited for until a time, and the sources whose turn may be used for it."""

    __slots__ = ("host", "sources", "turn", "until", "uri", "used")

    def __init__(self, uri: str, host: _Host) -> None:
        self.uri = uri
        self.host = host
        self.sources: list[str] = []
        self.used: str | None = None
        """The source whose turn was used."""
        self.turn = asyncio.Event()
        self.until = 0.0


class KeyFetches:
    """Fetches documents for one party; `context` returns the current TLS context."""

    def __init__(self, guard: AddressGuard, context: Callable[[], ssl.SSLContext | None]) -> None:
        self._guard = guard
        self._context = context
        self._wanted: dict[str, _Wanted] = {}
        self._turns: dict[str, dict[str, _Wanted]] = {}  # what waits, by source and URI; the first source is next
        self._in_progress: dict[_Host, _Wanted] = {}
        self._log = LimitedLog(log, "keys not fetched")

    def join(self, uri: str, source: str | None) -> bool:
        """True if a document is already wanted; it is then fetched in the turn of this source, if that is sooner."""
        wanted = self._wanted.get(uri)
        if wanted is None:
            return False
        is_waiting = wanted.used is None
        if is_waiting and source is not None and uri not in self._turns.get(source, ()) and self._has_room(source):
            self._line_up(wanted, source)
        return True

    async def fetch(self, uri: str, source: str | None = None) -> bytes | None:
        """The document at a URI; None if there is none, it may not be fetched, or too many others wait.

        `source` is who needs it; None if only we do: then every host has turns of its own. See `join` for a document
        that is already being fetched.
        """
        assert uri not in self._wanted
        try:
            parts = urlsplit(uri)
            wanted = _Wanted(uri, (parts.hostname, parts.port))
        except ValueError:
            return None
        source = source or f"{parts.hostname}:{parts.port}"
        if len(self._wanted) >= MAX_WAITING or not self._has_room(source):
            self._log.warning("key of %s is not fetched: too many fetches wait", uri[:200])
            return None
        self._wanted[uri] = wanted
        try:
            self._line_up(wanted, source)
            await _wait_for_turn(wanted)
            async with asyncio.timeout(FETCH_S):
                address = await self._guard.resolve(uri)
            return await fetch(uri, self._context(), address=address)
        except AddressRefused as error:
            self._log.warning("key of %s is not fetched: %s", uri[:200], error)
            return None
        except (OSError, TimeoutError, ValueError):
            return None
        finally:
            del self._wanted[uri]
            self._leave_line(wanted)
            if wanted.used is not None:
                del self._in_progress[wanted.host]
                self._grant_turns()

    def _has_room(self, source: str) -> bool:
        return len(self._turns.get(source, ())) < MAX_WAITING_PER_SOURCE

    def _line_up(self, wanted: _Wanted, source: str) -> None:
        wanted.sources.append(source)
        wanted.until = asyncio.get_running_loop().time() + WAIT_S
        self._turns.setdefault(source, {})[wanted.uri] = wanted
        self._grant_turn(source)

    def _leave_line(self, wanted: _Wanted) -> None:
        for source in wanted.sources:
            waiting = self._turns[source]
            del waiting[wanted.uri]
            if not waiting:
                del self._turns[source]
        wanted.sources.clear()

    def _grant_turns(self) -> None:
        """Start what an ended fetch made room for: it held one place and one host, so one of each source at most."""
        for source in list(self._turns):
            if len(self._in_progress) >= MAX_AT_ONCE:
                break
            self._grant_turn(source)

    def _grant_turn(self, source: str) -> None:
        """Start the first fetch of a source that may be in progress, if any; the source is then after the others."""
        waiting = self._turns.get(source, {}).values()
        wanted = next((each for each in waiting if each.host not in self._in_progress), None)
        if wanted is None or len(self._in_progress) >= MAX_AT_ONCE:
            return
        if sum(each.used == source for each in self._in_progress.values()) >= MAX_AT_ONCE_PER_SOURCE:
            return
        self._turns[source] = self._turns.pop(source)
        self._leave_line(wanted)
        self._in_progress[wanted.host] = wanted
        wanted.used = source
        wanted.turn.set()


async def _wait_for_turn(wanted: _Wanted) -> None:
    """Raises TimeoutError if the turn did not come in time; a source that joins has all of the time."""
    while not wanted.turn.is_set():
        try:
            async with asyncio.timeout_at(wanted.until) as waiting:
                await wanted.turn.wait()
        except TimeoutError:
            if waiting.when() == wanted.until:
                raise
