"""The links of a core: whose they are, and the frames that wait on them for a signer's key.

Frames of one link are handled strictly in order. If a key is missing, the link waits, and only this link: one
unreachable key server never stops the traffic of others.
"""

from __future__ import annotations

import enum
from collections import deque


class LinkKind(enum.StrEnum):
    """Who is at the other end; the value is the label that the opener shows."""

    OWNER = "owner"
    NODE = "node"


class Link:
    """One WebSocket, seen from the core."""

    __slots__ = ("atoms", "deadline", "frames", "kind", "name", "node", "waiting")

    def __init__(self, name: str, kind: LinkKind, node: str | None = None) -> None:
        self.name = name
        self.kind = kind
        self.node = node
        self.frames: deque[bytes] = deque()
        self.waiting: set[str] = set()
        self.deadline: int | None = None
        self.atoms: set[str] = set()

    @property
    def counterpart(self) -> str:
        """How the journal names the other end when no genuine message tells who it is."""
        return self.node or f"{self.kind.value}:{self.name}"
