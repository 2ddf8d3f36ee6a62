"""All chance in a world comes from one seed, by independent named streams.

A stream's state is the SHA-256 of seed and name, so that a new place, link or fault shifts nobody else's luck, and
neither does PYTHONHASHSEED. Code that must repeat on every Python uses only `random()`, whose sequence is promised.
"""

from __future__ import annotations

import hashlib
import random


class Randomness:
    """The source of named streams for one seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def derive_key(self, name: str) -> bytes:
        """32 bytes for this name, for instance for a signing key; the same whenever asked."""
        return hashlib.sha256(f"dovetail sim\0{self.seed}\0{name}".encode()).digest()

    def stream(self, name: str) -> random.Random:
        """A stream at its start; who asks for a name twice gets the same numbers twice."""
        return random.Random(int.from_bytes(self.derive_key(name)))  # noqa: S311 - has to repeat, guards nothing


def draw_between(source: random.Random, low: int, high: int) -> int:
    """A whole number from low to high, both included, by one call of `random()`."""
    return low + int(source.random() * (high - low + 1))
