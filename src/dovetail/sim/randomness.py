"""All randomness in a world comes from one seed, through independent named streams.

A stream's state is the SHA-256 of seed and name, so a new process, link or fault does not affect the other streams, and
neither does PYTHONHASHSEED. Code that must repeat on every Python uses only `random()`, whose sequence is guaranteed.
"""

from __future__ import annotations

import hashlib
import random


class Randomness:
    """The source of named streams for one seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def derive_key(self, name: str) -> bytes:
        """32 bytes for this name, for instance for a signing key; always the same."""
        return hashlib.sha256(f"dovetail sim\0{self.seed}\0{name}".encode()).digest()

    def stream(self, name: str) -> random.Random:
        """A new stream for this name; asking twice gives the same numbers twice."""
        return random.Random(int.from_bytes(self.derive_key(name)))  # noqa: S311 - must be reproducible, not secure


def draw_between(source: random.Random, low: int, high: int) -> int:
    """An integer from low to high, both included, from one call of `random()`."""
    return low + int(source.random() * (high - low + 1))
