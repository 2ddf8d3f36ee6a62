"""The randomness that a core needs, given to it from outside."""

from __future__ import annotations

from typing import Protocol


class Randomness(Protocol):
    """`random.Random` and `random.SystemRandom` have it."""

    def random(self) -> float: ...
    def randbytes(self, n: int, /) -> bytes: ...
