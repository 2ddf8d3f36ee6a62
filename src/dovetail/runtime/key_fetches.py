"""Fetches the documents that contain signers' keys: over TLS, from the host in the signer's URI, bounded.

One at a time per host, so that nobody can be made to send a thousand requests to a third party at once; a few hosts in
parallel. How many wait, of one host and of all, and for how long, is bounded: nobody needs a key any more after that.
A redirect is not a document. `http.fetch` bounds time and size.
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
MAX_WAITING = 4_096
MAX_WAITING_PER_HOST = 512
WAIT_S = 10.0
log = logging.getLogger("dovetail.won")


class KeyFetches:
    """Fetches documents for one party; `context` returns the current TLS context."""

    def __init__(self, guard: AddressGuard, context: Callable[[], ssl.SSLContext | None]) -> None:
        self._guard = guard
        self._context = context
        self._hosts: dict[
            tuple[str | None, int | None], tuple[asyncio.Lock, list[None]]
        ] = {}  # a lock, and an entry per holder or waiter
        self._waiting = 0
        self._at_once = asyncio.Semaphore(MAX_AT_ONCE)
        self._log = LimitedLog(log, "keys not fetched")

    async def fetch(self, uri: str) -> bytes | None:
        """The document at a URI; None if there is none, it may not be fetched, or too many others wait."""
        try:
            parts = urlsplit(uri)
            host = parts.hostname, parts.port
        except ValueError:
            return None
        lock, marks = self._hosts.setdefault(host, (asyncio.Lock(), []))
        if self._waiting >= MAX_WAITING or len(marks) >= MAX_WAITING_PER_HOST:
            if not marks:
                del self._hosts[host]
            self._log.warning("key of %s is not fetched: too many fetches wait", uri[:200])
            return None
        marks.append(None)
        self._waiting += 1
        try:
            async with asyncio.timeout(WAIT_S) as waiting, lock, self._at_once:
                waiting.reschedule(None)
                async with asyncio.timeout(FETCH_S):
                    address = await self._guard.resolve(uri)
                return await fetch(uri, self._context(), address=address)
        except AddressRefused as error:
            self._log.warning("key of %s is not fetched: %s", uri[:200], error)
            return None
        except (OSError, TimeoutError, ValueError):
            return None
        finally:
            self._waiting -= 1
            marks.pop()
            if not marks:
                self._hosts.pop(host, None)
