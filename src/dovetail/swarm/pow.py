"""The small proof of work of UEP-12, Anti-Spamming: search and check.

The search starts at a nonce that the caller chose at random and counts up, wrapping at 2^64. A `WorkSearch` examines
one run of nonces and returns the first whose work is below the target; the caller decides how long a run is, in how
many threads, and when to stop. `HashlibSearch` needs only the standard library; `dovetail.swarm.pow_llvm` uses the
machine's vector instructions and releases the interpreter lock. Checking is one hash (`content.check_work`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from typing import Final, Protocol

from dovetail.swarm.content import NONCES, WORK_NONCE_OFFSET, with_nonce, work_preimage

RUN: Final = 1 << 16
"""Nonces examined between two checks of `is_cancelled`: some milliseconds with vectors, about 50 ms with hashlib."""


class WorkSearch(Protocol):
    """An implementation of the search for a nonce."""

    name: str

    def find(self, message: bytes, target: int, start: int, count: int) -> int | None:
        """The first of `count` nonces from `start`, wrapping, whose work is below the target, or None."""
        ...


class HashlibSearch:
    """The search with the standard library only."""

    name = "hashlib"

    def find(self, message: bytes, target: int, start: int, count: int) -> int | None:
        """See `WorkSearch.find`."""
        preimage = work_preimage(message)
        head = hashlib.sha256(preimage[:WORK_NONCE_OFFSET])
        tail = preimage[WORK_NONCE_OFFSET + 8 :]
        limit = target.to_bytes(33)[1:] if target < NONCES**4 else None
        for nonce in _run(start, count):
            attempt = head.copy()
            attempt.update(nonce.to_bytes(8, "little") + tail)
            if limit is None or attempt.digest() < limit:
                return nonce
        return None


def _run(start: int, count: int) -> Iterator[int]:
    end = start + count
    if end <= NONCES:
        yield from range(start, end)
    else:
        yield from range(start, NONCES)
        yield from range(end - NONCES)


def expected_hashes(target: int) -> int:
    """How many nonces the search examines on average."""
    return max(1, (1 << 256) // target)


def solve(
    message: bytes,
    target: int,
    start: int,
    search: WorkSearch,
    *,
    run: int = RUN,
    is_cancelled: Callable[[], bool] = lambda: False,
    progress: Callable[[int], None] = lambda _: None,
) -> bytes | None:
    """Return the message with a nonce that meets the target, or None once `is_cancelled` returns True.

    `progress` is called with the number of nonces examined. The search can be cancelled between two runs.
    """
    examined = 0
    while not is_cancelled():
        nonce = search.find(message, target, (start + examined) % NONCES, run)
        if nonce is not None:
            return with_nonce(message, nonce)
        examined += run
        progress(examined)
    return None


def best_search() -> WorkSearch:
    """The fastest search available in this installation."""
    try:
        from dovetail.swarm.pow_llvm import VectorSearch
    except ImportError:
        return HashlibSearch()
    return VectorSearch()
