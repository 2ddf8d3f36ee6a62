"""Fetching the documents that have the keys of signers: over TLS, from the host that the signer's URI names, bounded.

One at a time per host, so that nobody can be made to knock at a stranger's door a thousand times at once; a few hosts
at once. A redirect is no document. Time and size are bounded by `http.fetch`.
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
log = logging.getLogger("dovetail.won")


class KeyFetches:
    """Fetches documents for one party; `context` gives the TLS context to use now."""

    def __init__(self, guard: AddressGuard, context: Callable[[], ssl.SSLContext | None]) -> None:
        self._guard = guard
        self._context = context
        self._hosts: dict[str, tuple[asyncio.Lock, list[None]]] = {}  # a lock, and a mark for each that has or wants it
        self._at_once = asyncio.Semaphore(MAX_AT_ONCE)
        self._log = LimitedLog(log, "keys not fetched")

    async def fetch(self, uri: str) -> bytes | None:
        """The document at a URI, None if there is none or it may not be fetched."""
        host = urlsplit(uri).netloc
        lock, marks = self._hosts.setdefault(host, (asyncio.Lock(), []))
        marks.append(None)
        try:
            async with lock, self._at_once:
                async with asyncio.timeout(FETCH_S):
                    address = await self._guard.resolve(uri)
                return await fetch(uri, self._context(), address=address)
        except AddressRefused as error:
            self._log.warning("key of %s is not fetched: %s", uri[:200], error)
            return None
        except (OSError, TimeoutError, ValueError):
            return None
        finally:
            marks.pop()
            if not marks:
                self._hosts.pop(host, None)
