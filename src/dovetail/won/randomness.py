"""The randomness that a core needs, injected by the caller."""

from __future__ import annotations

from typing import Protocol


class Randomness(Protocol):
    """Satisfied by `random.Random` and `random.SystemRandom`."""

    def random(self) -> float: ...
    def randbytes(self, n: int, /) -> bytes: ...
